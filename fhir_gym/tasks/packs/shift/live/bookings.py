"""Draw what colleagues book during a live shift."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from fhir_gym.tasks.authoring import instant, parse_instant
from fhir_gym.tasks.packs.shift.calendar import Calendar
from fhir_gym.tasks.packs.shift.clinic import ClinicScene, ClinicSlot
from fhir_gym.tasks.packs.shift.live.plan import ColleagueBooking, DeskRequest
from fhir_gym.tasks.packs.shift.p1_booking_rules.rules import PolicyClinicScene, limits_for, values_for
from fhir_gym.tasks.packs.shift.q1_bookings import BookingContent
from fhir_gym.tasks.packs.shift.q2_changes import ChangeContent

_CONTESTED = 0.7
"""Probability that a colleague books one of the first slots that a request may ask for while the agent works on it."""
_AFTER = (20, 240)
"""Minimum and maximum number of seconds from the beginning of this work to the booking."""
_FIRST = 3
"""Number of slots among which the colleague's first choice is drawn."""
_CHOICES = 4


def draw_bookings(
    rng: random.Random, scene: ClinicScene, requests: Sequence[DeskRequest], count: int, minutes: int
) -> Iterator[ColleagueBooking]:
    """Draw bookings at a place, for people about whom no request is.

    Args:
        rng: Random generator.
        scene: The place.
        requests: The requests about the place.
        count: Number of bookings.
        minutes: Minutes from the start of the shift until the last booking.
    """
    named = {id for request in requests for id in getattr(request.request, "patients", ())}
    others = [person.id for person in scene.people if person.id not in named]
    doctors, now = scene.by_schedule(), parse_instant(scene.now)
    free = [slot for slot in scene.slots_in_order if slot.status == "free" and slot.start > scene.now]
    rivals = [(request, slots) for request in requests if (slots := _slots_for(request, scene, free))]
    for _ in range(count if others else 0):
        if rivals and rng.random() < _CONTESTED:
            rival, slots = rng.choice(rivals)
            place = rng.randrange(min(_FIRST, len(slots)))
            when: dict[str, Any] = {"task": rival.id, "after": rng.randint(*_AFTER)}
        else:
            service = rng.choice(scene.practitioners).service
            slots = [slot for slot in free if doctors[slot.schedule].service == service]
            place = rng.randrange(max(len(slots) // 3, 1))
            when = {"at": instant(now + timedelta(minutes=rng.randint(1, minutes)))}
        choices = tuple((slot, doctors[slot.schedule].person.id) for slot in slots[place : place + _CHOICES])
        yield ColleagueBooking(patient=rng.choice(others), choices=choices, **when)


def _slots_for(request: DeskRequest, scene: ClinicScene, free: Sequence[ClinicSlot]) -> list[ClinicSlot]:
    """Return the free slots that a request may ask for; none if it asks for no slot."""
    ask, doctors = request.request.ask, scene.by_schedule()
    if isinstance(ask, BookingContent):
        suitable = [slot for slot in free if ask.wants(doctors[slot.schedule]) and ask.suits(slot.start, slot.minutes)]
        if isinstance(scene, PolicyClinicScene) and len(request.request.patients) == 1:
            values = values_for(ask, scene, scene.library)
            limits = limits_for(values, ask, request.request.patients[0], Calendar.at_start(scene))
            suitable = [slot for slot in suitable if limits and limits.suits(slot.start, slot.minutes)]
        return suitable
    if isinstance(ask, ChangeContent) and ask.change == "move":
        own = [slot for slot in free if ask.is_with(doctors[slot.schedule].person)]
        return [slot for slot in own if ask.suits(slot.start, slot.minutes)]
    return []
