"""The actions of a menu, and their dependence on prompt and answers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fhir_gym.rollouts import Rollout
from fhir_gym.training.config import TaskName
from fhir_gym.training.menu import PLACES, Menu, MenuEnv, Templates
from fhir_gym.training.menu.env import menu_ceiling, random_over_menu
from fhir_gym.training.menu.features import Features

TEST = range(1000, 1005)


@pytest.mark.parametrize("distractors", [0, 6])
def test_the_reference_solution_is_on_the_menu(templates: Templates, tasks: list[TaskName], distractors: int) -> None:
    ceiling = menu_ceiling(templates, tasks, TEST, distractors=distractors)
    assert ceiling.success == 1.0
    assert ceiling.metrics["places"] > (12 if distractors else 3)


@pytest.mark.parametrize("distractors", [0, 6])
def test_a_menu_has_each_action_once_and_no_earlier_one(
    templates: Templates, rollouts: list[Rollout], distractors: int
) -> None:
    menu = Menu(templates, distractors)
    for rollout in rollouts[::5]:
        session = menu.start(rollout.prompt)
        for turn in rollout.turns:
            texts = [candidate.text for candidate in session.candidates()]
            assert len(texts) == len(set(texts)) <= PLACES
            assert not set(texts) & set(session.view.actions)
            session.add(turn.action, turn.observation)


def test_the_menu_depends_on_prompt_and_answers_only(templates: Templates, rollouts: list[Rollout]) -> None:
    """Two sessions get the same texts from outside an environment; nothing else can reach the menu."""
    env = MenuEnv(templates, [TaskName(rollouts[0].env_id, rollout.task.key) for rollout in rollouts])
    for rollout in rollouts[::7]:
        task = rollout.task
        env.reset(options={"env_id": rollout.env_id, "task": task.key, "variation": task.variation})
        turns: list[tuple[str, str]] = []
        for turn in rollout.turns:
            texts = [candidate.text for candidate in env.places]
            outside = Menu(templates).candidates(rollout.prompt, turns)
            assert texts == [candidate.text for candidate in outside]
            env.step(texts.index(turn.action))
            turns.append((turn.action, turn.observation))


def test_places_do_not_reveal_distractors(templates: Templates, rollouts: list[Rollout]) -> None:
    right: list[float] = []
    wrong: list[float] = []
    for rollout in rollouts:
        few = {candidate.text for candidate in Menu(templates).candidates(rollout.prompt)}
        many = Menu(templates, 6).candidates(rollout.prompt)
        for place, candidate in enumerate(many):
            (right if candidate.text in few else wrong).append(place / len(many))
    assert few and wrong
    assert abs(float(np.mean(right)) - float(np.mean(wrong))) < 0.1


def test_lazy_policies_fail(templates: Templates, tasks: list[TaskName]) -> None:
    env = MenuEnv(templates, tasks, max_steps=8, distractors=6, split="test")
    random = random_over_menu(env, TEST)
    assert random.success <= 0.3
    assert random.metrics["invalid_rate"] == 0.0 == random.metrics["invalid_actions"]
    policies: dict[str, Callable[[], int]] = {
        "the first place": lambda: 0,
        "a fixed kind of action": lambda: max(range(len(env.places)), key=lambda at: env.places[at].template.support),
    }
    for name, choose in policies.items():
        successes = 0
        for task in tasks:
            for variation in TEST:
                env.reset(options={"env_id": task.env_id, "task": task.task, "variation": variation})
                done = False
                while not done:
                    *_, terminated, truncated, info = env.step(choose())
                    done = terminated or truncated
                successes += info["success"]
        assert successes <= 0.3 * len(tasks) * len(TEST), name


SCRIPT = """
import sys, zlib
from fhir_gym.training.menu import MenuEnv, Templates, learn_templates
import fhir_gym
rollouts = list(fhir_gym.run("FHIRAgent/Appointment-v0", "gold", tasks=["02a", "16b"], variations="0-5"))
templates = learn_templates(rollouts)
templates.save(sys.argv[1])
env = MenuEnv(templates, [("FHIRAgent/Appointment-v0", "16b")], distractors=3, max_steps=6)
seen = env.reset(seed=3)[0]
for at in range(6):
    sums = [zlib.crc32(seen[name].tobytes()) for name in ("state", "candidates")]
    print(sums, [candidate.text for candidate in env.places])
    seen = env.step(at)[0]
"""


def test_hash_seeds_change_nothing(tmp_path: Path) -> None:
    outputs = []
    for seed in ("1", "2"):
        path = tmp_path / f"{seed}.json"
        command = [sys.executable, "-c", SCRIPT, str(path)]
        run = subprocess.run(command, capture_output=True, check=True, text=True, env=_environment(seed))
        outputs.append((run.stdout, path.read_bytes()))
    assert outputs[0] == outputs[1]


def _environment(seed: str) -> dict[str, str]:
    return os.environ | {"PYTHONHASHSEED": seed}


def test_features_of_a_menu(templates: Templates, rollouts: list[Rollout]) -> None:
    session = Menu(templates).start(rollouts[0].prompt)
    features = Features(session)
    places = session.candidates()
    rows = features.candidates(places)
    assert rows[: len(places), 0].all() and not rows[len(places) :].any()
    assert len({row.tobytes() for row in rows[: len(places)]}) == len(places)
    assert features.state().any()


def test_a_candidate_says_how_it_was_filled(templates: Templates, rollouts: list[Rollout]) -> None:
    rollout = next(rollout for rollout in rollouts if rollout.task.key == "16c")
    menu = Menu(templates).candidates(rollout.prompt, [(rollout.turns[0].action, rollout.turns[0].observation)])
    update = next(candidate for candidate in menu if candidate.text == rollout.turns[1].action)
    reference = rollout.turns[1].action.partition("\n")[0].removeprefix("PUT /")
    assert update.description == ["path <- pointer 0 ref", "status <- const cancelled", f"pointer 0: {reference}"]
