"""Bounds for the success of a policy on a menu: the reference solution if it is on the menu, and random choices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

import fhir_gym
from fhir_gym.rollouts import Rollout
from fhir_gym.training.config import TaskName
from fhir_gym.training.evaluation import Evaluation, Outcome
from fhir_gym.training.menu.actions import meaning
from fhir_gym.training.menu.env import MenuEnv
from fhir_gym.training.menu.menu import Menu
from fhir_gym.training.menu.templates import Templates


def menu_ceiling(
    templates: Templates, tasks: Sequence[TaskName], variations: Sequence[int], *, distractors: int = 0
) -> Evaluation:
    """Return the share of episodes in which the menu contains the reference solution's action at every step.

    An episode may have another winning path, so the share is a lower bound.

    Args:
        templates: The templates.
        tasks: The tasks.
        variations: The variations of each task.
        distractors: As for `MenuEnv`.
    """
    menu = Menu(templates, distractors)
    packs = dict.fromkeys(name[0] for name in tasks)
    keys = {env_id: [name[1] for name in tasks if name[0] == env_id] for env_id in packs}
    runs = (fhir_gym.run(env_id, "gold", tasks=keys[env_id], variations=variations) for env_id in packs)
    return Evaluation.from_outcomes(_outcome(menu, rollout) for rollouts in runs for rollout in rollouts)


def _outcome(menu: Menu, rollout: Rollout) -> Outcome:
    session = menu.start(rollout.prompt)
    possible, sizes = bool(rollout.success), []
    for turn in rollout.turns:
        texts = [candidate.text for candidate in session.candidates()]
        sizes.append(len(texts))
        possible = possible and _contains(texts, turn.action)
        session.add(turn.action, turn.observation)
    metrics = {"steps": float(len(sizes)), "places": float(np.mean(sizes))}
    return Outcome(rollout.env_id, rollout.task.key, rollout.task.variation, possible, metrics)


def _contains(texts: Iterable[str], action: str) -> bool:
    texts = list(texts)
    return action in texts or meaning(action) in map(meaning, texts)


def random_over_menu(env: MenuEnv, variations: Sequence[int], seed: int = 0) -> Evaluation:
    """Return the success of a policy that chooses uniformly among the filled places.

    Args:
        env: The environment; its tasks are played.
        variations: The variations of each task.
        seed: Seed of the choices.
    """
    rng = np.random.default_rng(seed)
    outcomes = []
    for name in env.tasks:
        for number in variations:
            env.reset(options={"env_id": name.env_id, "task": name.task, "variation": number})
            done, reward = False, 0.0
            info: dict[str, Any] = {}
            while not done:
                _, reward, terminated, truncated, info = env.step(rng.integers(max(1, len(env.places))))
                done = terminated or truncated
            metrics = {"steps": float(info["step"]), "reward": float(reward)}
            metrics["invalid_actions"] = float(info["invalid_actions"])
            outcomes.append(Outcome(name.env_id, name.task, number, bool(info["success"]), metrics))
    return Evaluation.from_outcomes(outcomes)
