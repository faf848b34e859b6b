"""Draw a patient's timeline over five years: earlier stays and clinic visits, and the current stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fhir_gym.worlds.cohort.patients import SPAN, Patient
from fhir_gym.worlds.hospital.seeded_random import SeededRandom
from fhir_gym.worlds.hospital.times import DAY

_BUSIEST = 160  # maximum observations per day
_QUIETEST = 12


@dataclass(frozen=True)
class Segment:
    """A stay on a ward or a visit to a clinic, in minutes after `START`, with its number of observations."""

    stay: bool
    start: int
    end: int
    budget: int

    @property
    def present(self) -> bool:
        """Whether this is the current stay."""
        return self.end == SPAN


def draw_segments(rng: SeededRandom, patient: Patient, quota: int) -> list[Segment]:
    """Draw the patient's segments in chronological order, the current stay last.

    Args:
        rng: Random stream.
        patient: The patient.
        quota: Total number of observations.
    """
    present = _present(rng, patient, quota)
    earlier = _earlier(rng, patient, quota - present.budget)
    free = present.start - patient.begin - sum(length for _, length, _ in earlier)
    cuts = sorted(rng.between(0, max(0, free)) for _ in earlier)
    placed, used = [], 0
    for (stay, length, budget), cut in zip(earlier, cuts, strict=True):
        start = patient.begin + cut + used
        placed.append(Segment(stay, start, start + length, budget))
        used += length
    return [*placed, present]


def _present(rng: SeededRandom, patient: Patient, quota: int) -> Segment:
    if patient.kind == "new":
        return Segment(True, patient.begin, SPAN, quota)
    budget = max(1, quota * rng.between(20, 40) // 100)
    longest = max(DAY, budget * DAY // _QUIETEST)
    length = min(rng.between(30 * 60, 14 * DAY), longest)
    return Segment(True, SPAN - length, SPAN, min(budget, max(1, length * _BUSIEST // DAY)))


def _earlier(rng: SeededRandom, patient: Patient, quota: int) -> list[tuple[bool, int, int]]:
    """Draw earlier stays and visits, which share `quota` observations, as (is stay, minutes, observations)."""
    found: list[tuple[bool, int, int]] = []
    while quota > 0:
        if rng.percent(45):
            budget, length, stay = rng.between(3, 12), 60, False
        else:
            pace = rng.between(32, 56) + 22 * (patient.acuity - 1)
            length, stay = rng.between(30 * 60, 16 * DAY), True
            budget = length * pace // DAY
            if budget > quota:
                length = max(6 * 60, length * quota // budget)
        budget = min(budget, quota)
        found.append((stay, length, budget))
        quota -= budget
    return _fitting(rng, patient, found)


def _fitting(
    rng: SeededRandom, patient: Patient, found: Sequence[tuple[bool, int, int]]
) -> list[tuple[bool, int, int]]:
    """Shuffle the segments; if they do not fit into the record, shorten all in proportion."""
    room = (SPAN - 15 * DAY - patient.begin) * 3 // 4
    needed = sum(length for _, length, _ in found)
    return [
        (stay, min(length, length * room // needed) if needed > room else length, budget)
        for stay, length, budget in rng.shuffled(found)
    ]
