"""Which episodes a run is made of."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

from fhir_gym.agents import Agent, ConcurrentAgent
from fhir_gym.arguments import require_url, require_whole
from fhir_gym.episode import Rules
from fhir_gym.errors import FhirGymError
from fhir_gym.fhir import World
from fhir_gym.rollouts.record import Rollout
from fhir_gym.tasks import (
    Grading,
    RewardRule,
    choose_tasks,
    offered_tasks,
    require_grading,
    require_phrasing,
    task_set,
)
from fhir_gym.types import Json

__all__ = ["Job", "Plan", "numbers", "plan"]

_RANGE = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?\Z")

_MOST = 1_000_000
"""Longest range of variations."""


@dataclass(frozen=True, slots=True)
class Job:
    """One episode to do."""

    task: str
    variation: int
    repeat: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Episodes to do, and how.

    Attributes:
        env_id: The pack.
        jobs: The episodes in order.
        rules: How they end and what they earn.
        seed: What each episode's own seed is made from.
        fhir_server: Base url of a running server, None for the embedded one.
        phrasing: Which of each task's prompts is used; None for each variation's own.
        task_file: A benchmark's own task file; None for the tasks of the pack.
        funcs_file: The function list that belongs to it.
        named: Whether a user asked for these very tasks.
    """

    env_id: str
    jobs: tuple[Job, ...]
    rules: Rules
    seed: int = 0
    fhir_server: str | None = None
    phrasing: int | None = None
    task_file: str | Path | None = None
    funcs_file: str | Path | None = None
    named: bool = False

    def offered(self, world: World) -> Plan:
        """The same without the tasks that a world does not offer.

        Raises:
            TaskError: It offers none, or not all that a user asked for.
        """
        if not self.jobs:
            return self
        known = task_set(self.env_id, self.task_file, self.funcs_file)
        keys = tuple(dict.fromkeys(job.task for job in self.jobs))
        offered = offered_tasks(self.env_id, known, keys, world, self.jobs[0].variation, named=self.named)
        return replace(self, jobs=tuple(job for job in self.jobs if job.task in offered))

    def includes(self, rollout: Rollout, agent: Agent | ConcurrentAgent, world: World) -> bool:
        """Whether a rollout is what this plan would make with an agent in a world: for `completed`."""
        rules, task = self.rules, rollout.task
        job = Job(task.key, task.variation, rollout.repeat)
        return (
            rollout.env_id == self.env_id
            and rollout.seed == self.seed_of(job)
            and (rollout.grading, rollout.reward_rule) == (rules.grading, rules.reward)
            and rollout.max_steps == rules.max_steps
            and self.phrasing in (None, task.phrasing)
            and rollout.world.hash == world.manifest.content_hash
            and rollout.agent.name == agent.name
            and _plain(rollout.agent.settings) == _plain(agent.settings)
        )

    def without(self, done: Container[tuple[str, int, int]]) -> Plan:
        """The same without some tasks, variations and repeats."""
        left = tuple(job for job in self.jobs if (job.task, job.variation, job.repeat) not in done)
        return replace(self, jobs=left)

    def seed_of(self, job: Job) -> int:
        """The seed of an agent in one episode: the same however the episodes are spread over processes."""
        text = f"{self.seed}\n{self.env_id}\n{job.task}\n{job.variation}\n{job.repeat}"
        return int.from_bytes(blake2b(text.encode(), digest_size=6).digest(), "big")


def _plain(settings: Mapping[str, Json]) -> Json:
    """Settings as a record gives them back."""
    return json.loads(json.dumps(settings, default=str))


def numbers(text: str) -> tuple[int, ...]:
    """Variation numbers from text: ``"3"``, ``"0-9"``, ``"0-4,1000-1004"``.

    Raises:
        FhirGymError: The text does not say numbers.
    """
    found: list[int] = []
    for part in text.split(","):
        match = _RANGE.match(part)
        if match is None:
            raise FhirGymError(f"variations {text!r} are not numbers like 3, 0-9 or 0-4,1000-1004")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise FhirGymError(f"variations {part.strip()!r}: the second number must be the larger one")
        if last - first > _MOST:
            raise FhirGymError(f"variations {part.strip()!r} are more than {_MOST:,}")
        found += range(first, last + 1)
    return tuple(dict.fromkeys(found))


def plan(
    env_id: str,
    *,
    tasks: str | Sequence[str] | None = None,
    variations: int | str | Iterable[int] | None = None,
    split: str | None = None,
    phrasing: int | None = None,
    repeats: int = 1,
    seed: int = 0,
    grading: Grading = "state",
    reward: RewardRule = "sparse",
    max_steps: int | None = None,
    fhir_server: str | None = None,
    skip: Container[tuple[str, int, int]] = (),
    task_file: str | Path | None = None,
    funcs_file: str | Path | None = None,
) -> Plan:
    """What `run` would do with these arguments; see there."""
    known = task_set(env_id, task_file, funcs_file)
    keys, allowed = choose_tasks(env_id, known, tasks, split, from_file=task_file is not None)
    for key in keys:
        require_grading(known[key], grading)
    require_phrasing(known, keys, phrasing)
    if variations is None:
        wanted: tuple[int, ...] = tuple(allowed)[:10]
    elif isinstance(variations, str):
        wanted = numbers(variations)
    else:
        several = variations if isinstance(variations, Iterable) else (variations,)
        wanted = tuple(require_whole("variations", k, 0) for k in several)
    outside = [k for k in wanted if k not in allowed]
    if outside and task_file is not None:
        raise FhirGymError(f"the tasks of a task file have one variation, 0, not {outside[0]}")
    if outside and split is not None:
        raise FhirGymError(f"variation {outside[0]} is not in split {split!r} ({allowed[0]} to {allowed[-1]})")
    require_whole("repeats", repeats, 1)
    require_whole("seed", seed)
    require_url("fhir_server", fhir_server)
    jobs = tuple(Job(key, k, repeat) for key in keys for k in wanted for repeat in range(repeats))
    rules = Rules.of(env_id, grading, reward, max_steps)
    named = tasks is not None or task_file is not None
    return Plan(env_id, jobs, rules, seed, fhir_server, phrasing, task_file, funcs_file, named).without(skip)
