from __future__ import annotations

import asyncio
import pickle
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from fhir_gym.agents import ContextWindowExceeded, EpisodeContext, LocalAgent, make_agent
from fhir_gym.agents.local import _Batcher, _split_calls
from fhir_gym.agents.transformer import Prompt, Sample, Transformer
from fhir_gym.errors import FhirGymError, MissingExtraError
from fhir_gym.fhir import World
from fhir_gym.rollouts import Rollout, run
from tests.agents.tiny import FORGETFUL, NO_TOOLS, save

ENV_ID = "FHIRAgent/Appointment-v0"
END = "<|im_end|>"


@pytest.fixture(scope="module")
def transformer(tiny: str) -> Transformer:
    return Transformer(tiny, device="cpu")


def local(model: str | Transformer, **settings: Any) -> LocalAgent:
    given: dict[str, Any] = {"device": "cpu", "max_new_tokens": 12, "temperature": 1.0} | settings
    return LocalAgent(model, **given)


def roll(agent: LocalAgent, world: World, **choice: Any) -> list[Rollout]:
    given: dict[str, Any] = {"tasks": ["01", "02a", "05"], "variations": 0, "max_steps": 3, "concurrency": 3} | choice
    done = run(ENV_ID, agent, world=world, **given)
    return sorted(done, key=lambda rollout: (rollout.task.key, rollout.task.variation))


def says(monkeypatch: pytest.MonkeyPatch, *texts: str) -> list[list[Sequence[int]]]:
    """Make the model return these texts; return a list that collects the token ids of the prompts of each batch."""
    asked: list[list[Sequence[int]]] = []
    script = iter(texts)

    def sample(self: Transformer, prompts: Sequence[Prompt], **_: Any) -> list[Sample]:
        asked.append([prompt.ids for prompt in prompts])
        ids = [self.encode(next(script)) for _ in prompts]
        return [Sample(id, [-0.5] * len(id), id[-1] in self.ends) for id in ids]

    monkeypatch.setattr(Transformer, "sample", sample)
    return asked


def ids_of(rollout: Rollout, name: str) -> list[list[int]]:
    found: list[list[int]] = []
    for turn in rollout.turns:
        assert turn.reply is not None
        ids: Any = turn.reply.extra[name]
        found.append(ids)
    return found


def test_records_hold_the_exact_tokens(tiny: str, hospital: World) -> None:
    agent = local(tiny, logprobs=True)
    model = agent._model
    for rollout in roll(agent, hospital):
        assert rollout.opening is not None and rollout.graded
        read, wrote = ids_of(rollout, "prompt_ids"), ids_of(rollout, "completion_ids")
        assert model.decode(read[0]) == model.render(rollout.opening.messages, tools=False)
        for turn, ids in zip(rollout.turns, read[1:], strict=False):
            expected = f"\n<|im_start|>user\n{turn.read}{END}\n<|im_start|>assistant\n"
            assert model.decode(ids).removeprefix(END) == expected
        prompt = 0
        for turn, new, answer in zip(rollout.turns, read, wrote, strict=True):
            assert turn.reply is not None and turn.reply.usage is not None
            prompt += len(new)
            assert (turn.reply.usage.prompt, turn.reply.usage.completion) == (prompt, len(answer))
            prompt += len(answer)
            said = model.decode(answer).removesuffix(END)
            assert turn.reply.message["content"] == (said or "(no answer)")
            assert turn.reply.finish_reason == ("stop" if answer[-1] in model.ends else "length")
            assert "restart" not in turn.reply.extra
            assert turn.reply.fingerprint == model.fingerprint()
        assert Rollout.model_validate_json(rollout.line()) == rollout


def test_log_probabilities_are_the_models_own(tiny: str, hospital: World) -> None:
    torch: Any = import_module("torch")
    agent = local(tiny, logprobs=True, temperature=0.7)
    rollout = roll(agent, hospital)[0]
    ids: list[int] = []
    for read, wrote, recorded in zip(
        ids_of(rollout, "prompt_ids"), ids_of(rollout, "completion_ids"), ids_of(rollout, "logprobs"), strict=True
    ):
        ids += read
        with torch.no_grad():
            logits = agent._model._model(torch.tensor([ids + wrote])).logits[0].float()
        likely = torch.log_softmax(logits[len(ids) - 1 : -1], dim=-1)
        expected = likely[range(len(wrote)), wrote].tolist()
        assert recorded == pytest.approx(expected, abs=1e-4)
        ids += wrote


def test_a_text_does_not_depend_on_its_batch(transformer: Transformer) -> None:
    texts = ["short", "a much longer text, which pads the others", "GET /Patient?name=x"]
    together = transformer.sample(
        [Prompt(transformer.encode(text), transformer.generator(n)) for n, text in enumerate(texts)],
        max_tokens=20,
        temperature=1.0,
    )
    for n, text in enumerate(texts):
        prompt = Prompt(transformer.encode(text), transformer.generator(n))
        (alone,) = transformer.sample([prompt], max_tokens=20, temperature=1.0)
        assert alone.ids == together[n].ids
        assert alone.logprobs == pytest.approx(together[n].logprobs, abs=1e-4)
    assert len({tuple(sample.ids) for sample in together}) == 3


@pytest.mark.parametrize("constant", [False, True])
def test_a_later_turn_does_not_depend_on_the_batch_of_an_earlier_one(transformer: Transformer, constant: bool) -> None:
    model = Transformer.around(transformer._model, transformer.tokenizer, constant=constant)

    def second_turn(others: int) -> list[int]:
        own = model.generator(3)
        prompts = [Prompt([5, 6, 7], own), *(Prompt([9, 10], model.generator(100 + n)) for n in range(others))]
        first, *longer = (len(sample.ids) for sample in model.sample(prompts, max_tokens=60, temperature=1.0))
        assert first < min(longer, default=60), "the other replies of the batch are longer"
        return model.sample([Prompt([5, 6, 7], own)], max_tokens=20, temperature=1.0)[0].ids

    assert second_turn(0) == second_turn(3)


def test_temperature_zero_is_greedy(transformer: Transformer) -> None:
    torch: Any = import_module("torch")
    ids = transformer.encode("GET /Patient")
    (sample,) = transformer.sample([Prompt(ids, transformer.generator(1))], max_tokens=5)
    for at, id in enumerate(sample.ids):
        with torch.no_grad():
            logits = transformer._model(torch.tensor([ids + sample.ids[:at]])).logits[0, -1]
        assert int(logits.argmax()) == id
    hot = [
        transformer.sample([Prompt(ids, transformer.generator(seed))], max_tokens=5, temperature=2.0)[0].ids
        for seed in (1, 1, 2)
    ]
    assert hot[0] == hot[1] != hot[2]


def test_samples_follow_the_softmax(transformer: Transformer) -> None:
    torch: Any = import_module("torch")
    ids = transformer.encode("FINISH")
    with torch.no_grad():
        likely = torch.softmax(transformer._model(torch.tensor([ids])).logits[0, -1] / 2.0, dim=-1)
    best = int(likely.argmax())
    prompts = [Prompt(ids, transformer.generator(seed)) for seed in range(400)]
    drawn = [sample.ids[0] for sample in transformer.sample(prompts, max_tokens=1, temperature=2.0)]
    share, expected = drawn.count(best) / 400, float(likely[best])
    assert abs(share - expected) < 4 * (expected * (1 - expected) / 400) ** 0.5 + 1e-9


def test_equal_seeds_give_equal_records(tiny: str, hospital: World) -> None:
    agent = local(tiny)
    lines = [[rollout.line(timings=False) for rollout in roll(agent, hospital, seed=seed)] for seed in (3, 3, 4)]
    assert lines[0] == lines[1] != lines[2]


def test_episodes_are_answered_in_batches(tiny: str, hospital: World, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [rollout.turns for rollout in roll(local(tiny, batch_size=1), hospital)]
    sizes: list[int] = []
    sample = Transformer.sample

    def counted(self: Transformer, prompts: Sequence[Prompt], **given: Any) -> list[Sample]:
        sizes.append(len(prompts))
        return sample(self, prompts, **given)

    monkeypatch.setattr(Transformer, "sample", counted)
    together = [rollout.turns for rollout in roll(local(tiny, batch_size=3), hospital)]
    assert sizes == [3, 3, 3]
    assert [[turn.action for turn in turns] for turns in together] == [
        [turn.action for turn in turns] for turns in alone
    ]


def test_a_model_that_knows_how_succeeds(tiny: str, hospital: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = says(monkeypatch, f"GET /Patient?_count=1{END}", "FINISH([", f'FINISH(["x"]){END}')
    (rollout,) = roll(local(tiny), hospital, tasks="02a")
    assert [turn.status for turn in rollout.turns] == [200, 0, 0]
    assert rollout.turns[1].error is not None and "cut off" in rollout.turns[1].error
    assert rollout.verdict is not None and rollout.verdict.answer == ["x"]
    everything: list[int] = []
    for read, wrote, (seen,) in zip(
        ids_of(rollout, "prompt_ids"), ids_of(rollout, "completion_ids"), asked, strict=True
    ):
        everything += read
        assert list(seen) == everything  # the record contains exactly the tokens that the model read
        everything += wrote
    model = local(tiny)._model
    assert model.decode(everything) == model.render(rollout.messages, tools=False, answer=False).removesuffix("\n")


def test_tools(tiny: str, hospital: World, monkeypatch: pytest.MonkeyPatch) -> None:
    look = '<tool_call>{"name": "searchResources", "arguments": {"resourceType": "Patient"}}</tool_call>'
    asked = says(
        monkeypatch,
        f"I look. {look}<tool_call>{{oops</tool_call>{END}",
        f"Just words.{END}",
        f'{{"name": "finish", "parameters": {{"answer": [7]}}}}{END}',
    )
    (rollout,) = roll(local(tiny, protocol="tools"), hospital, tasks="02a", max_steps=9)
    assert [turn.tool for turn in rollout.turns] == ["searchResources", "unnamed", None, "finish"]
    assert [turn.error is None for turn in rollout.turns] == [True, False, False, True]
    assert rollout.verdict is not None and rollout.verdict.answer == [7]
    model = local(tiny)._model
    first, second = (model.decode(asked[n][0]) for n in (0, 1))
    assert '"name": "searchResources"' in first and "FINISH([...])" not in first.partition("<|im_start|>user")[2]
    assert second.startswith(first + "I look. " + look) and second.count("<|im_start|>tool\n") == 2


def test_a_template_that_drops_text_restarts_the_prompt(
    tmp_path: Path, hospital: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = says(monkeypatch, f"hello{END}", f"hello again{END}", f"FINISH([]){END}")
    agent = local(save(tmp_path, FORGETFUL))
    (rollout,) = roll(agent, hospital, tasks="02a")
    extras = [turn.reply.extra for turn in rollout.turns if turn.reply is not None]
    assert [extra.get("restart", False) for extra in extras] == [False, True, True]
    assert [list(ids) for (ids,) in asked] == [extra["prompt_ids"] for extra in extras]
    second = agent._model.decode(asked[1][0])
    assert "assistant\n(said)" in second and "assistant\nhello" not in second


def test_a_model_in_training_is_an_agent(tiny: str, hospital: World) -> None:
    loaded = Transformer(tiny, device="cpu")
    model = loaded._model.train()
    agent = local(Transformer.around(model, loaded.tokenizer, name=tiny))
    assert agent.settings == local(tiny).settings
    lines = [[rollout.line(timings=False) for rollout in roll(agent, hospital)] for agent in (agent, local(tiny))]
    assert lines[0] == lines[1]
    assert model.training


def test_a_full_context_truncates_the_episode(tiny: str, hospital: World) -> None:
    (rollout,) = roll(local(tiny, context_tokens=100), hospital, tasks="02a")
    assert (rollout.stop_reason, rollout.steps, rollout.graded) == ("context_limit", 0, True)


def test_dropped_contents_restart_the_prompt(tiny: str, hospital: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = says(monkeypatch, *[f"GET /Patient?_count={count}{END}" for count in (1, 2, 3, 4, 5)], f"FINISH([]){END}")
    limits: dict[str, Any] = {"context_tokens": 8_000, "context_policy": "drop"}
    agent = local(tiny, **limits)
    (rollout,) = roll(agent, hospital, tasks="02a", max_steps=6)
    assert rollout.stop_reason == "finished" and rollout.drops and rollout.agent.settings["context_policy"] == "drop"
    for reply, (ids,), messages in zip(rollout.replies, asked, rollout.requests(), strict=True):
        assert len(ids) <= 8_000 - 12
        assert agent._model.decode(ids) == agent._model.render(messages, tools=False)
        assert bool(reply.extra.get("restart")) == (reply.dropped is not None)
        assert not reply.extra.get("restart") or reply.extra["prompt_ids"] == list(ids)


def test_a_failing_device_is_an_infrastructure_failure(
    tiny: str, hospital: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = local(tiny)

    def fail(**_: Any) -> None:
        raise import_module("torch").OutOfMemoryError("CUDA out of memory\nsee the docs")

    monkeypatch.setattr(agent._model._model, "generate", fail)
    rollouts = roll(agent, hospital)
    assert [rollout.stop_reason for rollout in rollouts] == ["infra_error"] * 3
    assert rollouts[0].error == "the model failed on cpu: CUDA out of memory" and rollouts[0].reward is None


def test_act_by_act(tiny: str, hospital: World, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, f"one{END}", f"two{END}", f"three{END}")
    agent = make_agent("local", model=tiny, device="cpu")
    assert isinstance(agent, LocalAgent) and agent.settings["dtype"] == "float32"
    context = EpisodeContext(ENV_ID, "01", 0, hospital, 5, 15, "Do it.")
    with pytest.raises(RuntimeError):
        agent.act("?")
    agent.reset("Do it now.", context)
    assert [agent.act("Do it now.").action, agent.act("Well.").action] == ["one", "two"]
    agent.reset("Do it now.", context)
    assert agent.act("Do it now.").action == "three"
    agent.close()
    with pytest.raises(FhirGymError, match="one process"):
        pickle.dumps(agent)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"dtype": "float7"}, "no dtype 'float7'"),
        ({"device": "nowhere"}, "cannot be moved to device 'nowhere'"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ({"temperature": -1}, "temperature must not be negative"),
        ({"protocol": "tool"}, "did you mean 'tools'"),
    ],
)
def test_wrong_settings_are_one_line(tiny: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(FhirGymError, match=said) as raised:
        local(tiny, **settings)
    assert "\n" not in str(raised.value)


def test_unusable_models_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(FhirGymError, match="is not a folder here and cannot be loaded") as raised:
        local(str(tmp_path / "nothing"))
    assert "\n" not in str(raised.value)
    with pytest.raises(FhirGymError, match="has no chat template"):
        local(save(tmp_path / "base", None))
    with pytest.raises(FhirGymError, match="does not support tools: use protocol='text'"):
        local(save(tmp_path / "plain", NO_TOOLS), protocol="tools")


def test_missing_packages_name_the_command(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingExtraError, match=r"package gguf: pip install '\.\[local\]'"):
        local(tiny, gguf_file="model.gguf")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match="package torch"):
        local(tiny)


def test_tool_calls_as_models_write_them() -> None:
    text, calls = _split_calls('a <tool_call>{"name": "x", "arguments": {"b": 1}}')
    assert text == "a" and calls == ({"type": "function", "function": {"name": "x", "arguments": '{"b": 1}'}},)
    assert _split_calls('{"name": "x"}')[1][0]["function"] == {"name": "x", "arguments": "{}"}
    for words in ("", "no call", '{"a": 1}', '{"name": 1}', "[1]", '{"name": "x"} and more', "[" * 100_000):
        assert _split_calls(words) == (words, ())


def test_cancelling_all_requests_stops_the_batch() -> None:
    begun, ended = threading.Event(), threading.Event()

    def sample(prompts: Sequence[Prompt], stopped: threading.Event) -> list[Sample]:
        begun.set()
        if stopped.wait(20):
            ended.set()
        return [Sample([], [], False) for _ in prompts]

    async def go() -> None:
        batches = _Batcher(sample, 2)
        asking = [asyncio.create_task(batches.complete(Prompt([n], None))) for n in range(3)]
        await asyncio.to_thread(begun.wait, 20)
        for task in asking:
            task.cancel()
        await batches.aclose()
        assert all(
            isinstance(outcome, asyncio.CancelledError)
            for outcome in await asyncio.gather(*asking, return_exceptions=True)
        )

    asyncio.run(go())
    assert ended.is_set()


def test_an_error_reaches_all_waiting_requests() -> None:
    def sample(prompts: Sequence[Prompt], stopped: threading.Event) -> list[Sample]:
        raise ContextWindowExceeded

    async def go() -> None:
        batches = _Batcher(sample, 4)
        found = await asyncio.gather(*(batches.complete(Prompt([n], None)) for n in range(6)), return_exceptions=True)
        assert [type(error) for error in found] == [ContextWindowExceeded] * 6

    asyncio.run(go())
