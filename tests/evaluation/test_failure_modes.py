from __future__ import annotations

from collections.abc import Sequence

import pytest

from fhir_gym import make_agent, run
from fhir_gym.agents import ScriptedAgent
from fhir_gym.evaluation import FAILURE_MODES, EpisodeMetrics, FailureModes, ToolCalls
from fhir_gym.evaluation.failure_modes import OTHER, failure_modes
from fhir_gym.tasks import ToolUsage
from fhir_gym.tasks.grading.tool_usage import Tool
from fhir_gym.testing import ChatServer, ScriptedReply
from tests.evaluation.records import used

SEARCH: tuple[Tool, str, int, int] = ("search", "Patient", 1, 0)


@pytest.mark.parametrize(
    ("usage", "errors", "modes"),
    [
        (used(SEARCH), 0, ["other"]),
        (used(SEARCH, selected=False, ordered=False), 0, ["incorrect tool selection"]),
        (used(SEARCH, ordered=False), 0, ["incorrect tool order"]),
        (used(SEARCH, untouched=("Slot",)), 0, ["incorrect resource type"]),
        # The resource type is not examined if the tools are wrong.
        (used(selected=False, ordered=False, untouched=("Slot",)), 0, ["incorrect tool selection"]),
        (used(SEARCH, ordered=False, untouched=("Slot",)), 0, ["incorrect tool order", "incorrect resource type"]),
        (used(SEARCH, prohibited=("delete",)), 2, ["prohibited tool used", "tool errors"]),
        (used(SEARCH, selected=None, ordered=None), 0, ["other"]),
        (used(SEARCH, selected=None, ordered=None, untouched=("Slot",)), 0, ["incorrect resource type"]),
    ],
)
def test_modes_of_a_failed_episode(usage: ToolUsage, errors: int, modes: list[str]) -> None:
    assert list(failure_modes(usage, errors=errors)) == modes


def test_an_episode_may_count_in_several_modes() -> None:
    modes = FailureModes.of([(FAILURE_MODES[:2], True), (FAILURE_MODES[1:3], True), ((OTHER,), False)])
    assert (modes.failed, modes.unknown) == (3, 1)
    assert list(modes.counts.values()) == [1, 2, 1, 0, 0, 1]


ACTIONS: dict[str, tuple[Sequence[str], Sequence[tuple[str, dict[str, object]]], list[str], list[ToolCalls]]] = {
    "read instead of search": (
        ["GET /Patient/none", "FINISH([])"],
        [("getResourceById", {"resourceType": "Patient", "resourceId": "none"}), ("finish", {"answer": []})],
        ["incorrect tool selection", "tool errors"],
        [ToolCalls("read", "Patient", 1, 1)],
    ),
    "another resource type": (
        ["GET /Slot?_count=1", "FINISH([])"],
        [("searchResources", {"resourceType": "Slot", "params_json": {"_count": "1"}}), ("finish", {"answer": []})],
        ["incorrect resource type"],
        [ToolCalls("search", "Slot", 1, 0)],
    ),
}


@pytest.mark.parametrize("case", ACTIONS)
def test_a_text_action_and_a_tool_call_have_the_same_modes(case: str) -> None:
    texts, calls, modes, tools = ACTIONS[case]
    rollouts = [*run("FHIRAgent/Appointment-v0", ScriptedAgent(texts), tasks="02a", variations=[0])]
    with ChatServer([ScriptedReply(calls=[call]) for call in calls]) as server:
        agent = make_agent("chat", model="scripted", base_url=server.base_url, protocol="tools")
        rollouts += run("FHIRAgent/Appointment-v0", agent, tasks="02a", variations=[0])
    for rollout in rollouts:
        episode = EpisodeMetrics.of(rollout)
        assert [*episode.failure_modes] == modes and episode.tools_known
        assert [*episode.tools] == tools


def test_an_invalid_tool_call_is_a_failed_call() -> None:
    calls: list[tuple[str, dict[str, object]]] = [
        ("searchResources", {"resourceType": 5}),
        ("lookUp", {}),
        ("finish", {"answer": 3}),
        ("finish", {"answer": []}),
    ]
    with ChatServer([ScriptedReply(calls=[call]) for call in calls]) as server:
        agent = make_agent("chat", model="scripted", base_url=server.base_url, protocol="tools")
        (rollout,) = run("FHIRAgent/Appointment-v0", agent, tasks="02a", variations=[0])
    episode = EpisodeMetrics.of(rollout)
    assert [*episode.tools] == [ToolCalls("other", "", 1, 1), ToolCalls("search", "", 1, 1)]
    assert (episode.calls, episode.errors) == (2, 2)
    assert "tool errors" in episode.failure_modes
