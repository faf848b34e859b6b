from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("openai")

from fhir_gym.agents import ChatAgent, EpisodeContext, ToolSource, Transformer, Usage, make_agent
from fhir_gym.agents.tool_sources import check_arguments, function_schema
from fhir_gym.errors import FhirGymError, InfraError, TrainingError, UnknownNameError
from fhir_gym.fhir import World
from fhir_gym.rollouts import Budget, ExportSummary, Format, Rollout, export, read_rollouts, run, write_rollouts
from fhir_gym.testing import ChatServer, GoldOverChat, ScriptedReply
from fhir_gym.testing.servers import ReplyPolicy
from fhir_gym.training.examples import make_example
from fhir_gym.types import Json

ENV_ID = "FHIRAgent/Appointment-v0"
SEARCH = ("searchResources", {"resourceType": "Patient", "params_json": {"_count": 1}})
FINISH: tuple[str, Any] = ("finish", {"answer": []})
LOOK = ("look", {"at": "Patient"})


@dataclass
class Shelf:
    """A tool source with the tool ``look``, whose results the test chooses."""

    name: str = "shelf"
    tool: str = "look"
    results: Mapping[str, str] = field(default_factory=dict)
    dead: bool = False
    settings: Mapping[str, Json] = field(default_factory=lambda: {"edition": 1})
    closed: int = 0
    prompts: list[str] = field(default_factory=list)

    def schemas(self) -> list[dict[str, Any]]:
        return [function_schema(self.tool, "Look at a thing.", {"at": {"type": "string"}}, ("at",))]

    async def call(self, name: str, arguments: Mapping[str, Any] | str, context: EpisodeContext | None) -> str:
        if self.dead:
            raise InfraError("the shelf fell down")
        given = check_arguments(self.schemas()[0], arguments)
        if isinstance(given, str):
            return given
        self.prompts.append(context.prompt if context else "")
        return self.results.get(given["at"], f"This is {given['at']}.")

    async def aclose(self) -> None:
        self.closed += 1


def reply(*calls: tuple[str, Any], **members: Any) -> ScriptedReply:
    return ScriptedReply(calls=calls, **members)


def roll(
    world: World, script: Sequence[ScriptedReply | str], *tools: str | ToolSource, max_steps: int = 15, **settings: Any
) -> tuple[Rollout, list[dict[str, Any]]]:
    """Return the rollout of a scripted conversation, and the requests to the chat server."""
    with ChatServer(script) as server:
        agent = ChatAgent("scripted", base_url=server.base_url, tools=tools, backoff=0.001, **settings)
        (rollout,) = run(ENV_ID, agent, tasks="01", variations=0, world=world, max_steps=max_steps)
    return rollout, server.requests


def test_lookups_and_actions_in_any_mixture(hospital: World) -> None:
    shelf = Shelf()
    script: list[ScriptedReply | str] = [
        reply(LOOK, SEARCH, ("look", '{"at": "Slot"}'), SEARCH, LOOK),
        reply(LOOK, FINISH),
    ]
    rollout, requests = roll(hospital, script, "fhir", shelf)
    assert [turn.tool for turn in rollout.turns] == ["searchResources", "searchResources", "finish"]
    looked = [[lookup.result for lookup in turn.lookups] for turn in rollout.turns]
    assert looked == [["This is Patient."], ["This is Slot."], ["This is Patient.", "This is Patient."]]
    assert [lookup.arguments for lookup in rollout.lookups][:2] == ['{"at": "Patient"}', '{"at": "Slot"}']
    assert {(lookup.source, lookup.tool, lookup.error) for lookup in rollout.lookups} == {("shelf", "look", False)}
    assert [turn.reply is None for turn in rollout.turns] == [True] * 3  # both replies begin with a lookup
    assert len(rollout.replies) == 2 and rollout.usage == sum(
        (model_reply.usage for model_reply in rollout.replies if model_reply.usage), Usage()
    )
    assert rollout.messages[:-2] == requests[-1]["messages"]
    assert rollout.messages[-1] == {"role": "tool", "tool_call_id": "call_8_0", "content": "This is Patient."}
    assert shelf.prompts == [rollout.prompt] * 4
    assert [tool["function"]["name"] for tool in requests[0]["tools"]][5:] == ["finish", "look"]
    assert rollout.agent.settings["tools"] == {"shelf": {"edition": 1}}
    assert rollout.schema_version == 3 and rollout.steps == 3 and rollout.stop_reason == "finished"


def test_every_call_gets_its_result_before_the_next_request(hospital: World) -> None:
    script = [reply(SEARCH, LOOK, ("nothing", {}), ("look", "{bad"), SEARCH)]
    _, requests = roll(hospital, script, "fhir", Shelf())
    messages = requests[1]["messages"]
    asked = [call["id"] for message in messages for call in message.get("tool_calls", [])]
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == asked
    assert len(asked) == 5


def test_hostile_arguments_are_answered(hospital: World) -> None:
    hostile: list[tuple[Any, str]] = [
        ("{bad", "not valid JSON"),
        ("[1]", "must be a JSON object"),
        ("", "'at' is missing"),
        ('{"at": "\\ud800"}', "not valid JSON"),
        ({"at": 7}, "must have the type string"),
        ({"at": "x", "<script>alert(1)</script>": "y"}, "unknown argument"),
        ({"at": "x" * 300_000}, "longer than"),
        ('{"at": ' + "[" * 9_000 + "]" * 9_000 + "}", "not valid"),
    ]
    rollout, requests = roll(hospital, [reply(*(("look", arguments) for arguments, _ in hostile))], "fhir", Shelf())
    for lookup, (_, reason) in zip(rollout.lookups, hostile, strict=True):
        assert lookup.error and lookup.result.startswith("Error: ") and reason in lookup.result
        assert "\n" not in lookup.result and len(lookup.result) < 300
    results = [message["content"] for message in requests[1]["messages"][3:]]
    assert results == [lookup.result for lookup in rollout.lookups]
    assert rollout.graded and Rollout.model_validate_json(rollout.line()) == rollout


def test_unknown_tools_are_invalid_actions_that_name_all_tools(hospital: World) -> None:
    rollout, _ = roll(hospital, [reply(("lok", {"at": "x"}))], "fhir", Shelf())
    assert "did you mean 'look'? Known: searchResources" in str(rollout.turns[0].error)


def test_actions_as_text_with_lookups_as_tool_calls(hospital: World) -> None:
    script: list[ScriptedReply | str] = [
        reply(LOOK, SEARCH, content="First I look."),
        "GET /Patient?_count=1",
        "FINISH([])",
    ]
    rollout, requests = roll(hospital, script, Shelf())
    assert [turn.action for turn in rollout.turns] == ["GET /Patient?_count=1", "FINISH([])"]
    first, second = rollout.turns[0].lookups
    assert first.result == "This is Patient." and first.reply and first.reply.message["content"] == "First I look."
    assert second.error and second.source == "" and "unknown tool 'searchResources'" in second.result
    assert [tool["function"]["name"] for tool in requests[0]["tools"]] == ["look"]
    assert requests[0]["messages"][1]["content"] == f"{rollout.first_observation}\nA tool call counts as an action."
    assert "write an action as plain text" in requests[0]["messages"][0]["content"].lower()
    assert rollout.messages[:-1] == requests[-1]["messages"]


def test_lookups_count_towards_the_step_limit(hospital: World) -> None:
    script = [reply(LOOK), reply(LOOK, SEARCH), reply(LOOK), reply(LOOK, FINISH), reply(FINISH)]
    rollout, requests = roll(hospital, script, "fhir", Shelf(), max_steps=5)
    assert (rollout.stop_reason, rollout.steps, len(rollout.lookups)) == ("step_limit", 1, 4)
    assert len(rollout.final_lookups) == 2 and rollout.graded and rollout.reward == 0.0 and rollout.error is None
    assert len(requests) == 4 and rollout.messages == requests[-1]["messages"] + [rollout.replies[-1].message]
    assert rollout.usage is not None and rollout.usage.completion == sum(
        model_reply.usage.completion for model_reply in rollout.replies if model_reply.usage
    )


def test_an_action_may_be_the_last_step(hospital: World) -> None:
    rollout, _ = roll(hospital, [reply(LOOK, LOOK), reply(FINISH)], "fhir", Shelf(), max_steps=3)
    assert rollout.stop_reason == "finished" and rollout.steps == 1


def test_lookups_that_do_not_count_have_a_limit_of_their_own(hospital: World) -> None:
    script = [reply(LOOK)] * 40
    settings: dict[str, Any] = {"count_lookups": False, "max_lookups": 4}
    rollout, requests = roll(hospital, script, "fhir", Shelf(), max_steps=3, **settings)
    assert [lookup.error for lookup in rollout.lookups] == [False] * 4 + [True] * 3  # refused lookups are steps
    assert "you have used all 4 calls of look; act without them" in rollout.lookups[-1].result
    assert (rollout.stop_reason, rollout.steps, rollout.graded) == ("step_limit", 0, True)
    prompt = requests[0]["messages"][1]["content"]
    assert prompt.endswith("at most 3 tool calls. Calls of look do not count, but you have at most 4 of them.")
    assert rollout.agent.settings["count_lookups"] is False and rollout.agent.settings["max_lookups"] == 4
    enough, _ = roll(
        hospital, [reply(*[LOOK] * 4), reply(SEARCH, SEARCH, FINISH)], "fhir", Shelf(), max_steps=3, **settings
    )
    assert (enough.stop_reason, enough.steps) == ("finished", 3)


def test_long_results_are_shortened_to_the_context(hospital: World) -> None:
    shelf = Shelf(results={"Patient": "element " * 100_000, "odd": "a\ud800b"})
    script = [reply(LOOK), reply(("look", {"at": "odd"}))]
    rollout, requests = roll(hospital, script, "fhir", shelf, context_tokens=8_000)
    first, odd = rollout.lookups
    assert first.result.endswith("characters are omitted. To read the rest, ask for less at a time.]")
    assert 1_000 < len(first.result) < 20_000 and requests[1]["messages"][-1]["content"] == first.result
    assert odd.result == "a\\ud800b"
    unlimited, _ = roll(hospital, script, "fhir", shelf)
    assert len(unlimited.lookups[0].result) <= 100_000


def test_lookups_that_fill_the_context_truncate_the_episode(hospital: World) -> None:
    shelf = Shelf(results={"Patient": "element " * 10_000})
    rollout, _ = roll(hospital, [reply(LOOK)] * 9, "fhir", shelf, context_tokens=4_000)
    assert rollout.stop_reason == "context_limit" and rollout.graded and rollout.final_lookups


def test_a_shortened_observation_is_recorded_when_lookups_end_the_episode(hospital: World) -> None:
    script = [reply(("searchResources", {"resourceType": "Patient"})), reply(LOOK), reply(LOOK)]
    rollout, requests = roll(hospital, script, "fhir", Shelf(), max_steps=2, observation_chars=2_000)
    assert rollout.turns[0].shown is not None and len(rollout.turns[0].shown) <= 2_000
    assert rollout.messages == requests[-1]["messages"] + [rollout.replies[-1].message]


def test_a_dead_source_gives_a_record_without_reward(hospital: World) -> None:
    shelf = Shelf(dead=True)
    rollout, _ = roll(hospital, [reply(SEARCH), reply(LOOK, FINISH)], "fhir", shelf)
    assert (rollout.stop_reason, rollout.error, rollout.reward) == ("infra_error", "the shelf fell down", None)
    assert rollout.steps == 1 and rollout.final_lookups[0].error
    assert rollout.usage is not None and len(rollout.replies) == 2  # the tokens of the lost reply are counted
    assert shelf.closed == 1


def test_the_tokens_of_lookups_count_towards_the_budget(hospital: World) -> None:
    with ChatServer([reply(LOOK)] * 2) as server:
        agent = ChatAgent("scripted", base_url=server.base_url, tools=["fhir", Shelf()])
        settings: dict[str, Any] = {"tasks": "01", "variations": "0-2", "world": hospital, "max_steps": 2}
        rollouts = list(run(ENV_ID, agent, concurrency=1, budget=Budget(tokens=1), **settings))
    assert [(rollout.steps, rollout.stop_reason) for rollout in rollouts] == [(0, "step_limit")]


def test_resume_repeats_lost_episodes_and_other_sources(hospital: World, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with ChatServer([reply(LOOK), reply(FINISH)]) as server:

        def missing(shelf: Shelf) -> int:
            agent = ChatAgent("scripted", base_url=server.base_url, tools=["fhir", shelf])
            return write_rollouts(
                path, run(ENV_ID, agent, tasks="01", variations="0-1", world=hospital, resume=path), timings=False
            )

        assert missing(Shelf(dead=True)) == 2  # without verdict
        assert missing(Shelf()) == 2
        assert missing(Shelf()) == 0
        assert missing(Shelf(settings={"edition": 2})) == 2  # another edition is another agent
    graded = [rollout for rollout in read_rollouts(path) if rollout.graded]
    assert len(graded) == 4 and all(len(rollout.lookups) == 1 for rollout in graded)


@pytest.mark.slow
def test_records_are_the_same_with_and_without_workers(hospital: World) -> None:
    with ChatServer([reply(("listResources", {}), SEARCH), reply(FINISH)]) as server:
        agent = ChatAgent("scripted", base_url=server.base_url, tools=["fhir", "spec"])
        again = [
            sorted(
                rollout.line(timings=False)
                for rollout in run(ENV_ID, agent, tasks="01", variations="0-1", world=hospital, workers=workers)
            )
            for workers in (0, 0, 1)
        ]
    assert again[0] == again[1] == again[2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tools": ["fhir"], "protocol": "text"}, "leave fhir out of tools"),
        ({"tools": ["memory"]}, "needs a memory file"),
        ({"tools": ["spec"], "memory": "m.jsonl"}, "add memory to tools"),
        ({"tools": ["specs"]}, "unknown tool source 'specs'; did you mean 'spec'?"),
        ({"tools": ["spec", "spec"]}, "two tool sources have the name spec"),
        ({"tools": [Shelf(), Shelf(name="rack")]}, "shelf and rack both have a tool look"),
        ({"tools": [Shelf(tool="finish")]}, "fhir and shelf both have a tool finish"),
        ({"tools": [Shelf(tool="a tool\n")]}, "providers accept only names"),
        ({"tools": ["spec"], "max_lookups": 0}, "max_lookups must be at least 1"),
        ({"tools": 7}, "tools of agent chat should be"),
        ({"tools": ["spec"], "protocol": "tool"}, "unknown protocol"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(FhirGymError) as error:
        make_agent("chat", model="m", base_url="http://localhost:1/v1", **settings)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_the_local_agent_has_no_tool_sources() -> None:
    pytest.importorskip("torch")
    with pytest.raises(FhirGymError, match="the agent local has no tool sources"):
        make_agent("local", model="m", tools=["spec"])


def test_fhir_alone_is_the_tool_protocol() -> None:
    agents = [
        make_agent("chat", model="m", base_url="http://localhost:1/v1", **settings)
        for settings in (
            {"tools": "fhir"},
            {"tools": ["fhir"]},
            {"protocol": "tools"},
            {"tools": (), "protocol": "tools"},
        )
    ]
    assert [agent.settings for agent in agents] == [{"model": "m", "protocol": "tools"}] * 4
    mixed = make_agent("chat", model="m", base_url="http://localhost:1/v1", tools="fhir, spec", protocol="tools")
    assert isinstance(mixed.settings["tools"], dict) and list(mixed.settings["tools"]) == ["spec"]
    assert json.loads(json.dumps(dict(pickle.loads(pickle.dumps(mixed)).settings))) == dict(mixed.settings)
    with pytest.raises(UnknownNameError):
        make_agent("chat", model="m", base_url="http://localhost:1/v1", tools="fhir,mind")


def looking_up(policy: ReplyPolicy) -> ReplyPolicy:
    """Return a policy that looks something up before its first action and together with an action."""

    def policy_with_lookups(request: Mapping[str, Any]) -> ScriptedReply | str:
        if len(request["messages"]) == 2:
            return reply(LOOK, content="I look first.")
        said = policy(request)
        return said if isinstance(said, str) else reply(LOOK, *said.calls, LOOK)

    return policy_with_lookups


@pytest.mark.parametrize("tools", [["fhir"], []])
def test_solutions_with_lookups_become_datasets_of_the_whole_conversation(hospital: World, tools: list[str]) -> None:
    with ChatServer(looking_up(GoldOverChat(hospital, [(ENV_ID, "01", 0)]))) as server:
        agent = ChatAgent("scripted", base_url=server.base_url, tools=[*tools, Shelf()])
        (rollout,) = run(ENV_ID, agent, tasks="01", variations=0, world=hospital)
    assert rollout.success and rollout.lookups
    (row,) = export([rollout], "tools")
    assert [tool["function"]["name"] for tool in row["tools"]][-2:] == ["finish", "look"]
    asked = [call for message in row["messages"] for call in message.get("tool_calls", [])]
    answered = {message["tool_call_id"]: message for message in row["messages"] if message["role"] == "tool"}
    assert [call["function"]["name"] for call in asked].count("look") == len(rollout.lookups) + bool(tools)
    for call in asked[:-2] if tools else asked[:-1]:  # the model read no result of its last action
        assert isinstance(call["function"]["arguments"], dict)
        assert answered[call["id"]]["name"] == call["function"]["name"]
    assert row["messages"][2]["content"] == "I look first."
    others: list[Format] = ["messages", "completion"]
    for format in others:
        summary = ExportSummary()
        assert list(export([rollout], format, summary=summary)) == []
        assert summary.left_out == {"lookups, which only the format tools can express": 1}
    with pytest.raises(TrainingError, match="task 01, variation 0 has lookups"):
        make_example(rollout, cast(Transformer, None))
