"""The base class of tasks."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

import orjson

from fhir_gym.actions import Action
from fhir_gym.arguments import require_name
from fhir_gym.errors import ArgumentError, TaskError
from fhir_gym.fhir import FhirSession, World
from fhir_gym.fhir.messages import Response
from fhir_gym.tasks.core.dates import moment_in_words
from fhir_gym.tasks.core.ids import UpdateTimes, seeded_random
from fhir_gym.tasks.core.params import Params, SceneParams
from fhir_gym.tasks.core.paraphrases import NO_PARAPHRASES, Paraphrases, read_paraphrases
from fhir_gym.tasks.core.splits import require_variation, split_of
from fhir_gym.tasks.core.turn_protocol import Simulation, TurnProtocol
from fhir_gym.tasks.core.variation import (
    DrawnVariation,
    Variation,
    garbage_collection_paused,
    updated_at,
    variation_cache,
)
from fhir_gym.tasks.grading.answers import AnswerForm
from fhir_gym.tasks.grading.checks import Check, Diagnosis
from fhir_gym.tasks.grading.counterfactuals import may_be_like
from fhir_gym.tasks.grading.end_state import FinishedEpisode
from fhir_gym.tasks.grading.verdict import Verdict
from fhir_gym.types import BRIEF, PARAPHRASE, Json, Phrasing, Resource, Wording

_SEPARATOR, _EQUALS = "+", "="


@dataclass(frozen=True, slots=True)
class Dial:
    """A number that changes how much a task draws.

    Attributes:
        usual: The value that the task has without dials.
        least: The minimum.
        most: The maximum.
        is_whole: Whether only whole numbers are possible.
    """

    usual: float
    least: float
    most: float
    is_whole: bool = False

    def checked(self, name: str, value: object) -> float:
        """Return a value of this dial, rounded to six digits.

        Raises:
            ArgumentError: The value is not a number, or not in the range of the dial.
        """
        number = None if isinstance(value, bool) or not isinstance(value, Real) else float(value)
        if number is None or not self.least <= number <= self.most or (self.is_whole and not number.is_integer()):
            kind = "whole number" if self.is_whole else "number"
            raise ArgumentError(f"dial {name} must be a {kind} from {self.least:g} to {self.most:g}, not {value!r}")
        return float(f"{number:.6g}")


def checked_dials(key: str, dials: Mapping[str, Dial], values: Mapping[str, object]) -> dict[str, float]:
    """Return the values that differ from the usual ones, in the order of the dials.

    Args:
        key: Key of the task, for error messages.
        dials: The dials of the task.
        values: The values by the names of dials.

    Raises:
        UnknownNameError: The task has no such dial.
        ArgumentError: A value is not possible.
    """
    for name in values:
        require_name(f"dial of task {key}", name, dials)
    checked = {name: dial.checked(name, values[name]) for name, dial in dials.items() if name in values}
    return {name: value for name, value in checked.items() if value != dials[name].usual}


def key_with_dials(key: str, values: Mapping[str, float]) -> str:
    """Return the key of a task with values of dials, such as ``day-3+minutes=60``."""
    return _SEPARATOR.join([key, *(f"{name}{_EQUALS}{value:.6g}" for name, value in values.items())])


def split_key(key: str) -> tuple[str, dict[str, object]]:
    """Split a key with dials into the key of the task and the values of the dials. A text is no valid value."""
    task, *settings = key.split(_SEPARATOR)
    pairs = (setting.partition(_EQUALS) for setting in settings)
    return task, {name: _number(text) for name, _, text in pairs}


def _number(text: str) -> object:
    """Return the number that a text means; the text itself if it means none."""
    try:
        return float(text)
    except ValueError:
        return text


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(value: Any) -> bool:
    return isinstance(value, tuple) and all(map(_is_text, value))


_REQUIRED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "key": (lambda value: _is_text(value) and value != "", "a non-empty string"),
    "title": (_is_text, "a string"),
    "category": (_is_text, "a string"),
    "difficulty": (lambda value: value in (1, 2, 3), "1, 2 or 3"),
    "kind": (lambda value: value in ("query", "action"), "'query' or 'action'"),
    "required_tools": (
        lambda value: isinstance(value, tuple) and all(map(_are_texts, value)),
        "a tuple of tuples of tool names",
    ),
    "required_resources": (_are_texts, "a tuple of resource types"),
    "prohibited_tools": (_are_texts, "a tuple of tool names"),
    "prompts": (lambda value: _are_texts(value) and value != (), "a tuple of at least one string"),
    "answer_instructions": (_is_text, "a string"),
    "answer": (
        lambda value: callable(getattr(value, "problem", None)),
        "an answer form, such as IdAnswer(('Patient',))",
    ),
    "brief": (lambda value: value is None or (_is_text(value) and value != ""), "a non-empty string or None"),
    "gold_steps": (lambda value: isinstance(value, int) and value > 0, "a positive integer"),
}


def require_attributes(task: type[Any]) -> None:
    """Check the class attributes of a task class.

    Raises:
        TaskError: An attribute is missing or has an invalid value.
    """
    missing = [name for name in _REQUIRED if not hasattr(task, name)]
    if missing:
        raise TaskError(
            f"task class {task.__name__} must define {', '.join(missing)} (base classes pass abstract=True)"
        )
    for name, (is_valid, requirement) in _REQUIRED.items():
        value = getattr(task, name)
        if not is_valid(value):
            raise TaskError(f"{name} of task class {task.__name__} must be {requirement}, not {value!r}")


_FARTHEST_CREATED = 900_000
"""Maximum random offset of the ids that the server assigns. The offset prevents agents from guessing ids."""

P = TypeVar("P", bound=Params)

Gold = Generator[Action, Json, None]
"""A generator that yields actions and receives the parsed JSON response to each action.

It receives None if a response is not JSON.
"""


class LatestResponse:
    """The latest response to a policy. A reference solution receives only the parsed body.

    Attributes:
        last: The latest response; None before the first request.
    """

    def __init__(self) -> None:
        self.last: Response | None = None

    def json(self) -> Json:
        """Return the parsed body of the latest response; None if the body is not JSON."""
        if self.last is None or not self.last.body:
            return None
        try:
            return orjson.loads(self.last.body)
        except orjson.JSONDecodeError:
            return None


@dataclass(frozen=True, slots=True)
class ExpectedChange:
    """A change that a task asks for. Any change that the task does not expect fails the task.

    Attributes:
        kind: ``created``, ``updated`` or ``deleted``.
        id: Id of the resource; None if the server or the agent chooses it.
    """

    kind: Literal["created", "updated", "deleted"]
    resource_type: str
    id: str | None = None


class Task(ABC, Generic[P]):
    """A kind of task: its metadata, its prompts, and the functions that make and grade its variations.

    Attributes:
        key: Short key, unique in the pack (``"02a"``).
        title: Title of a few words.
        category: Name of the group in which reports count the task.
        difficulty: From 1 (one step) to 3.
        kind: ``query`` (the agent only answers) or ``action`` (the agent also changes records).
        required_tools: Sequences of tools that solve the task; only metrics use them.
        required_resources: Resource types that the task needs.
        prohibited_tools: Tools that the agent must not use; any use fails the task.
        prompts: Alternative wordings of the request, with placeholders for `prompt_values`.
        answer_instructions: Text at the end of every numbered prompt: definitions, and the form of the answer.
        brief: The phrasing ``brief``: the request in one sentence, followed by the form of the answer, with the same
            placeholders as `prompts`; None if the task has no such phrasing.
        answer: Form of the answer.
        gold_steps: Maximum number of actions of the reference solution, including ``FINISH``.
        optional_elements: Elements that the reference solution writes although the prompt does not ask for them
            (``"Patient.name.use"``). No check uses them.
        requested_elements: For each type, the elements of a created resource that the prompt asks for; nested elements
            are given as paths (``"dosageInstruction.route"``). Other elements must be neutral (see
            `fhir_gym.tasks.grading.allowed_additions`).
        removable_elements: Elements of an existing record that the agent may remove in an update to one of these
            statuses (``{"Appointment.slot": ("cancelled",)}``).
        harmless_additions: For each type, elements that the agent may add to a written resource, with example values.
        open_lists: Lists in which the agent must keep what is there, but may add any item (``"Task.note"``).
        evidence_fields: For each type, the elements that a response must contain before a record counts as read. A
            response that contains only the id does not count.
        evidence_before_changes: Whether only requests before the first change count as evidence.
        level: Level of the task in a pack with levels; None in other packs.
        max_steps: Default step limit of the task; None for the pack's limit.
        dials: Numbers that change how much the task draws, by name; see `with_dials`.
        is_live: Whether other people write while the agent works; see `simulate`.
        judges_changes: Whether the task's own checks judge every change of the episode. If so, the standard checks of
            changes are left out.
        gradings: Gradings that the task supports; only tasks from a benchmark's own file support ``official``.
        pack: Env id of the pack that the task is registered in; empty before registration.
        paraphrase_file: The pack's file of paraphrases; None if the pack has none.
    """

    key: ClassVar[str]
    title: ClassVar[str]
    category: ClassVar[str]
    difficulty: ClassVar[int]
    kind: ClassVar[Literal["query", "action"]]
    required_tools: ClassVar[tuple[tuple[str, ...], ...]]
    required_resources: ClassVar[tuple[str, ...]]
    prohibited_tools: ClassVar[tuple[str, ...]]
    prompts: ClassVar[tuple[str, ...]]
    answer_instructions: ClassVar[str]
    answer: ClassVar[AnswerForm]
    gold_steps: ClassVar[int]
    brief: ClassVar[str | None] = None
    optional_elements: ClassVar[frozenset[str]] = frozenset()
    requested_elements: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    removable_elements: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    harmless_additions: ClassVar[Mapping[str, Mapping[str, Json]]] = {}
    open_lists: ClassVar[frozenset[str]] = frozenset()
    evidence_fields: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    evidence_before_changes: ClassVar[bool] = False
    level: ClassVar[int | None] = None
    max_steps: ClassVar[int | None] = None
    dials: ClassVar[Mapping[str, Dial]] = {}
    is_live: ClassVar[bool] = False
    judges_changes: ClassVar[bool] = False
    gradings: ClassVar[tuple[str, ...]] = ("state", "evidence")
    pack: str = ""
    paraphrase_file: Path | None = None

    def __init_subclass__(cls, *, abstract: bool = False, **kwargs: Any) -> None:
        """Check the required attributes of a subclass.

        Args:
            abstract: Whether the class is a base of other tasks. Classes with type parameters, with abstract methods
                or with a name that starts with an underscore are always treated as abstract.
            kwargs: Arguments of other base classes.

        Raises:
            TaskError: A required attribute is missing or has an invalid value.
        """
        super().__init_subclass__(**kwargs)
        methods = (getattr(cls, name, None) for name in dir(cls))
        if not (
            abstract
            or cls.__name__.startswith("_")
            or bool(vars(cls).get("__parameters__"))
            or any(getattr(method, "__isabstractmethod__", False) for method in methods)
        ):
            require_attributes(cls)

    @abstractmethod
    def sample(self, rng: random.Random, world: World) -> P:
        """Draw the parameters of a variation."""

    def draw(self, k: int, rng: random.Random, world: World) -> P:
        """Return the parameters of variation `k`.

        Override this method instead of `sample` if variation `k` is about the k-th record of the world, so that nothing
        is drawn at random.
        """
        return self.sample(rng, world)

    @abstractmethod
    def setup(self, p: P, world: World) -> list[Resource]:
        """Return the resources to add to the world: prerequisites of the task, and decoys for careless agents.

        The resources must have the form in which a server stores them: their elements are in the order of the FHIR
        definition, and no element is unknown. ``fhir-gym tasks check`` reports resources in another form.
        """

    @abstractmethod
    def prompt_values(self, p: P, world: World) -> Mapping[str, str]:
        """Return the values of the placeholders in the prompts."""

    @abstractmethod
    def gold(self, p: P) -> Gold:
        """Yield the actions of the reference solution, which knows only the prompt and the responses."""

    @abstractmethod
    def checks(self, p: P, end: FinishedEpisode) -> Iterator[Check]:
        """Yield the task's own checks. The names of the checks must not depend on the episode."""

    def official(self, p: P, end: FinishedEpisode) -> Iterable[Check]:
        """Return the checks for ``grading="official"``, as the original benchmark defines them."""
        raise TaskError(f"task {self.key} does not come from a benchmark's own file, so it has no official verdict")

    def turn_protocol(self, grading: str) -> TurnProtocol | None:
        """Return a new `TurnProtocol` for an episode; None for the standard action grammar."""
        return None

    def simulate(self, p: P, session: FhirSession) -> Simulation:
        """Return the simulation of a new episode, if the task has `is_live`.

        Args:
            p: The parameters.
            session: The session with the start state.
        """
        raise TaskError(f"task {self.key} simulates nothing")

    def with_dials(self, key: str, values: Mapping[str, float]) -> Task[Any]:
        """Return a task with other values of `dials`. Only tasks with dials override this method.

        Args:
            key: Key of the returned task. It contains the values, so that any process can make the same task.
            values: The values that differ from the usual ones, by the names of the dials.
        """
        raise TaskError(f"task {self.key} has no dials")

    def diagnose(self, p: P, end: FinishedEpisode, verdict: Verdict) -> Diagnosis | None:
        """Return the expected steps and the error that explains a failure; None for tasks without a diagnosis."""
        return None

    def scored_checks(self, p: P, end: FinishedEpisode) -> tuple[Sequence[Check], float | None]:
        """Return the task's own checks, and the dense reward from 0 to 1; None for the rule of `Verdict.reward`."""
        return tuple(self.checks(p, end)), None

    def expected_changes(self, p: P) -> tuple[ExpectedChange, ...]:
        """Return the changes that the task asks for."""
        return ()

    def required_records(self, p: P) -> tuple[str, ...]:
        """Return the records (``Patient/1``) that the agent must read to know the answer."""
        return ()

    def requires_evidence(self, p: P) -> bool:
        """Whether success requires evidence that the agent read the necessary records.

        Evidence is required if the right answer is "there is none", if the right action is to change nothing, or if a
        guess may be right.
        """
        return False

    def counterfactual(self, p: P, world: World) -> list[Resource]:
        """Return records of which each would exist if the right answer were different; see `shows_counterfactual`.

        They come from the process that draws the records of the scene, so that a search for anything but the values in
        the prompt shows them no more often than similar records of the scene. Their ids and update times are replaced;
        see `Variation.placed`. The agent's requests must show each of them, when only this one is added.
        """
        return []

    def siblings(self, p: P) -> Iterable[str]:
        """Return records (``Patient/1``) that a prompt with other values would ask about. Only analyses use them."""
        return ()

    def may_match(self, p: P, seen: Resource, counterfactual: Resource) -> bool:
        """Whether a record may match the request, judged only by the elements that the agent saw.

        An agent that answers "none" must have seen enough of every returned record to exclude it. Override this method
        if a time or a quantity in the prompt excludes records.
        """
        return may_be_like(seen, counterfactual)

    def counted_records(self, p: P) -> tuple[str, ...]:
        """Return the existing records (``Slot/1``) that the right answer counts."""
        return ()

    def near_misses(self, p: P, gold: Sequence[Action]) -> Iterable[tuple[str, Sequence[Action]]]:
        """Return wrong action sequences with names, for `tasks check`. Others are derived from `gold` automatically.

        Args:
            p: The parameters.
            gold: All actions of the reference solution.
        """
        return ()

    def equivalents(self, p: P, gold: Sequence[Action]) -> Iterable[tuple[str, Sequence[Action]]]:
        """Return right action sequences with names, for `tasks check`. Others are derived from `gold` automatically.

        Args:
            p: The parameters.
            gold: All actions of the reference solution.
        """
        return ()

    def alternatives(self, p: P) -> frozenset[str]:
        """Return records (``Slot/1``) that are as right as those that `gold` uses; they do not count as decoys."""
        return frozenset()

    def is_question(self, resource: Resource) -> bool:
        """Whether a new record is a question to somebody. An agent may ask more than `gold`, and in other words."""
        return False

    def variation(self, k: int, world: World, phrasing: Phrasing | None = None) -> Variation:
        """Return variation `k`. It depends only on the pack, the key, `k`, the phrasing and the world's content.

        Args:
            k: Number of the variation, from 0 to 1999; see `fhir_gym.tasks.SPLITS`.
            world: The world.
            phrasing: Index of the wording to use, ``brief``, or ``paraphrase`` for the variation's own paraphrase; None
                for the prompt that the variation draws. The phrasing affects only the prompt.

        Raises:
            ArgumentError: There is no such variation or phrasing.
        """
        require_variation(k)
        key = (self, k, world.manifest.content_hash, world.now)
        drawn = variation_cache.get(key, lambda: self.draw_variation(k, world))
        used = drawn.phrasing if phrasing is None else self.wording_of(k, phrasing)
        params = drawn.params
        if used not in drawn.prompts:
            drawn.prompts[used] = (
                self.brief_prompt(params, world) if used == BRIEF else self.prompt(params, world, used)
            )
        target, qualifying = (params.target, params.qualifying) if isinstance(params, SceneParams) else ("", ())
        return Variation.of(
            drawn,
            task_key=self.key,
            number=k,
            split=split_of(k),
            phrasing=used,
            prompt=drawn.prompts[used],
            _target=target,
            _qualifying=qualifying,
        )

    @garbage_collection_paused()
    def draw_variation(self, k: int, world: World) -> DrawnVariation:
        """Draw variation `k` anew, without its prompt."""
        rng = seeded_random(self.pack, self.key, k, world.manifest.content_hash)
        params = self.draw(k, rng, world)
        phrasing = rng.randrange(len(self.prompts))
        updates = UpdateTimes(rng, world)
        setup = [updated_at(resource, updates.of(resource)) for resource in self.setup(params, world)]
        rng.shuffle(setup)  # the order of creation must not reveal how the records were drawn
        next_id = world.manifest.next_id + rng.randrange(1, _FARTHEST_CREATED)
        return DrawnVariation(params, phrasing, tuple(setup), next_id)

    def prompt(self, p: P, world: World, phrasing: int) -> str:
        """Return the whole prompt: the present time, the request in one wording, and the answer instructions."""
        ask = self.wordings[phrasing].format_map(self.prompt_values(p, world))
        return f"Present: {moment_in_words(world.now)}.\n\n{ask}\n\n{self.answer_instructions}"

    def brief_prompt(self, p: P, world: World) -> str:
        """Return the whole prompt in the phrasing ``brief``: the present time and the request."""
        ask = (self.brief or "").format_map(self.prompt_values(p, world))
        return f"Present: {moment_in_words(world.now)}.\n\n{ask}"

    @property
    def paraphrases(self) -> Paraphrases:
        """The further wordings of the request that the phrasing ``paraphrase`` uses; both lists may be empty."""
        all_paraphrases = {} if self.paraphrase_file is None else read_paraphrases(self.paraphrase_file)
        return all_paraphrases.get(self.key, NO_PARAPHRASES)

    @property
    def wordings(self) -> tuple[str, ...]:
        """All numbered wordings: `prompts`, then the paraphrases for training, then those for testing."""
        return (*self.prompts, *self.paraphrases.train, *self.paraphrases.test)

    def wording_of(self, k: int, phrasing: Phrasing) -> Wording:
        """Return the wording that a phrasing means for variation `k`.

        Raises:
            ArgumentError: The task does not have the phrasing.
        """
        self.require_phrasing(phrasing)
        if phrasing == PARAPHRASE:
            return len(self.prompts) + self.paraphrases.place(k, self.key)
        return phrasing

    def has_phrasing(self, phrasing: Phrasing) -> bool:
        """Whether the task has a prompt in a phrasing."""
        if isinstance(phrasing, str):
            return self.brief is not None if phrasing == BRIEF else bool(self.paraphrases.train)
        return phrasing in range(len(self.wordings))

    def require_phrasing(self, phrasing: Phrasing) -> None:
        """Check that the task has a prompt in a phrasing.

        Raises:
            ArgumentError: The task does not have the phrasing.
        """
        if not self.has_phrasing(phrasing):
            names = [f", {name!r}" for name in (BRIEF, PARAPHRASE) if self.has_phrasing(name)]
            phrasings = f"phrasings 0 to {len(self.wordings) - 1}{''.join(names)}"
            raise ArgumentError(f"task {self.key} has {phrasings}, but not {phrasing!r}")
