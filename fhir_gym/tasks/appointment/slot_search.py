"""What tasks share that ask for available slots: the earliest one, or all of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, TypeVar

from fhir_gym.actions import Action, Finish, Get
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.answers import Count, CountedIds, IdSet
from fhir_gym.tasks.answers import Ids as IdsAnswer
from fhir_gym.tasks.appointment.clinic import Opening, slot
from fhir_gym.tasks.appointment.openings import Diary, Earliest, Openings, Place, clinic_resources
from fhir_gym.tasks.bundles import entries
from fhir_gym.tasks.checks import Check, equal
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.params import Params
from fhir_gym.tasks.task import Fhir, Gold, Task
from fhir_gym.types import Json, Resource

__all__ = ["EarliestParams", "FindEarliest", "FindOpenings", "OpeningsParams", "Query", "SlotsParams"]

Query = Mapping[str, str | list[str]]
"""Conditions of a search."""


class SlotsParams(Params):
    """Values of every task that looks for slots.

    Attributes:
        now: The present, an instant.
        places: Where providers work; the first one is asked for.
        diaries: Their schedules.
    """

    now: str
    places: tuple[Place, ...]
    diaries: tuple[Diary, ...]

    @property
    def place(self) -> Place:
        """The place that is asked for."""
        return self.places[0]


class EarliestParams(SlotsParams):
    """Values of a task that looks for the earliest slot.

    Attributes:
        slots: That slot and others.
    """

    slots: Earliest

    @property
    def target(self) -> Opening:
        """The earliest slot."""
        return self.slots.target


class OpeningsParams(SlotsParams):
    """Values of a task that looks for all slots.

    Attributes:
        slots: Those slots, if any, and others.
    """

    slots: Openings


S = TypeVar("S", bound=SlotsParams)
E = TypeVar("E", bound=EarliestParams)
P = TypeVar("P", bound=OpeningsParams)


class _FindSlots(Task[S]):
    """What all of them share."""

    category = "Scheduling & Appointments"
    kind = "query"
    required_tools: ClassVar[tuple[tuple[str, ...], ...]] = (("search",),)
    required_resources = ("Slot",)
    prohibited_tools = ("create", "update", "patch", "delete")
    gold_steps = 2

    @abstractmethod
    def query(self, p: S) -> Query:
        """The conditions the prompt names, but for the status."""

    def words(self, p: S, world: World) -> dict[str, str]:
        """The place."""
        return {"name": p.place.name, "clinic": p.place.id}


class FindEarliest(_FindSlots[E]):
    """A task that looks for the earliest slot."""

    answer = IdsAnswer(("Slot",), or_empty=True)

    def setup(self, p: E, world: World) -> list[Resource]:
        """Places, providers, schedules, slots."""
        return [*clinic_resources(p.places, p.diaries, world), *map(slot, (p.target, *p.slots.decoys))]

    def gold(self, p: E, fhir: Fhir) -> Gold:
        """One search along the slot's schedule, sorted by start."""
        found = yield Get("/Slot", {**self.query(p), "status": "free", "start": f"ge{p.now}", "_sort": "start"})
        yield Finish([one["id"] for one in entries(found)][:1])

    def rests_on(self, p: E) -> tuple[str, ...]:
        """The slot."""
        return (f"Slot/{p.target.id}",)

    def checks(self, p: E, end: EndState) -> Iterator[Check]:
        """The answer is the earliest slot."""
        (answer,) = end.answer_ids("Slot")
        yield equal("answer", answer, p.target.id)


class FindOpenings(_FindSlots[P]):
    """A task that looks for all slots, of which there may be none; the answer is their number, their ids, or both.

    A number can be guessed, so where it is the answer, only the agent that looked is right.
    """

    answer: ClassVar[Count | IdSet | CountedIds]

    def setup(self, p: P, world: World) -> list[Resource]:
        """Places, providers, schedules, slots."""
        return [*clinic_resources(p.places, p.diaries, world), *map(slot, (*p.slots.right, *p.slots.decoys))]

    def keeps(self, p: P, found: Resource) -> bool:
        """Whether a slot that the search found is asked for."""
        return True

    def gold(self, p: P, fhir: Fhir) -> Gold:
        """One search with all conditions."""
        found = yield Get("/Slot", {**self.query(p), "status": "free"})
        yield Finish(self._says([one["id"] for one in entries(found) if self.keeps(p, one)]))

    def rests_on(self, p: P) -> tuple[str, ...]:
        """The slots, where their ids are asked for; their number may be known by a total."""
        return () if isinstance(self.answer, Count) else _references(p)

    def must_look(self, p: P) -> bool:
        """There are none, or the answer is a number, which may be guessed."""
        return isinstance(self.answer, Count) or not p.slots.right

    def phantom(self, p: P, world: World) -> list[Resource]:
        """One slot more."""
        return [slot(p.slots.further)]

    def counted(self, p: P) -> tuple[str, ...]:
        """The slots."""
        return _references(p) if isinstance(self.answer, Count) else ()

    def checks(self, p: P, end: EndState) -> Iterator[Check]:
        """The answer is the number of the slots, their ids, or both."""
        ids = sorted(one.id for one in p.slots.right)
        if not isinstance(self.answer, IdSet):
            yield equal("count", end.answer_count(), len(ids))
        if not isinstance(self.answer, Count):
            start = int(isinstance(self.answer, CountedIds))
            yield equal("slots", end.answer_id_set("Slot", start), list(ids))

    def equivalents(self, p: P, gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        """The total of the search, all slots of the place, the slots of one schedule after another."""
        query: Query = {**self.query(p), "status": "free"}
        finish = gold[-1]
        if isinstance(self.answer, Count):
            yield "asks for the total", [Get("/Slot", {**query, "_summary": "count"}), finish]
            yield "asks for ids", [Get("/Slot", {**query, "_elements": "id"}), finish]
        everything = {"schedule.actor": p.place.reference, "_count": "500"}
        yield "looks through all slots of the place", [Get("/Slot", everything), finish]
        schedules = [diary.id for diary in p.diaries if diary.place == p.place.reference]
        searches = [Get("/Slot", {"schedule": f"Schedule/{id}", "status": "free"}) for id in schedules]
        yield "looks through one schedule after another", [*searches, finish]

    def _says(self, ids: list[Json]) -> list[Json]:
        if isinstance(self.answer, IdSet):
            return ids
        return [len(ids)] if isinstance(self.answer, Count) else [len(ids), *ids]


def _references(p: OpeningsParams) -> tuple[str, ...]:
    return tuple(f"Slot/{one.id}" for one in p.slots.right)
