from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from string import Formatter
from typing import Any

import gymnasium as gym
import pytest

from fhir_gym import Episode, read_rollouts, run, write_rollouts
from fhir_gym.errors import ArgumentError, FhirGymError, TaskError
from fhir_gym.fhir import World
from fhir_gym.tasks import Task, get_task, task_keys
from fhir_gym.training.config import TaskName
from fhir_gym.training.curriculum import Curriculum, other_phrasings
from fhir_gym.types import Phrasing

PACKS = tuple(f"FHIRAgent/{name}-v0" for name in ("Appointment", "GeneticTesting", "MedAgentBench", "ActionReasoning"))
CLINIC = PACKS[0]
MAX_CHARS = 400
REDUNDANT = {"given", "family", "relation", "system", "wait", "period"}
"""Values of the long prompts that repeat another value, or that do not identify anything."""
OpenWorld = Callable[[str], World]


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


def brief_of(task: Task[Any]) -> str:
    assert task.brief is not None, f"task {task.key} has no brief phrasing"
    return task.brief


@pytest.mark.parametrize("env_id", PACKS)
def test_a_brief_prompt_is_one_sentence_and_the_form_of_the_answer(env_id: str) -> None:
    for key in task_keys(env_id):
        brief = brief_of(get_task(env_id, key))
        request, found, form = brief.partition(" Finish with FINISH([")
        assert found and form.endswith("."), key
        assert len(brief) <= MAX_CHARS, key
        assert re.findall(r"[.?!](?=\s|$)", request.replace("Dr. ", "")) in (["."], ["?"]), key
        assert request.endswith((".", "?")), key


@pytest.mark.parametrize("env_id", PACKS)
def test_a_brief_prompt_contains_every_value_that_all_long_prompts_contain(env_id: str) -> None:
    for key in task_keys(env_id):
        task = get_task(env_id, key)
        common = set.intersection(*map(placeholders, task.prompts)) - REDUNDANT
        values = placeholders(brief_of(task))
        if {"given", "family"} <= set.union(*map(placeholders, task.prompts)):
            assert values & {"patient", "doctor", "given", "name"}, key
        assert common <= values, key
        assert ("period" in placeholders(task.prompts[0])) == ("taken" in values), key


@pytest.mark.parametrize("env_id", [*PACKS[:3], pytest.param(PACKS[3], marks=pytest.mark.slow)])
def test_brief_prompts_are_much_shorter_and_change_nothing_else(own_world: OpenWorld, env_id: str) -> None:
    world, shares = own_world(env_id), []
    for key in task_keys(env_id):
        task = get_task(env_id, key)
        long, brief = task.variation(3, world, 0), task.variation(3, world, "brief")
        assert brief.phrasing == "brief"
        assert (brief.params, brief.setup, brief.next_id) == (long.params, long.setup, long.next_id)
        assert brief.prompt.startswith("Present: 2023-11-13T10:15:00Z, a Monday; all times are UTC.\n\n")
        assert "{" not in brief.prompt
        shares.append(len(brief.prompt) / len(long.prompt))
        assert task.variation(3, world).phrasing != "brief"
    assert sum(shares) / len(shares) <= 0.6


def test_the_reference_solutions_succeed_and_the_record_names_the_phrasing(hospital: World, tmp_path: Path) -> None:
    keys = ("02a", "09b", "14a", "16c")
    played = run(CLINIC, "gold", tasks=keys, variations=[5], phrasing="brief", world=hospital)
    write_rollouts(tmp_path / "r.jsonl", played)
    rollouts = list(read_rollouts(tmp_path / "r.jsonl"))
    assert [(rollout.task.key, rollout.task.phrasing, rollout.success) for rollout in rollouts] == [
        (k, "brief", True) for k in keys
    ]
    assert "Please cancel the waitlist entry of" in rollouts[-1].prompt


def test_an_environment_takes_the_brief_phrasing(hospital: World) -> None:
    env = gym.make(CLINIC, tasks="01", world=hospital, phrasing="brief").unwrapped
    assert "Please register a new patient:" in env.reset(seed=1)[0]
    env.close()
    env = gym.make(CLINIC, tasks="01", world=hospital).unwrapped
    text, info = env.reset(seed=1, options={"variation": 2, "phrasing": "brief"})
    assert "Please register a new patient:" in text
    assert info["phrasing"] == "brief"
    env.close()


@pytest.mark.parametrize(
    ("env_id", "phrasing", "message"),
    [
        (CLINIC, "short", r"^phrasing must be a whole number, 'brief' or 'paraphrase', not 'short'$"),
        (CLINIC, 11, r"^task 01 has phrasings 0 to 10, 'brief', 'paraphrase', but not 11$"),
        ("FHIRAgent/Shift-v0", "brief", r"^task \S+ has phrasings 0 to \d, but not 'brief'$"),
    ],
)
def test_a_phrasing_that_does_not_exist_is_refused(env_id: str, phrasing: Any, message: str) -> None:
    with pytest.raises(FhirGymError, match=message):
        Episode(env_id, task=task_keys(env_id)[0], phrasing=phrasing)


def test_a_task_without_a_brief_text_refuses_the_phrasing(hospital: World) -> None:
    base = type(get_task(CLINIC, "01"))
    with pytest.raises(ArgumentError, match="but not 'brief'"):
        type("Wordy", (base,), {"brief": None})().variation(0, hospital, "brief")
    with pytest.raises(TaskError, match="brief of task class Empty must be a non-empty string or None"):
        type("Empty", (base,), {"brief": ""})


@pytest.mark.parametrize("phrasing", ["brief", "paraphrase"])
def test_training_draws_or_holds_out_a_named_phrasing(phrasing: Phrasing) -> None:
    name = TaskName(CLINIC, "01")
    assert other_phrasings([name], phrasing) == {name: (0, 1, 2)}
    curriculum = Curriculum([name], range(10), phrasings={name: [phrasing]})
    assert curriculum.draw().phrasing == phrasing
