"""The experiments of FHIR-AgentEval, each with its training and test episodes, for any packs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fhir_gym.arguments import require_name
from fhir_gym.registration import SHIPPED
from fhir_gym.tasks.core.registry import get_pack, get_task, task_keys
from fhir_gym.tasks.core.splits import TEST_START
from fhir_gym.types import PARAPHRASE, Phrasing, Wording

_BENCHMARK = "FHIR-AgentEval"
ORIGINAL = 0
"""Index of the prompt that corresponds to FHIR-AgentEval's own prompt; the other prompts are paraphrases."""
_TRAINED, _TESTED = 1, 2
"""Index of the prompt for training, and index of the prompt for testing, in the first version of the experiments."""


@dataclass(frozen=True, slots=True)
class Part:
    """The training or the test episodes of an experiment.

    Run them with ``fhir_gym.run(env_id, agent, **part.arguments(env_id))``.

    Attributes:
        tasks: ``all``, ``heldout_tasks``, or ``rest`` (all tasks that are not held out).
        variations: Numbers of the variations of each task.
        phrasing: Index of the prompt to use, or ``paraphrase``: each variation has its own wording.
    """

    tasks: Literal["all", "heldout_tasks", "rest"]
    variations: tuple[int, ...]
    phrasing: Phrasing

    def keys(self, env_id: str) -> tuple[str, ...]:
        """Return the keys of a pack's tasks in this part."""
        pack = get_pack(env_id)
        held_out = {"all": (True, False), "heldout_tasks": (True,), "rest": (False,)}[self.tasks]
        return tuple(key for key in task_keys(env_id) if (key in pack.held_out) in held_out)

    def arguments(self, env_id: str) -> dict[str, Any]:
        """Return the arguments with which `fhir_gym.run` runs this part for a pack."""
        return {"tasks": self.keys(env_id), "variations": self.variations, "phrasing": self.phrasing}

    def episodes(self, env_ids: Iterable[str] | None = None) -> Iterator[tuple[str, str, int, Wording]]:
        """Yield the env id, task key, variation and wording of every episode.

        Args:
            env_ids: The packs; None for the packs that are modelled on FHIR-AgentEval.

        Raises:
            ArgumentError: A task does not have the phrasing.
        """
        for env_id in experiment_packs() if env_ids is None else env_ids:
            for key in self.keys(env_id):
                task = get_task(env_id, key)
                yield from ((env_id, key, k, task.wording_of(k, self.phrasing)) for k in self.variations)


@dataclass(frozen=True, slots=True)
class Experiment:
    """One experiment, with its training and test episodes.

    Attributes:
        name: ``experiment-1`` to ``experiment-4``; ``-v2`` follows if the training and the test part are paraphrased.
        about: What the experiment tests.
        train: The training episodes.
        test: The test episodes.
        repeats: Number of runs of each test episode.
    """

    name: str
    about: str
    train: Part
    test: Part
    repeats: int = 3


_TEST = (TEST_START, TEST_START + 1, TEST_START + 2)

EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "experiment-1", "Tested on the training episodes", Part("all", (0,), ORIGINAL), Part("all", (0,), ORIGINAL)
        ),
        Experiment(
            "experiment-2",
            "Other variations of the same tasks",
            Part("all", (0, 1), ORIGINAL),
            Part("all", _TEST, ORIGINAL),
        ),
        Experiment(
            "experiment-3",
            "Other variations of the same tasks, with other prompts",
            Part("all", (0, 1), _TRAINED),
            Part("all", _TEST, _TESTED),
        ),
        Experiment(
            "experiment-4",
            "Tasks that were not in training, with other prompts",
            Part("rest", (0, 1), _TRAINED),
            Part("heldout_tasks", _TEST, _TESTED),
        ),
        Experiment(
            "experiment-3-v2",
            "Other variations of the same tasks, with a paraphrase for each variation",
            Part("all", (0, 1), PARAPHRASE),
            Part("all", _TEST, PARAPHRASE),
        ),
        Experiment(
            "experiment-4-v2",
            "Tasks that were not in training, with a paraphrase for each variation",
            Part("rest", (0, 1), PARAPHRASE),
            Part("heldout_tasks", _TEST, PARAPHRASE),
        ),
    )
}
"""The experiments of FHIR-AgentEval, by name."""


def experiment_packs() -> tuple[str, ...]:
    """Return the env ids of the packs that are modelled on FHIR-AgentEval."""
    return tuple(env_id for env_id in SHIPPED if get_pack(env_id).modelled_on == _BENCHMARK)


def get_experiment(name: str) -> Experiment:
    """Return an experiment by its name.

    Raises:
        UnknownNameError: There is no such experiment.
    """
    require_name("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]
