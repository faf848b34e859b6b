"""Base classes of the tasks that search for the earliest available slot, or for all available slots within a period.

A task first draws places, providers and slots. It then chooses a random request and period for which every condition
matters: without the condition, the answer would be different.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import ClassVar, Generic, TypeVar

from typing_extensions import override

from fhir_gym.actions import Action, Finish, Get
from fhir_gym.errors import TaskError
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, FinishedEpisode, Gold, Params, SceneParams, SceneTask, equal
from fhir_gym.tasks.authoring import IdAllocator, entries, instant, parse_instant
from fhir_gym.tasks.grading import CountAnswer, CountedIdsAnswer, IdAnswer, IdSetAnswer
from fhir_gym.tasks.packs.appointment.clinic import SlotRecord, slot_resource
from fhir_gym.tasks.packs.appointment.slot_scenes import (
    DAY,
    NEVER,
    Clinic,
    Place,
    SlotDraft,
    SlotScene,
    TimeWindow,
    at_quarter,
    clinic_resources,
    in_words,
    joint_clinic,
    quarter_of,
    slot_record,
    time_windows,
)
from fhir_gym.types import Json, Resource

Query = Mapping[str, str | list[str]]
"""Search parameters and their values."""
_LATER = 3
"""Minimum number of later slots that also match; an agent that does not sort may answer one of these slots."""
_FEWEST = 4
_TRIES = 1_000


class SlotRequest(Params):
    """The conditions of a prompt other than the time.

    Attributes:
        matching: Ids of the schedules that meet all conditions.
        failing_one: For each condition, the ids of the schedules that fail only this condition.
    """

    matching: tuple[str, ...]
    failing_one: tuple[tuple[str, ...], ...]


class PlaceRequest(SlotRequest):
    """A request for slots at one place."""

    place: Place


R = TypeVar("R", bound=SlotRequest)
L = TypeVar("L", bound=PlaceRequest)


def place_requests(clinic: Clinic) -> Iterator[PlaceRequest]:
    """Yield one request for each place."""
    for place in clinic.places:
        matching = tuple(schedule.id for schedule in clinic.schedules if schedule.place == place.reference)
        elsewhere = tuple(schedule.id for schedule in clinic.schedules if schedule.place != place.reference)
        yield PlaceRequest(matching=matching, failing_one=(elsewhere,), place=place)


class EarliestParams(SceneParams, Generic[R]):
    """Parameters of a task that asks for the earliest slot.

    Attributes:
        scene: Places, schedules and slots.
        request: The conditions.
        moment: The earliest allowed start (instant).
    """

    scene: SlotScene
    request: R
    moment: str


class OpenSlotsParams(SceneParams, Generic[R]):
    """Parameters of a task that asks for all slots within a period.

    Attributes:
        scene: Places, schedules and slots.
        request: The conditions.
        start: Start of the period (inclusive) (instant).
        end: End of the period (exclusive); empty if it is open.
        right: Ids of the matching slots.
        further: A slot that would match but is not on the server; the agent must have made a request that would
            return this slot.
    """

    scene: SlotScene
    request: R
    start: str
    end: str
    right: tuple[str, ...]
    further: SlotRecord


@dataclass(frozen=True, slots=True)
class SlotQuestion(Generic[R]):
    """All requests and periods for which the same slot is the first match.

    Attributes:
        target: Reference to the slot; empty if the answer names no slot.
        ways: The requests and their periods.
    """

    target: str
    ways: tuple[tuple[R, TimeWindow], ...]


class SlotSet:
    """The slots of a scene, sorted by start.

    Args:
        drafts: The slots and their ids.
        unit: Number of quarter hours in one unit of time.

    Attributes:
        timed: The time (in the unit of time), draft and id of each slot.
    """

    def __init__(self, drafts: Iterable[tuple[SlotDraft, str]], unit: int = 1) -> None:
        self.timed = [(draft.quarter // unit, draft, id) for draft, id in sorted(drafts)]
        self._free: dict[str, list[tuple[SlotDraft, int, str]]] = {}
        self._taken: dict[str, list[int]] = {}
        for time, draft, id in self.timed:
            if draft.status == "free":
                self._free.setdefault(draft.schedule, []).append((draft, time, id))
            else:
                self._taken.setdefault(draft.schedule, []).append(time)

    def free(self, schedules: Collection[str]) -> tuple[list[int], list[str]]:
        """Return the times and the ids of the free slots of some schedules."""
        drafts = sorted(draft for schedule in schedules for draft in self._free.get(schedule, ()))
        return [time for _, time, _ in drafts], [id for _, _, id in drafts]

    def failing_one(self, request: SlotRequest) -> list[list[int]]:
        """Return, for each condition, the times of the slots that fail only this condition.

        The first condition is the status; the conditions of the request follow.
        """
        taken = sorted(time for schedule in request.matching for time in self._taken.get(schedule, ()))
        return [taken, *(self.free(schedules)[0] for schedules in request.failing_one)]


def by_target(answers: Iterable[tuple[str, R, TimeWindow]], *, named: bool) -> list[SlotQuestion[R]]:
    """Group requests by their first matching slot, so that prompts ask for all slots with equal probability.

    Args:
        answers: Id of the first matching slot (empty if no slot matches), request and period.
        named: Whether the answer contains the ids of the slots.
    """
    grouped: dict[str, list[tuple[R, TimeWindow]]] = {}
    none = []
    for id, request, window in answers:
        if id:
            grouped.setdefault(id, []).append((request, window))
        else:
            none.append(SlotQuestion(target="", ways=((request, window),)))
    return [*none, *(SlotQuestion(f"Slot/{id}" if named else "", tuple(ways)) for id, ways in grouped.items())]


E = TypeVar("E", bound=SceneParams)


class _FindSlots(SceneTask[E, SlotScene, SlotQuestion[R]], Generic[E, R]):
    """A search for slots.

    Attributes:
        unit: Number of quarter hours in the prompt's unit of time.
    """

    category = "Scheduling & Appointments"
    difficulty = 2
    kind = "query"
    required_tools: ClassVar[tuple[tuple[str, ...], ...]] = (("search",),)
    required_resources = ("Slot",)
    prohibited_tools = ("create", "update", "patch", "delete")
    gold_steps = 2

    unit: ClassVar[int] = 1

    @abstractmethod
    def requests(self, clinic: Clinic) -> Iterable[R]:
        """Yield the requests that a prompt may make."""

    @abstractmethod
    def offers(self, slots: SlotSet, request: R) -> Iterator[tuple[str, str, TimeWindow]]:
        """Yield the stratum, the id of the first matching slot (may be empty) and the period of each question."""

    @override
    def candidates(self, scene: SlotScene) -> dict[str, list[SlotQuestion[R]]]:
        drafts = [
            (SlotDraft(quarter_of(parse_instant(slot.start)), slot.schedule, slot.status), slot.id)
            for slot in scene.slots
        ]
        return self._asked(drafts, self.requests(scene.clinic))

    def _asked(
        self, drafts: Iterable[tuple[SlotDraft, str]], requests: Iterable[R]
    ) -> dict[str, list[SlotQuestion[R]]]:
        slots = SlotSet(drafts, self.unit)
        by_stratum: dict[str, list[tuple[str, R, TimeWindow]]] = {stratum: [] for stratum in self.strata}
        for request in requests:
            for stratum, first, window in self.offers(slots, request):
                by_stratum[stratum].append((first, request, window))
        named = not isinstance(self.answer, CountAnswer | CountedIdsAnswer)
        return {stratum: by_target(some, named=named) for stratum, some in by_stratum.items()}

    def slot_scene(
        self, ids: IdAllocator, world: World, clinic: Clinic, draw_slots: Callable[[], Iterable[SlotDraft]]
    ) -> SlotScene:
        """Draw slots until there are enough questions to ask about them.

        Raises:
            TaskError: No attempt gave enough questions.
        """
        requests = list(self.requests(clinic))
        for _ in range(_TRIES):
            drawn = list(draw_slots())
            by_stratum = self._asked([(draft, str(number)) for number, draft in enumerate(drawn)], requests)
            if all(len(by_stratum[stratum]) >= self.fewest for stratum in self.strata):
                break
        else:
            raise TaskError(f"task {self.key} found no slots with enough questions in {_TRIES} tries")
        return SlotScene(
            clinic=clinic, slots=tuple(slot_record(ids.new("Slot"), draft) for draft in drawn), spare=ids.new("Slot")
        )

    @abstractmethod
    def query(self, p: E) -> Query:
        """Return the prompt's conditions, except the status, as search parameters."""

    @override
    def scene_resources(self, scene: SlotScene, world: World) -> list[Resource]:
        return [*clinic_resources(scene.clinic.places, scene.clinic.schedules, world), *map(slot_resource, scene.slots)]


class AtOnePlace(_FindSlots[E, PlaceRequest]):
    """A search for slots of any provider, at one of two places."""

    @abstractmethod
    def timetable(
        self, rng: random.Random, today: date, groups: Sequence[Sequence[str]]
    ) -> Callable[[], Iterable[SlotDraft]]:
        """Return a function that draws the slots of both places; the argument is the schedule ids of each place."""

    @override
    def draw_scene(self, rng: random.Random, world: World) -> SlotScene:
        ids = IdAllocator(rng, world)
        clinic = joint_clinic(rng, world, ids, 2)
        groups = [request.matching for request in self.requests(clinic)]
        return self.slot_scene(ids, world, clinic, self.timetable(rng, clinic.today, groups))

    @override
    def requests(self, clinic: Clinic) -> Iterator[PlaceRequest]:
        return place_requests(clinic)


class FindEarliest(_FindSlots[EarliestParams[R], R]):
    """A task that asks for the earliest slot at or after a given time."""

    answer = IdAnswer(("Slot",), or_empty=True)
    fewest = _FEWEST

    @override
    def offers(self, slots: SlotSet, request: R) -> Iterator[tuple[str, str, TimeWindow]]:
        """Yield the free slots that are the first match at or after some earliest time.

        Between the earliest time and the slot there are a taken slot and, for each condition, a free slot that fails
        only this condition. Other free slots that match are before the earliest time and after the slot.
        """
        times, ids = slots.free(request.matching)
        for window in time_windows(times, slots.failing_one(request), (0,)):
            if window.first + _LATER < len(ids):
                yield "", ids[window.first], window

    @override
    def params_for(
        self, rng: random.Random, world: World, scene: SlotScene, chosen: SlotQuestion[R]
    ) -> EarliestParams[R]:
        request, window = rng.choice(chosen.ways)
        return EarliestParams(scene=scene, request=request, moment=instant(at_quarter(window.bounds(rng)[0])))

    @override
    def prompt_values(self, p: EarliestParams[R], world: World) -> dict[str, str]:
        return {"moment": in_words(p.moment)}

    @override
    def gold(self, p: EarliestParams[R]) -> Gold:
        bundle = yield Get("/Slot", {**self.query(p), "status": "free", "start": f"ge{p.moment}", "_sort": "start"})
        yield Finish([entry["id"] for entry in entries(bundle)][:1])

    @override
    def required_records(self, p: EarliestParams[R]) -> tuple[str, ...]:
        return (p.target,)

    @override
    def checks(self, p: EarliestParams[R], end: FinishedEpisode) -> Iterator[Check]:
        (answer,) = end.answer_ids("Slot")
        yield equal("answer", answer, p.target.partition("/")[2])


class FindOpenSlots(_FindSlots[OpenSlotsParams[L], L]):
    """A task that asks for the number of slots within a period, for their ids, or for both.

    Because an agent could guess a number, tasks that ask for a number require evidence of a search.

    Attributes:
        sizes: Numbers of matching slots to choose from, by stratum.
        endless: Whether the period has no end.
    """

    answer: ClassVar[CountAnswer | IdSetAnswer | CountedIdsAnswer]
    sizes: ClassVar[Mapping[str, Sequence[int]]]
    endless: ClassVar[bool] = False

    @override
    def offers(self, slots: SlotSet, request: L) -> Iterator[tuple[str, str, TimeWindow]]:
        times, ids, failing_one = self.times(slots, request)
        for stratum, sizes in self.sizes.items():
            for window in time_windows([*times, NEVER] if self.endless else times, failing_one, sizes):
                if not self.endless or window.first + window.size == len(ids):
                    yield stratum, ids[window.first] if window.size else "", window

    def times(self, slots: SlotSet, request: L) -> tuple[list[int], list[str], list[list[int]]]:
        """Return the times and ids of the matching slots, and the result of `SlotSet.failing_one`."""
        return *slots.free(request.matching), slots.failing_one(request)

    @override
    def params_for(
        self, rng: random.Random, world: World, scene: SlotScene, chosen: SlotQuestion[L]
    ) -> OpenSlotsParams[L]:
        # Draw long lists more often than short lists.
        ((request, window),) = rng.choices(chosen.ways, [max(1, way.size) for _, way in chosen.ways])
        begin, end = (bound * self.unit for bound in window.bounds(rng))
        latest = max(slot.start for slot in scene.slots)
        until = quarter_of(parse_instant(latest)) + DAY if self.endless else end
        return self._within(rng, scene, request, begin, until)

    def _within(self, rng: random.Random, scene: SlotScene, request: L, begin: int, end: int) -> OpenSlotsParams[L]:
        """Return the parameters for a period.

        Args:
            rng: Random generator, for drawing the slot that is not on the server.
            scene: The scene.
            request: The conditions.
            begin: First quarter hour of the period.
            end: First quarter hour after the period; if the period has no end, a quarter hour after the last slot.
        """
        start, stop = instant(at_quarter(begin)), "" if self.endless else instant(at_quarter(end))
        own = [slot for slot in scene.slots if slot.schedule in request.matching]
        within = [slot for slot in own if start <= slot.start and (not stop or slot.start < stop)]
        occupied, usual = {slot.start for slot in own}, {slot.start[11:] for slot in scene.slots}
        is_unusual = [instant(at_quarter(quarter))[11:] not in usual for quarter in range(DAY)]
        quarters = rng.sample(range(begin, end), end - begin)
        quarters.sort(key=lambda quarter: is_unusual[quarter % DAY])  # first the usual times of day
        drafts = (SlotDraft(quarter, rng.choice(request.matching)) for quarter in quarters)
        possible = (slot_record(scene.spare, draft) for draft in drafts)
        further = next(slot for slot in possible if slot.start not in occupied and self.counts(request, slot.start))
        right = tuple(slot.id for slot in within if slot.status == "free" and self.counts(request, slot.start))
        return OpenSlotsParams(scene=scene, request=request, start=start, end=stop, right=right, further=further)

    @override
    def prompt_values(self, p: OpenSlotsParams[L], world: World) -> dict[str, str]:
        place = {"name": p.request.place.name, "clinic": p.request.place.id}
        return {**place, "start": in_words(p.start), **({"end": in_words(p.end)} if p.end else {})}

    def counts(self, request: L, start: str) -> bool:
        """Return whether a slot's start meets the conditions that a search cannot express."""
        return True

    @override
    def query(self, p: OpenSlotsParams[L]) -> Query:
        start: str | list[str] = [f"ge{p.start}", f"lt{p.end}"] if p.end else f"ge{p.start}"
        return {"schedule.actor": p.request.place.reference, "start": start}

    @override
    def gold(self, p: OpenSlotsParams[L]) -> Gold:
        bundle = yield Get("/Slot", {**self.query(p), "status": "free"})
        yield Finish(
            self._answer_of([entry["id"] for entry in entries(bundle) if self.counts(p.request, entry["start"])])
        )

    @override
    def required_records(self, p: OpenSlotsParams[L]) -> tuple[str, ...]:
        # The agent may instead read the number from the total of a search.
        return () if isinstance(self.answer, CountAnswer) else _references(p)

    @override
    def requires_evidence(self, p: OpenSlotsParams[L]) -> bool:
        return isinstance(self.answer, CountAnswer) or not p.right

    @override
    def counterfactual(self, p: OpenSlotsParams[L], world: World) -> list[Resource]:
        return [slot_resource(p.further)]

    @override
    def may_match(self, p: OpenSlotsParams[L], seen: Resource, counterfactual: Resource) -> bool:
        schedule, start = seen.get("schedule", {}).get("reference", ""), str(seen.get("start", ""))
        elsewhere = schedule.rpartition("/")[2] not in ("", *p.request.matching)
        late = start and not (p.start <= start and (not p.end or start < p.end) and self.counts(p.request, start))
        return seen.get("status", "free") == "free" and not elsewhere and not late

    @override
    def counted_records(self, p: OpenSlotsParams[L]) -> tuple[str, ...]:
        return _references(p) if isinstance(self.answer, CountAnswer) else ()

    @override
    def checks(self, p: OpenSlotsParams[L], end: FinishedEpisode) -> Iterator[Check]:
        ids = sorted(p.right)
        if not isinstance(self.answer, IdSetAnswer):
            yield equal("count", end.answer_count(), len(ids))
        if not isinstance(self.answer, CountAnswer):
            start = int(isinstance(self.answer, CountedIdsAnswer))
            yield equal("slots", end.answer_id_set("Slot", start), list(ids))

    @override
    def equivalents(self, p: OpenSlotsParams[L], gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        query: Query = {**self.query(p), "status": "free"}
        finish = gold[-1]
        if isinstance(self.answer, CountAnswer):
            yield "asks for the total", [Get("/Slot", {**query, "_summary": "count"}), finish]
            yield "asks for ids", [Get("/Slot", {**query, "_elements": "id"}), finish]
        everything = {"schedule.actor": p.request.place.reference, "_count": "500"}
        yield "looks through all slots of the place", [Get("/Slot", everything), finish]
        searches = [Get("/Slot", {"schedule": f"Schedule/{id}", "status": "free"}) for id in p.request.matching]
        yield "looks through one schedule after another", [*searches, finish]

    def _answer_of(self, ids: list[Json]) -> list[Json]:
        if isinstance(self.answer, IdSetAnswer):
            return ids
        return [len(ids)] if isinstance(self.answer, CountAnswer) else [len(ids), *ids]


def _references(p: OpenSlotsParams[L]) -> tuple[str, ...]:
    return tuple(f"Slot/{id}" for id in p.right)
