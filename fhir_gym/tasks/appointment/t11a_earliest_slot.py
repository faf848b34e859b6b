"""Task 11a: the earliest available slot of any provider at a clinic."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta

from fhir_gym.actions import Finish, Get
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.answers import Ids as IdsAnswer
from fhir_gym.tasks.appointment.clinic import Opening, location, schedule, slot
from fhir_gym.tasks.bundles import entries, reference
from fhir_gym.tasks.checks import Check, equal
from fhir_gym.tasks.clock import at, instant
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.ids import Ids
from fhir_gym.tasks.params import Params
from fhir_gym.tasks.people import Person, new_person, practitioner
from fhir_gym.tasks.task import Fhir, Gold, Task
from fhir_gym.types import Resource

__all__ = ["TASKS", "EarliestSlot", "EarliestSlotParams"]

_PROVIDERS = 4
_MINUTES = 30
_CLINICS = ("Bayview", "Cedar", "Eastgate", "Harbor", "Lakeside", "Northfield", "Parkway", "Riverside", "Westbrook")
_KINDS = ("Clinic", "Family Practice", "Health Center", "Medical Group")
_BUSY = ("busy", "busy-unavailable", "busy-tentative", "entered-in-error")


class EarliestSlotParams(Params):
    """Values of task 11a.

    Attributes:
        now: The present, an instant.
        clinic: Id of the clinic's Location.
        other: Id of another Location.
        name: Name of the clinic; the other one's starts with it.
        city: Where both are.
        state: The city's state.
        providers: Practitioners; the last one works at the other Location.
        schedules: Ids of their schedules, in the same order.
        target: The earliest slot that is available.
        decoys: Slots that are earlier but not available, or later.
    """

    now: str
    clinic: str
    other: str
    name: str
    city: str
    state: str
    providers: tuple[Person, ...]
    schedules: tuple[str, ...]
    target: Opening
    decoys: tuple[Opening, ...]


class EarliestSlot(Task[EarliestSlotParams]):
    """Find the earliest available slot of any provider at a clinic.

    Starting state: four providers with a schedule each, three at the clinic, and the clinic's earliest free slot.
    Decoys: free slots in the past, begun, and later than that one; slots before it that are taken or withdrawn; earlier
        free ones at another place whose name starts with the clinic's.
    Checks: the answer is the earliest free slot that has not started.
    Light: none.
    Differs from FHIR-AgentEval: the clinic is named, so that the answer does not depend on other data of the server;
        there, it was always the same slot. Random times, no ties, free slots in the past.
    """

    key = "11a"
    title = "Earliest slot of any provider"
    category = "Scheduling & Appointments"
    difficulty = 2
    kind = "query"
    required_tools = (("search",),)
    required_resources = ("Slot",)
    prohibited_tools = ("create", "update", "patch", "delete")
    prompts = (
        "Which is the earliest available slot of any provider at {name} (Location/{clinic})?",
        "A caller wants to be seen as soon as possible at {name} and does not mind by whom. The place is "
        "Location/{clinic}. Find the first available slot there.",
        "Among all providers who have a schedule at Location/{clinic} ({name}), find the slot that is available "
        "soonest.",
    )
    ending = (
        "A slot belongs to a place if the place is an actor of the slot's schedule. A slot is available if its status "
        'is free and it starts at or after the present instant. Finish with FINISH(["<id>"]), where <id> is the id of '
        "the slot, or with FINISH([]) if no slot is available. Change nothing."
    )
    answer = IdsAnswer(("Slot",), or_empty=True)
    gold_steps = 2

    def sample(self, rng: random.Random, world: World) -> EarliestSlotParams:
        """Draw providers and times; no two slots of the clinic start together."""
        ids = Ids(rng, world, 40)
        providers = tuple(new_person(rng, world, ids.new(), resource_type="Practitioner") for _ in range(_PROVIDERS))
        schedules = tuple(ids.new() for _ in range(_PROVIDERS))
        here, elsewhere = schedules[:-1], schedules[-1]
        now = world.now.replace(second=0, microsecond=0)
        first = at(
            (now + timedelta(days=rng.randrange(2, 12))).date(), rng.randrange(7, 18), rng.choice((0, 15, 30, 45))
        )

        def opening(offset: timedelta, status: str, schedule_id: str = "") -> Opening:
            start = instant(first + offset)
            place = schedule_id or rng.choice(here)
            return Opening(id=ids.new(), schedule=place, start=start, minutes=_MINUTES, status=status)

        wait = int((first - now) / timedelta(minutes=15))
        earlier = [-timedelta(minutes=15 * n) for n in rng.sample(range(1, wait), 6)]
        later = [timedelta(minutes=15 * n) for n in rng.sample(range(1, 300), 5)]
        past = [now - first - timedelta(minutes=m) for m in (10, *rng.sample(range(60, 9_000, 30), 3))]
        decoys = [
            *(opening(offset, rng.choice(_BUSY)) for offset in earlier[:4]),
            *(opening(offset, "free", elsewhere) for offset in earlier[4:]),
            *(opening(offset, "free") for offset in (*later, *past)),
        ]
        return EarliestSlotParams(
            now=instant(world.now),
            clinic=ids.new(),
            other=ids.new(),
            name=f"{rng.choice(_CLINICS)} {rng.choice(_KINDS)}",
            city=providers[0].city,
            state=providers[0].state,
            providers=providers,
            schedules=schedules,
            target=opening(timedelta(0), "free"),
            decoys=tuple(decoys),
        )

    def setup(self, p: EarliestSlotParams, world: World) -> list[Resource]:
        """Places, providers, schedules, slots."""
        places = [p.clinic] * (_PROVIDERS - 1) + [p.other]
        schedules = [
            schedule(id, world, reference("Practitioner", person.id), reference("Location", place))
            for id, person, place in zip(p.schedules, p.providers, places, strict=True)
        ]
        return [
            location(p.clinic, p.name, p.city, p.state),
            location(p.other, f"{p.name} Annex", p.city, p.state),
            *map(practitioner, p.providers),
            *schedules,
            *map(slot, (p.target, *p.decoys)),
        ]

    def words(self, p: EarliestSlotParams, world: World) -> dict[str, str]:
        """The clinic."""
        return {"name": p.name, "clinic": p.clinic}

    def gold(self, p: EarliestSlotParams, fhir: Fhir) -> Gold:
        """One search along the slot's schedule, sorted by start."""
        found = yield Get(
            "/Slot",
            {
                "schedule.actor": f"Location/{p.clinic}",
                "status": "free",
                "start": f"ge{p.now}",
                "_sort": "start",
            },
        )
        yield Finish([one["id"] for one in entries(found)][:1])

    def rests_on(self, p: EarliestSlotParams) -> tuple[str, ...]:
        """The slot."""
        return (f"Slot/{p.target.id}",)

    def checks(self, p: EarliestSlotParams, end: EndState) -> Iterator[Check]:
        """The answer is the earliest slot."""
        (answer,) = end.answer_ids("Slot")
        yield equal("answer", answer, p.target.id)


TASKS = (EarliestSlot,)
