"""Draw training episodes: uniformly, or mostly from tasks that succeed half of the time or that fail."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from fhir_gym.arguments import require_name
from fhir_gym.episode_config import EpisodeConfig
from fhir_gym.errors import ArgumentError, TrainingError
from fhir_gym.tasks import find_task, require_phrasing, task_set
from fhir_gym.training.config import TaskName
from fhir_gym.types import Phrasing

CurriculumRule = Literal["uniform", "success", "failure"]
CURRICULUM_RULES: tuple[CurriculumRule, ...] = ("uniform", "success", "failure")
"""``uniform``: all tasks are equally likely. ``success`` and ``failure``: see `Curriculum`."""


class EpisodeChoice(NamedTuple):
    """A task, a variation and a wording of the prompt; None for the wording that the variation has drawn."""

    env_id: str
    task: str
    variation: int
    phrasing: Phrasing | None = None

    @property
    def name(self) -> TaskName:
        """The task."""
        return TaskName(self.env_id, self.task)


@dataclass(slots=True)
class _Counts:
    """Recent successes and episodes of one task; older episodes count less."""

    successes: float = 0.0
    episodes: float = 0.0


class Curriculum:
    """Draws the task, the variation and the phrasing of training episodes.

    With the rule ``success``, a task's weight is 4p(1 - p), where p is its recent success rate. The weight is 1 for a
    task that succeeds half of the time or that has no episodes yet, and falls to `floor` for a task that always or
    never succeeds. With the rule ``failure``, the weight is 1 - p, and also at least `floor`: it suits an agent that
    explores enough to solve every task at times. Variations and phrasings are drawn uniformly.

    Args:
        tasks: The tasks to draw from.
        variations: The numbers of the variations to draw from; only training variations.
        phrasings: The phrasings to draw from, by task. For other tasks each variation keeps the phrasing that it has
            drawn.
        held_out: Tasks that are never drawn, although `tasks` may contain them.
        rule: ``uniform``, ``success`` or ``failure``.
        floor: Minimum weight of a task, so that a solved or hopeless task is still drawn; above 0 and at most 1.
        decay: Factor by which a new episode reduces the counts of earlier episodes of its task; above 0 and at most 1.
        seed: Seed of the curriculum's own random numbers.

    Raises:
        UnknownNameError: The rule or a task does not exist.
        ArgumentError: A task does not have one of the phrasings, a variation is a test variation, nothing remains to
            draw from, or a number is out of range.

    Examples:
        >>> names = [TaskName("FHIRAgent/Appointment-v0", key) for key in ("01", "02a", "03")]
        >>> curriculum = Curriculum(names, range(100), rule="success", seed=1)
        >>> for name in names[:2]:
        ...     for _ in range(20):
        ...         curriculum.record(name, name.task == "01")
        >>> {name.task: round(weight, 2) for name, weight in curriculum.weights().items()}
        {'01': 0.17, '02a': 0.17, '03': 0.67}
    """

    def __init__(
        self,
        tasks: Sequence[TaskName],
        variations: Sequence[int],
        *,
        phrasings: Mapping[TaskName, Sequence[Phrasing]] | None = None,
        held_out: Collection[TaskName] = (),
        rule: CurriculumRule = "uniform",
        floor: float = 0.1,
        decay: float = 0.95,
        seed: int = 0,
    ) -> None:
        self.rule = require_name("curriculum", rule, CURRICULUM_RULES)
        self.tasks = tuple(dict.fromkeys(TaskName(*name) for name in tasks if name not in held_out))
        self.variations = tuple(variations)
        self.phrasings = {name: tuple(numbers) for name, numbers in (phrasings or {}).items() if name in self.tasks}
        self._floor, self._decay = floor, decay
        self._require_valid()
        self._random = np.random.default_rng(seed)
        self._counts = {name: _Counts() for name in self.tasks}
        self._drawn = 0

    def draw(self) -> EpisodeChoice:
        """Draw one episode."""
        weights = list(self.weights().values())
        # This is much faster than `Generator.choice`.
        at = int(np.searchsorted(np.cumsum(weights), self._random.random() * sum(weights), side="right"))
        name = self.tasks[min(at, len(self.tasks) - 1)]
        variation = self.variations[int(self._random.integers(len(self.variations)))]
        phrasings = self.phrasings.get(name)
        phrasing = None if phrasings is None else phrasings[int(self._random.integers(len(phrasings)))]
        self._drawn += 1
        return EpisodeChoice(*name, variation, phrasing)

    def record(self, name: TaskName, success: bool | float) -> None:
        """Count an episode of a task.

        Args:
            name: The task.
            success: Whether the episode succeeded, or a share of success from 0 to 1.

        Raises:
            TrainingError: The curriculum does not have the task.
        """
        counts = self._counts.get(name)
        if counts is None:
            raise TrainingError(f"the curriculum does not have task {name[1]!r} of {name[0]}")
        counts.successes = counts.successes * self._decay + min(1.0, max(0.0, float(success)))
        counts.episodes = counts.episodes * self._decay + 1.0

    def success_rates(self) -> dict[TaskName, float]:
        """Return the recent success rate of each task, smoothed with one success and one failure."""
        return {name: (count.successes + 1.0) / (count.episodes + 2.0) for name, count in self._counts.items()}

    def weights(self) -> dict[TaskName, float]:
        """Return the probability with which each task is drawn."""
        if self.rule == "uniform":
            return dict.fromkeys(self.tasks, 1.0 / len(self.tasks))
        scale = {name: 4.0 * p if self.rule == "success" else 1.0 for name, p in self.success_rates().items()}
        weights = {name: max(self._floor, scale[name] * (1.0 - p)) for name, p in self.success_rates().items()}
        total = sum(weights.values())
        return {name: weight / total for name, weight in weights.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state as data for JSON: the random numbers, the counts by task, the number of draws."""
        counts = [[*name, count.successes, count.episodes] for name, count in self._counts.items()]
        return {"random": self._random.bit_generator.state, "counts": counts, "drawn": self._drawn}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of a curriculum with the same tasks.

        Raises:
            TrainingError: The state is unusable, or belongs to a curriculum with other tasks.
        """
        try:
            counts = {TaskName(env_id, task): _Counts(won, of) for env_id, task, won, of in state["counts"]}
            drawn, random = int(state["drawn"]), state["random"]
            if counts.keys() != self._counts.keys():
                raise TrainingError("the saved curriculum has other tasks")
            self._random.bit_generator.state = random
        except (KeyError, TypeError, ValueError) as error:
            raise TrainingError(f"the saved curriculum is unusable: {error}") from error
        self._counts, self._drawn = {name: counts[name] for name in self.tasks}, drawn

    @property
    def drawn(self) -> int:
        """Number of episodes drawn so far."""
        return self._drawn

    def _require_valid(self) -> None:
        if not self.tasks:
            raise ArgumentError("a curriculum needs at least one task that is not held out")
        if not self.variations:
            raise ArgumentError("a curriculum needs at least one variation")
        EpisodeConfig(self.tasks[0].env_id, split="train").require_variations(self.variations)
        for name in self.tasks:
            find_task(task_set(name.env_id), name.task)
        for name, numbers in self.phrasings.items():
            if not numbers:
                raise ArgumentError(f"task {name.task} of {name.env_id} has an empty list of phrasings")
            for number in numbers:
                require_phrasing(task_set(name.env_id), [name.task], number)
        for setting, value in (("floor", self._floor), ("decay", self._decay)):
            if not 0.0 < value <= 1.0:
                raise ArgumentError(f"{setting} must be above 0 and at most 1, not {value}")


def other_phrasings(tasks: Sequence[TaskName], held_out: Phrasing) -> dict[TaskName, tuple[int, ...]]:
    """Return, for each task, all numbered phrasings except the held-out one.

    Raises:
        ArgumentError: A task does not have the phrasing, or has no other one.
    """
    phrasings: dict[TaskName, tuple[int, ...]] = {}
    for name in tasks:
        all_tasks = task_set(name.env_id)
        require_phrasing(all_tasks, [name.task], held_out)
        phrasings[name] = tuple(n for n in range(len(find_task(all_tasks, name.task).prompts)) if n != held_out)
        if not phrasings[name]:
            raise ArgumentError(f"task {name.task} of {name.env_id} has only one phrasing, so it cannot be held out")
    return phrasings
