"""A scripted chat server that plays the agent, the evaluator and the reflector."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from fhir_gym.reflexion import MemoryTrainingConfig, ModelSettings
from fhir_gym.reflexion.reviewing import EVALUATOR_PROMPT, LESSONS_HEADING, REFLECTOR_PROMPT
from fhir_gym.testing import ChatServer, ScriptedReply

Request = Mapping[str, Any]
CRITIQUE = {
    "execution_quality": 2,
    "constraint_adherence": 3,
    "failure_modes": ["finished without an action"],
    "critique": "The agent finished at once.",
}
LESSONS = {
    "micro": [
        {"resource_type": "Condition", "operation": "create", "lesson": "A Condition needs a subject and a code."},
        {"resource_type": "Patient", "operation": "searchResources", "lesson": "Search by family and given together."},
    ],
    "macro": [{"lesson": "Look the records up before you answer."}],
}


def role(request: Request) -> str:
    """Return which role a request is for."""
    system = str(request["messages"][0]["content"])
    if system.startswith(EVALUATOR_PROMPT):
        return "evaluator"
    return "reflector" if system.startswith(REFLECTOR_PROMPT) else "agent"


class Study:
    """Replies of the three roles; a test may replace them.

    The agent searches the patient's conditions and finishes with an empty answer. If it reads lessons, it searches
    patients too.
    """

    def __init__(self) -> None:
        self.agent: Callable[[Request], ScriptedReply | str] = self._agent
        self.evaluator: Callable[[Request], ScriptedReply | str] = lambda request: json.dumps(CRITIQUE)
        self.reflector: Callable[[Request], ScriptedReply | str] = lambda request: json.dumps(LESSONS)

    def __call__(self, request: Request) -> ScriptedReply | str:
        reply: ScriptedReply | str = getattr(self, role(request))(request)
        return reply

    def _agent(self, request: Request) -> ScriptedReply:
        messages = request["messages"]
        prompt = str(messages[1]["content"])
        patient = re.search(r"Patient/(\w+)", prompt)
        searches = [ScriptedReply(calls=[_search("Condition", patient=patient[1] if patient else "none")])]
        if LESSONS_HEADING in prompt:
            searches.append(ScriptedReply(calls=[_search("Patient", _count=1)]))
        done = sum(message["role"] == "assistant" for message in messages)
        return searches[done] if done < len(searches) else ScriptedReply(calls=[("finish", {"answer": []})])


def _search(resource_type: str, **params: Any) -> tuple[str, dict[str, Any]]:
    return "searchResources", {"resourceType": resource_type, "params_json": params}


@pytest.fixture
def study() -> Study:
    return Study()


@pytest.fixture
def server(study: Study) -> Iterator[ChatServer]:
    with ExitStack() as stack:
        yield stack.enter_context(ChatServer(study))


@pytest.fixture
def config(server: ChatServer) -> MemoryTrainingConfig:
    """Two variations of a task that the scripted agent fails (03), and of one in which it succeeds (04b)."""
    return MemoryTrainingConfig(
        agent=ModelSettings(model="scripted", base_url=server.base_url, retries=0),
        env_ids=("FHIRAgent/Appointment-v0",),
        tasks=("03", "04b"),
        guard="1000",
        concurrency=4,
    )
