"""Tasks that draw the start state first and choose the target last.

A learner that sees the whole server but not the prompt must not be able to guess which record the prompt is about.
Each variation is therefore drawn in this order, which the types enforce:

1. `SceneTask.draw_scene` draws the records on the server. All candidates come from the same random process.
2. `SceneTask.candidates` returns the possible subjects of the prompt. For a valid candidate, every condition of the
   prompt matters: without any single condition, the answer would be different.
3. `SceneTask.sample` chooses a candidate at random. After this choice, no record is drawn.
4. `SceneTask.params_for` returns the values for the prompt and the right answer.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Generic, Protocol, TypeVar

from typing_extensions import override

from fhir_gym.errors import TaskError
from fhir_gym.fhir import World
from fhir_gym.tasks.core.params import SceneParams
from fhir_gym.tasks.core.task import Task
from fhir_gym.types import Resource

_TRIES = 1_000


class Candidate(Protocol):
    """A possible subject of the prompt."""

    @property
    def target(self) -> str:
        """The record that the prompt would ask about (``Patient/S1234567``), or an empty text."""
        ...


S = TypeVar("S")
C = TypeVar("C", bound=Candidate)
P = TypeVar("P", bound=SceneParams)


class SceneTask(Task[P], Generic[P, S, C]):
    """A task whose records (the scene) are drawn first; then the subject of the prompt is chosen from them at random.

    `P` is the type of the parameters; their field `scene` has type `S`. `C` is the type of the candidates.

    Attributes:
        strata: Kinds of right answer (``"some"``, ``"none"``). One kind is drawn before the scene, each with equal
            probability; a kind that is listed twice is twice as likely. Every accepted scene has candidates of all
            kinds, so that the scene does not reveal the kind. Tasks with a single kind keep the default.
        fewest: Minimum number of candidates of each kind in a scene.
    """

    strata: ClassVar[tuple[str, ...]] = ("",)
    fewest: ClassVar[int] = 1

    @abstractmethod
    def draw_scene(self, rng: random.Random, world: World) -> S:
        """Draw the records of the start state without choosing a target."""

    @abstractmethod
    def candidates(self, scene: S) -> Mapping[str, Sequence[C]]:
        """Return the possible subjects of the prompt for each kind in `strata`. They may depend only on the scene.

        All candidates of one kind are equally likely. A target with two candidates is therefore twice as likely as a
        target with one candidate.
        """

    @abstractmethod
    def params_for(self, rng: random.Random, world: World, scene: S, chosen: C) -> P:
        """Return the parameters for the chosen candidate.

        This method may draw further values, such as a time within an interval. They may appear only in the prompt and
        in the expected result. `SceneTask.sample` sets `target` and `qualifying`.
        """

    @abstractmethod
    def scene_resources(self, scene: S, world: World) -> list[Resource]:
        """Return the resources of a scene. They cannot depend on the target; see also `Task.setup`."""

    @override
    def sample(self, rng: random.Random, world: World) -> P:
        """Draw the kind of answer, then the scene, then the candidate.

        Raises:
            TaskError: No scene has enough candidates of every kind.
        """
        stratum = rng.choice(self.strata)
        for _ in range(_TRIES):
            scene = self.draw_scene(rng, world)
            candidates = self.candidates(scene)
            if all(len(candidates.get(kind, ())) >= self.fewest for kind in self.strata):
                break
        else:
            raise TaskError(
                f"task {self.key} found no scene with {self.fewest} candidates of each kind in {_TRIES} tries"
            )
        chosen = rng.choice(candidates[stratum])
        qualifying = tuple(dict.fromkeys(candidate.target for candidate in candidates[stratum] if candidate.target))
        asked = self.params_for(rng, world, scene, chosen)
        return asked.model_copy(update={"target": chosen.target, "qualifying": qualifying})

    @override
    def siblings(self, p: P) -> Iterable[str]:
        return {
            candidate.target for some in self.candidates(p.scene).values() for candidate in some if candidate.target
        }

    @override
    def setup(self, p: P, world: World) -> list[Resource]:
        return self.scene_resources(p.scene, world)
