from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL is not installed: pip install '.[train]'")

from fhir_gym.actions import GRAMMAR
from fhir_gym.agents import EpisodeContext, make_opening
from fhir_gym.episode import Episode
from fhir_gym.errors import ArgumentError, FhirGymError, InfraError, TrainingError
from fhir_gym.fhir import World
from fhir_gym.training.curriculum import EpisodeChoice
from fhir_gym.training.grpo import EpisodeRows, FHIRToolEnv, OpenConfigs, make_row
from tests.training.grpo_tools import END, ENV_ID, NAMES, capture, make_curriculum, make_trainer, said_texts, weights

# The training libraries emit many warnings that differ between versions.
pytestmark = pytest.mark.filterwarnings("ignore")
TOOLS = [schema["function"]["name"] for schema in GRAMMAR.tools()]
EPISODE: dict[str, Any] = {"env_id": ENV_ID, "task": "02a", "variation": 0, "phrasing": None}
SEARCH: dict[str, Any] = {"resourceType": "Patient", "params_json": {"_count": 1, "_elements": "id"}}


@pytest.fixture
def env(hospital: World) -> FHIRToolEnv:
    made = FHIRToolEnv(world=hospital, reward="dense", max_steps=3)
    made.reset(**EPISODE, prompt="not used")
    return made


def test_the_tools_are_those_of_the_agents() -> None:
    utils: Any = import_module("transformers.utils")
    public = [name for name in vars(FHIRToolEnv) if not name.startswith("_")]
    methods = [name for name in public if callable(getattr(FHIRToolEnv, name)) and name not in ("reset", "get_reward")]
    assert methods == TOOLS
    for schema in GRAMMAR.tools():
        expected = schema["function"]
        found = utils.get_json_schema(getattr(FHIRToolEnv, expected["name"]))["function"]
        assert found["description"] == expected["description"]
        properties = found["parameters"]["properties"]
        assert {name: value["description"] for name, value in properties.items()} == {
            name: value["description"] for name, value in expected["parameters"]["properties"].items()
        }
        assert {name: value["type"] for name, value in properties.items()} == {
            name: value["type"] for name, value in expected["parameters"]["properties"].items()
        }
        assert found["parameters"].get("required", []) == expected["parameters"]["required"]


def test_the_first_message_is_that_of_the_agents(hospital: World, env: FHIRToolEnv) -> None:
    text = env.reset(**EPISODE)
    with Episode(ENV_ID, task="02a", variation=0, world=hospital, max_steps=3) as episode:
        context = EpisodeContext(ENV_ID, "02a", 0, hospital, 0, 3, episode.prompt)
        assert text == make_opening("tools", episode.start(), context).messages[-1]["content"]


def test_an_episode_by_tools_has_the_reward_of_its_replay(hospital: World, env: FHIRToolEnv) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("searchResources", SEARCH),
        ("createResource", {"resourceType": "Patient", "body_json": {"resourceType": "Patient"}}),
        ("finish", {"answer": ["1"]}),
    ]
    observations = [getattr(env, name)(**arguments) for name, arguments in calls]
    with Episode(ENV_ID, task="02a", variation=0, world=hospital, reward="dense", max_steps=3) as episode:
        episode.start()
        steps = [episode.step(GRAMMAR.from_tool_call(name, arguments)) for name, arguments in calls]
    assert observations == [step.observation for step in steps]
    assert env.get_reward() == env.get_reward() == steps[-1].reward
    assert env.result is not None and (env.result.stop_reason, env.result.steps) == ("finished", 3)


def test_wrong_values_are_invalid_actions(env: FHIRToolEnv) -> None:
    assert "resourceType '?' is not valid" in env.searchResources("?")
    no_object: Any = []
    assert "must be a JSON object" in env.createResource("Patient", no_object)
    assert "is missing" in env.searchResources()
    assert env.get_reward() == 0.0
    assert env.result is not None and (env.result.invalid_actions, env.result.stop_reason) == (3, "step_limit")


def test_tools_after_the_end_refuse(env: FHIRToolEnv) -> None:
    env.finish([])
    with pytest.raises(FhirGymError, match="the episode is over"):
        env.searchResources("Patient")
    env.reset(**EPISODE)
    assert env.result is None
    assert "HTTP 200" in env.searchResources("Patient", {"_count": 1})


def test_an_abandoned_episode_is_told_apart(env: FHIRToolEnv) -> None:
    env.getResourceById("Patient", "nobody")
    assert env.get_reward() == 0.0
    assert env.result is not None and env.result.stop_reason == "unfinished"


def test_long_observations_are_shortened(hospital: World) -> None:
    env = FHIRToolEnv(world=hospital, observation_chars=600)
    env.reset(**EPISODE)
    assert "[Shortened:" in env.searchResources("Patient", {"_count": 50})


def test_infrastructure_failures_have_no_reward(hospital: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise InfraError("the server is down")

    env = FHIRToolEnv(world=hospital)
    for name in ("start", "step", "truncate"):
        with monkeypatch.context() as patch:
            patch.setattr(Episode, name, fail)
            env.reset(**EPISODE)
            if name == "step":
                assert "The server failed" in env.searchResources("Patient")
            assert env.get_reward() is None
            assert env.result is not None and env.result.stop_reason == "infra_error"
    env.reset(**EPISODE)
    assert env.get_reward() == 0.0


def test_test_variations_and_running_servers_are_refused(env: FHIRToolEnv) -> None:
    with pytest.raises(ArgumentError, match="never trained on"):
        env.reset(**EPISODE | {"variation": 1_000})
    with pytest.raises(TrainingError, match="one episode at a time"):
        FHIRToolEnv(fhir_server="http://localhost:8080/fhir")


@pytest.mark.parametrize(("system", "roles"), [(None, ["system", "user"]), ("Hi.", ["system", "user"]), ("", ["user"])])
def test_the_system_prompt_of_rows_is_that_of_the_agents(hospital: World, system: str | None, roles: list[str]) -> None:
    chat = make_row(EpisodeChoice(ENV_ID, "02a", 0), "environment_factory", system)["prompt"]
    context = EpisodeContext(ENV_ID, "02a", 0, hospital, 0, 3, "")
    assert [message["role"] for message in chat] == roles
    assert chat[:-1] == list(make_opening("tools", "", context, system=system).messages[:-1])


def call(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>{END}"


SCRIPTS = [
    [call("searchResources", SEARCH), call("finish", {"answer": []}), f"Done.{END}"],
    [call("finish", {"answer": ["1"]}), call("finish", {"answer": []}), f"Sorry.{END}"],  # acts after the end
    [f"I cannot.{END}"],  # abandons the episode
    [call("searchResources", {"oops": 1}), "<tool_call>"],  # is cut off
]


def tool_trainer(
    tiny: str, hospital: World, out: Path, monkeypatch: pytest.MonkeyPatch, scripts: list[list[str]]
) -> Any:
    """A trainer of the tool environment whose model writes the scripts."""
    configs = OpenConfigs(world=hospital, reward="dense", max_steps=4)
    rows = EpisodeRows(make_curriculum(tasks=NAMES[1:2]), "environment_factory")
    trainer = make_trainer(
        tiny,
        out,
        rows.dataset(2),
        template="qwen3.jinja",
        environment_factory=lambda: FHIRToolEnv(configs, observation_chars=600),
        max_tool_calling_iterations=5,
    )
    live = [iter(texts) for texts in scripts]

    def generate(*_: Any, **__: Any) -> tuple[list[list[int]], None]:
        texts = [next(conversation) for conversation in live]
        live[:] = [conversation for conversation, text in zip(live, texts, strict=True) if "<tool_call>\n" in text]
        return [trainer.processing_class.encode(text) for text in texts], None

    monkeypatch.setattr(trainer, "_generate_single_turn", generate)
    return trainer


def test_trl_masks_what_the_tools_return(
    tiny: str, hospital: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = tool_trainer(tiny, hospital, tmp_path, monkeypatch, SCRIPTS)
    batches = capture(trainer, monkeypatch)
    before = weights(trainer.model)
    trainer.train()
    (batch,) = batches
    assert said_texts(batch, trainer.processing_class) == ["".join(texts) for texts in SCRIPTS]
    everything = [trainer.processing_class.decode(ids) for ids in batch["completion_ids"]]
    assert "HTTP 200 OK" in everything[0] and "the episode is over" in everything[1]
    results = [env.result for env in trainer.environments]
    assert [result.stop_reason for result in results] == ["finished", "finished", "unfinished", "unfinished"]
    assert [result.reward for result in results] == [0.0] * 4
    assert before.keys() == weights(trainer.model).keys()
    first = trainer.processing_class.decode(batch["prompt_ids"][0])
    assert "You have at most 4 tool calls." in first and '"name": "searchResources"' in first


def test_failing_servers_yield_no_gradient(
    tiny: str, hospital: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise InfraError("the server is down")

    trainer = tool_trainer(tiny, hospital, tmp_path, monkeypatch, [[f"I cannot.{END}"]] * 4)
    monkeypatch.setattr(Episode, "start", fail)
    batches = capture(trainer, monkeypatch)
    before = weights(trainer.model)
    trainer.train()
    after = weights(trainer.model)
    assert batches[0]["advantages"].tolist() == [0.0] * 4
    assert all((before[name] == after[name]).all() for name in before)
