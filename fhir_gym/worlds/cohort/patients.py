"""Draw the cohort's patients (illness, length of record, monitoring habits) and their timelines over five years."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fhir_gym.worlds.hospital.people import Demographics
from fhir_gym.worlds.hospital.problems import DISEASES
from fhir_gym.worlds.hospital.seeded_random import SeededRandom
from fhir_gym.worlds.hospital.times import DAY, NOW, START

SPAN = int((NOW - START).total_seconds()) // 60
"""Number of minutes between the start of the records and the world's current time."""

LATEST = SPAN - 1
"""Latest time of an event, in minutes after `START`; all events are in the past."""

# (kind, percentage of patients, range of the record's relative size)
_KINDS = (("new", 15, (2, 6)), ("brief", 25, (10, 30)), ("regular", 40, (40, 90)), ("complex", 20, (120, 350)))

_HABITS = ("MG", "TP", "PT", "A1C", "CBC")


@dataclass(frozen=True)
class Patient:
    """One patient of the cohort.

    Attributes:
        person: Demographics of the patient.
        kind: "new" (the record starts about a day ago), "brief", "regular" or "complex".
        weight: Relative size of the record.
        diseases: Keys of the chronic diseases (see `hospital.problems`).
        acuity: From 1 (quiet ward) to 3 (intensive care).
        begin: Start of the record, in minutes after `START`.
        habits: For each test (such as `MG` or `TP`), the percentage of days on which it is ordered.
        quiet: Whether the patient has only a sodium test and no bedside tests on most days.
    """

    person: Demographics
    kind: str
    weight: int
    diseases: tuple[str, ...]
    acuity: int
    begin: int
    habits: dict[str, int]
    quiet: bool

    @classmethod
    def draw(cls, rng: SeededRandom, person: Demographics) -> Patient:
        """Draw the clinical profile of a person."""
        kind, (low, high) = rng.weighted([((name, bounds), share) for name, share, bounds in _KINDS])
        diseases = tuple(
            disease.key
            for disease in DISEASES
            if disease.lasting
            and disease.sex in (None, person.sex)
            and person.age() >= disease.youngest
            and rng.percent(min(90, disease.share * 3 // 2))  # inpatients are sicker than other patients
        )
        begin = SPAN - rng.between(18 * 60, 32 * 60) if kind == "new" else rng.between(0, SPAN - 400 * DAY)
        return cls(
            person=person,
            kind=kind,
            weight=rng.between(low, high),
            diseases=diseases,
            acuity=rng.weighted([(1, 75), (2, 20), (3, 5)] if kind == "new" else [(1, 45), (2, 35), (3, 20)]),
            begin=begin,
            habits={noun: rng.weighted([(5, 25), (25, 30), (60, 25), (95, 20)]) for noun in _HABITS},
            quiet=rng.percent(22),
        )


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
    """Draw the patient's segments in chronological order, the current stay last."""
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
    earlier: list[tuple[bool, int, int]] = []
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
        earlier.append((stay, length, budget))
        quota -= budget
    return _fitting(rng, patient, earlier)


def _fitting(
    rng: SeededRandom, patient: Patient, spans: Sequence[tuple[bool, int, int]]
) -> list[tuple[bool, int, int]]:
    """Shuffle the segments; if they do not fit into the record, shorten all in proportion."""
    room = (SPAN - 15 * DAY - patient.begin) * 3 // 4
    needed = sum(length for _, length, _ in spans)
    return [
        (stay, min(length, length * room // needed) if needed > room else length, budget)
        for stay, length, budget in rng.shuffled(spans)
    ]
