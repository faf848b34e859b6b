"""Draw the cohort's patients: severity of illness, length of record and monitoring habits."""

from __future__ import annotations

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
