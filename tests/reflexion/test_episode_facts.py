"""What is particular to an episode."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import fhir_gym
from fhir_gym import worlds
from fhir_gym.agents import ScriptedAgent
from fhir_gym.fhir import World
from fhir_gym.reflexion import InstanceData
from fhir_gym.reflexion.training import EpisodeFacts, guarded_data, people_of, public_texts
from fhir_gym.tasks import get_pack, task_set

PACK = "FHIRAgent/Appointment-v0"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with worlds.load(get_pack(PACK).world) as world:
        yield world


def test_the_request_has_no_fixed_parts(world: World) -> None:
    facts = EpisodeFacts.of(PACK, "04b", 0, 0, world)
    assert facts.request.startswith("Does ") and "Present:" not in facts.request
    assert task_set(PACK)["04b"].answer_instructions not in facts.request


def test_everything_that_the_agent_reads_or_writes_belongs_to_the_episode(world: World) -> None:
    actions = [
        "GET /Practitioner?_count=3",
        'POST /Patient\n{"resourceType": "Patient", "name": [{"family": "Qarth"}]}',
    ]
    agent = ScriptedAgent(lambda observation, step: [*actions, "FINISH([])"][step])
    (rollout,) = fhir_gym.run(PACK, agent, tasks="03", variations=0, world=world)
    facts = EpisodeFacts.of(PACK, "03", 0, 0, world)
    bundle = json.loads(rollout.turns[0].observation.partition("\n")[2])
    families = [entry["resource"]["name"][0]["family"] for entry in bundle["entry"]]
    assert len(families) == 3
    own = facts.names_and_ids(rollout)
    for name in (*families, "Qarth", facts.values["patient"]):
        assert own.contains(f"It was {name} again."), name
    assert all(people_of(world).contains(f"It was {name} again.") for name in families)
    assert facts.values["code"] in facts.numbers(rollout)


def test_a_response_that_was_cut_off_is_read_too() -> None:
    data = InstanceData()
    data.add_text('{"resourceType": "Bundle", "entry": [{"name": [{"family": "Qarth", "given": ["Zed", "Ylva"]')
    assert data.contains("It was Qarth again.") and not data.contains("It was nobody again.")


@pytest.mark.slow
def test_test_variations_of_all_tasks_are_guarded(world: World) -> None:
    data = guarded_data([PACK], "1000", {PACK: world})
    for task in task_set(PACK).values():
        variation = task.variation(1000, world)
        assert all(data.is_id(resource["id"]) for resource in variation.setup)
        values = task.prompt_values(variation.params, world)
        if "family" in values:
            assert data.contains(f"The patient {values['given']} {values['family']} is here.")
    assert any("FINISH" in text for text in public_texts([PACK]))


@pytest.mark.parametrize("key", ["03", "05"])
def test_clinical_terms_belong_only_to_their_own_episode(world: World, key: str) -> None:
    facts = EpisodeFacts.of(PACK, key, 0, 0, world)
    text = f"It was {facts.values['display'].lower()} again."
    guarded = InstanceData()
    guarded.add_variation(facts.variation, facts.values, terms=False)
    assert facts.names_and_ids().contains(text)
    assert not guarded.contains(text)
