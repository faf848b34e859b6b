"""What the evaluator and the reflector read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import fhir_gym
from fhir_gym.actions import GRAMMAR, Invalid
from fhir_gym.agents import EpisodeContext, Reply, ScriptedAgent
from fhir_gym.reflexion.reviewing import evaluator_message, reflector_message
from fhir_gym.rollouts import Rollout
from fhir_gym.types import Json


@pytest.fixture(scope="module")
def rollout() -> Iterator[Rollout]:
    agent = ScriptedAgent(lambda observation, step: f"GET /Patient?_count={step + 1}" if step < 9 else "FINISH([])")
    (found,) = fhir_gym.run("FHIRAgent/Appointment-v0", agent, tasks="03", variations=0)
    yield found


def test_the_evaluator_reads_the_whole_run(rollout: Rollout) -> None:
    text = evaluator_message(rollout, 60_000)
    assert rollout.prompt in text
    assert text.count("\nResult ") == 10
    assert "Action 1:\nGET /Patient?_count=1\n" in text
    assert rollout.verdict is not None and rollout.verdict.explanation in text
    assert "more characters)" in text  # a long observation is shortened


class ToolCaller:
    """Calls tools instead of writing actions."""

    name = "caller"
    settings: Mapping[str, Json] = {}

    def reset(self, observation: str, context: EpisodeContext) -> None:
        self._calls: Iterator[tuple[str, dict[str, Any]]] = iter(
            (
                ("searchResources", {"resourceType": "Patient", "params_json": {"_count": "1"}}),
                ("searchResource", {}),
                ("finish", {"answer": []}),
            )
        )

    def act(self, observation: str) -> Reply:
        name, arguments = next(self._calls)
        action = GRAMMAR.from_tool_call(name, arguments)
        text = f"{name}({json.dumps(arguments)})" if isinstance(action, Invalid) else None
        return Reply(action, text, name)


def test_tool_calls_are_shown_as_the_agent_made_them() -> None:
    (rollout,) = fhir_gym.run("FHIRAgent/Appointment-v0", ToolCaller(), tasks="03", variations=0)
    text = evaluator_message(rollout, 60_000)
    assert (
        'Action 1:\nsearchResources({"resourceType": "Patient", "params_json": {"_count": "1"}})\nResult 1:\nHTTP 200'
        in text
    )
    assert "Action 2:\nsearchResource({})" in text
    assert 'Action 3:\nfinish({"answer": []})' in text


def test_the_middle_of_a_long_run_is_left_out(rollout: Rollout) -> None:
    text = reflector_message(rollout, "It never created a Condition.", 8_000)
    assert len(text) < 14_000
    assert "turns in the middle are left out" in text
    assert "Action 1:" in text and "Action 10:\nFINISH([])" in text
    assert text.endswith("Critique of the evaluator:\nIt never created a Condition.")
