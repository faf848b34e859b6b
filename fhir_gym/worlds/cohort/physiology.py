"""Model a patient's values over time: an individual baseline, excursions during illness, and noise.

Values are integers in units of the last decimal place, as in `hospital.labs`. An excursion moves a value from the
baseline towards a target; at the peak of the excursion, the value is at the target. Targets range from just outside the
reference range to beyond the critical limit, so that deviations of every degree occur in men and women of all ages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fhir_gym.worlds.cohort.patients import Patient, Segment
from fhir_gym.worlds.hospital.labs import LABS, Lab
from fhir_gym.worlds.hospital.seeded_random import SeededRandom
from fhir_gym.worlds.hospital.vitals import VITALS

CRITICAL: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "GLU": (50, 400), "A1C": (36, 110), "NA": (120, 158), "K": (28, 62), "CL": (80, 118), "CA": (65, 125),
        "MG": (10, 45), "CR": (30, 500), "BUN": (3, 100), "TP": (40, 100), "PT": (95, 300), "HGB": (70, 200),
        "HCT": (210, 600), "WBC": (15, 300), "PLT": (30, 900),
    }
)  # fmt: skip
"""Limits beyond which values are flagged as critically low or high (typical limits for calling a physician)."""

# Distances of targets from the reference range, in percent of the way to the critical limit, each with a weight: first
# for earlier segments, then for the current stay, in which severe deviations are more frequent.
_DEGREES = {
    False: (((5, 40), 45), ((40, 95), 40), ((105, 130), 15)),
    True: (((5, 40), 25), ((40, 95), 30), ((110, 145), 45)),
}
_LEANING = {  # percentage of excursions that go down; 50 for tests that are not listed
    "GLU": 40, "A1C": 10, "CR": 25, "BUN": 15, "HGB": 75, "HCT": 75, "PT": 20, "K": 55, "MG": 60, "TP": 65, "PLT": 75,
}  # fmt: skip


def limits(lab: Lab, sex: str) -> tuple[int, int]:
    """Return the reference range for a sex."""
    column = sex == "male"
    return lab.low[column], lab.high[column]


@dataclass(frozen=True)
class Excursion:
    """The deviation of one value from its baseline during a segment."""

    target: int
    peak: int
    start: int
    end: int

    def moved(self, level: int, moment: int) -> int:
        """Return the level at a time. The level moves to the target until the peak, then halfway back."""
        if moment < self.peak:
            way = 40 + 60 * (moment - self.start) // max(1, self.peak - self.start)
        else:
            way = 100 - 50 * (moment - self.peak) // max(1, self.end - self.peak)
        return level + (self.target - level) * way // 100


class Physiology:
    """Source of a patient's values."""

    def __init__(self, rng: SeededRandom, patient: Patient) -> None:
        self._rng = rng
        self._patient = patient
        self._level = {base: self._own(lab) for base, lab in LABS.items()}
        self._signs = {base: rng.bell(sign.mean, sign.deviation // 2) for base, sign in VITALS.items()}
        tense = "hypertension" in patient.diseases
        self._pressure = rng.bell(136 if tense else 116, 8)
        self._excursions: dict[str, Excursion] = {}
        self._fever = 0

    def _own(self, lab: Lab) -> int:
        """Draw the patient's baseline value of a test."""
        low, high = limits(lab, self._patient.person.sex)
        middle, width = (low + high) // 2, high - low
        for disease, shift in lab.shifts:
            if disease in self._patient.diseases:
                middle += shift * self._rng.between(30, 120) // 100
        years = self._patient.person.age()
        if lab.base in ("CR", "HGB", "HCT") and years < 12:
            middle = middle * 85 // 100
        elif lab.base == "CR" and years >= 70:
            middle = middle * 112 // 100
        elif lab.base in ("HGB", "HCT") and years >= 70:
            middle = middle * 95 // 100
        return max(_least(lab.base), self._rng.bell(middle, max(1, width * lab.spread // 200)))

    def enter(self, segment: Segment) -> None:
        """Start a segment: draw its fever and excursions."""
        self._fever = self._rng.bell(5, 5) if segment.stay and self._rng.percent(30) else 0
        share = 60 if segment.present else 30 if segment.stay else 12
        self._excursions = {
            base: self._excursion(segment, lab) for base, lab in LABS.items() if self._rng.percent(share)
        }

    def _excursion(self, segment: Segment, lab: Lab) -> Excursion:
        low, high = limits(lab, self._patient.person.sex)
        lowest, highest = CRITICAL[lab.base]
        down = self._rng.percent(_LEANING.get(lab.base, 50))
        limit, critical = (low, lowest) if down else (high, highest)
        gap = critical - limit
        near, far = self._rng.weighted(_DEGREES[segment.present])
        target = max(_least(lab.base), limit + gap * self._rng.between(near, far) // 100)
        if down and target >= limit:  # rounding of small values
            target = limit - 1
        length = segment.end - segment.start
        first, last = (85, 100) if segment.present else (5, 95)  # in the current stay, the peak is recent
        peak = segment.start + length * self._rng.between(first, last) // 100
        return Excursion(target, peak, segment.start, segment.end)

    def lab(self, base: str, moment: int) -> int:
        """Draw the laboratory value of a specimen taken at a time."""
        if base == "HCT":  # about three times the haemoglobin
            return self.lab("HGB", moment) * 3 + self._rng.bell(0, 4)
        lab, level = LABS[base], self._level[base]
        low, high = limits(lab, self._patient.person.sex)
        excursion = self._excursions.get(base)
        if excursion:
            level = excursion.moved(level, moment)
        noise = max(1, (high - low) * lab.spread // 500)
        if base == "GLU":
            noise = max(5, level * 11 // 100)
        return max(_least(base), self._rng.bell(level, noise))

    def sign(self, base: str) -> int:
        """Draw a vital sign."""
        sign = VITALS[base]
        if base == "FIO2":
            return 21 if self._patient.acuity == 1 else self._rng.one((24, 28, 30, 35, 40, 50, 60))
        value = self._rng.bell(self._signs[base], max(1, sign.deviation // 2))
        if base == "TEMP":
            value += self._fever
        elif base in ("HR", "RR"):
            value += self._fever * (2 if base == "HR" else 1)
        if base != "TEMP" and self._patient.person.age() < 12:
            value = value * sign.child // sign.mean
        return min(sign.highest, max(sign.lowest, value))

    def pressure(self) -> tuple[int, int]:
        """Draw the systolic and diastolic blood pressure."""
        upper = min(238, max(72, self._rng.bell(self._pressure, 12)))
        if self._patient.person.age() < 12:
            upper = upper * 85 // 100
        lower = self._rng.bell(upper * 62 // 100, 6)
        return upper, max(35, min(lower, upper - 18))


def _least(base: str) -> int:
    """Return the lowest value that a device reports: lower than in the hospital, because the cohort is sicker."""
    return max(1, CRITICAL[base][0] * 6 // 10)
