"""Wishes for the time of an appointment."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any, Self

from fhir_gym.tasks.authoring import WEEKDAYS, parse_instant
from fhir_gym.tasks.packs.shift.kind import RequestContent

WISHES = (
    "A morning slot starts before 12:00, an afternoon slot at or after 12:00. The day of a slot is the day (UTC) on "
    "which it starts."
)
"""What the wishes mean, for prompts."""
_NOON = 12


class TimePreferences(RequestContent):
    """Wishes for the time of an appointment.

    Attributes:
        weekdays: Weekdays that suit the patient (Monday is 0); empty if all do.
        part: ``morning``, ``afternoon`` or an empty text.
        first_day: The first day that suits the patient, or an empty text.
        minutes: Minimum length of the slot in minutes; 0 for any length.
    """

    weekdays: tuple[int, ...] = ()
    part: str = ""
    first_day: str = ""
    minutes: int = 0

    def suits(self, start: str, minutes: int) -> bool:
        """Whether a time suits the patient."""
        if minutes < self.minutes or start[:10] < self.first_day:
            return False
        moment = parse_instant(start)
        return (not self.weekdays or moment.weekday() in self.weekdays) and (
            not self.part or (moment.hour < _NOON) == (self.part == "morning")
        )

    def in_words(self) -> Iterator[str]:
        """Yield one sentence for each wish."""
        if self.weekdays:
            yield f"Only {' or '.join(WEEKDAYS[day] for day in self.weekdays)} is possible."
        if self.part:
            yield f"It has to be in the {self.part}."
        if self.first_day:
            yield f"Not before {self.first_day}."
        if self.minutes:
            yield f"The slot must last at least {self.minutes} minutes."

    def without_one_wish(self) -> Iterator[Self]:
        """Yield copies that leave out one wish each."""
        for name, field in type(self).model_fields.items():
            if not field.is_required() and getattr(self, name) != field.default:
                yield self.model_copy(update={name: field.default})


def draw_time_wishes(rng: random.Random, today: date) -> dict[str, Any]:
    """Draw a value for each field of `TimePreferences`."""
    return {
        "weekdays": tuple(sorted(rng.sample(range(5), rng.choice((1, 2, 2, 3))))),
        "part": rng.choice(("morning", "afternoon")),
        "first_day": (today + timedelta(days=rng.randint(1, 6))).isoformat(),
        "minutes": rng.choice((30, 45, 60)),
    }
