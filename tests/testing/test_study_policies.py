"""The simulated model of scripted studies: its mistakes are deterministic, and knowledge makes them rarer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from fhir_gym.errors import FhirGymError
from fhir_gym.fhir import World
from fhir_gym.tasks import get_task
from fhir_gym.testing import StudyModel

ENV_ID = "FHIRAgent/Appointment-v0"
EPISODES = [(ENV_ID, key, number, 0) for key in ("01", "02a", "04a") for number in range(3)]


@pytest.fixture(scope="module")
def model(hospital: World) -> StudyModel:
    return StudyModel({ENV_ID: hospital}, EPISODES)


def prompts(world: World) -> list[str]:
    return [get_task(ENV_ID, key).variation(number, world, 0).prompt for _, key, number, _ in EPISODES]


def request(prompt: str, tools: tuple[str, ...], *later: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
    offered = [{"type": "function", "function": {"name": name}} for name in tools]
    messages = [{"role": "system", "content": "Work."}, {"role": "user", "content": f"{prompt}\n\nBe quick."}, *later]
    return {"model": "m", "messages": messages, "tools": offered, "seed": seed}


def test_equal_requests_get_equal_replies(hospital: World, model: StudyModel) -> None:
    for prompt in prompts(hospital):
        body = request(prompt, ("searchResources", "finish"))
        assert model(body) == model(body)
    replies = {str(model(request(prompts(hospital)[0], ("finish",), seed=seed))) for seed in range(20)}
    assert len(replies) > 1


def test_lookups_come_first_if_they_are_offered(hospital: World, model: StudyModel) -> None:
    first = [model(request(prompt, ("getMacroReflections", "finish"))) for prompt in prompts(hospital)]
    names = [reply.calls[0][0] for reply in first if not isinstance(reply, str)]
    assert 0 < names.count("getMacroReflections") <= len(names)


def test_unknown_prompts_are_errors(model: StudyModel) -> None:
    with pytest.raises(FhirGymError, match="no announced episode has this prompt"):
        model(request("Write a poem.", ("finish",)))


def test_the_evaluator_and_the_reflector_reply_with_json(model: StudyModel) -> None:
    run = 'POST /Slot\n{"resourceType": "Slot"}\nHTTP 400 Bad Request\nGET /Schedule?x=1\nHTTP 200 OK'
    judge = {"role": "system", "content": "Reply with execution_quality"}
    reflect = {"role": "system", "content": "Write micro and macro lessons"}
    asked = {"role": "user", "content": run}
    critique = json.loads(str(model({"messages": [judge, asked]})))
    assert critique["execution_quality"] == 4 and critique["failure_modes"]
    plain = json.loads(str(model({"messages": [reflect, asked]})))
    assert {micro["resource_type"] for micro in plain["micro"]} == {"Slot", "Schedule"}
    tools = [{"function": {"name": "getStructureDefinition"}}]
    first = model({"messages": [reflect, asked], "tools": tools})
    assert not isinstance(first, str) and first.calls == [("getStructureDefinition", {"resourceType": "Slot"})]
    answered = [reflect, asked, {"role": "assistant"}, {"role": "tool", "content": "Slot …"}]
    assert "according to FHIR R4" in str(model({"messages": answered, "tools": tools}))
