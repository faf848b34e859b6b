"""Schedule each patient's measurements up to the required number, and model the values over time.

A value has an individual baseline, excursions during illness, and noise. Values are integers in units of the last
decimal place, as in `hospital.labs`. An excursion moves a value from the baseline towards a target; at the peak of the
excursion, the value is at the target. Targets range from just outside the reference range to beyond the critical limit,
so that deviations of every degree occur in men and women of all ages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from fhir_gym.worlds.cohort.patients import LATEST, SPAN, Patient, Segment
from fhir_gym.worlds.hospital.labs import LABS, PANELS, Lab
from fhir_gym.worlds.hospital.seeded_random import SeededRandom
from fhir_gym.worlds.hospital.times import DAY, START
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


_MIDNIGHT = START.hour * 60 + START.minute  # minutes between midnight and START
_SIGNS = ("BP", "HR", "RR", "SPO2", "TEMP", "FIO2")
_QUICKEST = 20  # minimum minutes from a specimen to its result
_WHOLE = ("CA", "CL", "CR", "PT", "TP", "GLU", "K", "MG", "NA", "HGB", "HCT")
_BMP, _CBC = PANELS["BMP"][1], PANELS["CBC"][1]


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measurement, before it becomes an Observation.

    Attributes:
        base: The hospital's name for the test.
        taken: Time of the specimen, in minutes after `START`.
        issued: Time of the result, in minutes after `START`.
        value: Value in units of the last decimal place, a pair for `BP`; None if there is no result.
        status: Status of the Observation.
        other_unit: Whether the value is reported in another laboratory's unit.
    """

    base: str
    taken: int
    issued: int
    value: int | tuple[int, int] | None
    status: str = "final"
    other_unit: bool = False


_Draw = tuple[int, tuple[str, ...]]


def draw_measurements(rng: SeededRandom, patient: Patient, segments: Sequence[Segment]) -> list[Measurement]:
    """Draw all measurements of a patient; each segment gets exactly its number of observations."""
    body = Physiology(rng, patient)
    measurements: list[Measurement] = []
    for segment in segments:
        body.enter(segment)
        measurements += _segment(rng, patient, body, segment)
    return measurements


def _segment(rng: SeededRandom, patient: Patient, body: Physiology, segment: Segment) -> list[Measurement]:
    draws = list(_stay_draws(rng, patient, segment) if segment.stay else _visit_draws(rng, patient, segment))
    draws = [draw for draw in draws if segment.start <= draw[0] <= min(segment.end, LATEST - _QUICKEST)]
    draws += _repeats(rng, draws, min(segment.end, LATEST - _QUICKEST))
    readings = [reading for moment, bases in draws for base in bases for reading in _results(rng, body, base, moment)]
    if segment.present:
        anchor = _anchor(rng, body, segment)
        readings = [anchor, *_thinned(rng, readings, (segment.budget - 1) * 7 // 10)]
    else:
        readings = _thinned(rng, readings, segment.budget * 7 // 10)
    return readings + list(_signs(rng, body, segment, segment.budget - len(readings)))


def _thinned(rng: SeededRandom, measurements: list[Measurement], most: int) -> list[Measurement]:
    return measurements if len(measurements) <= most else rng.some(measurements, max(0, most))


def _anchor(rng: SeededRandom, body: Physiology, segment: Segment) -> Measurement:
    """Draw this morning's sodium, which every patient has (section 2.2.1 of the MedAgentBench paper)."""
    moment = max(segment.start, SPAN - rng.between(150, 330))
    return Measurement("NA", moment, min(LATEST, moment + rng.between(_QUICKEST, 110)), body.lab("NA", moment))


def _stay_draws(rng: SeededRandom, patient: Patient, segment: Segment) -> Iterator[_Draw]:
    first = (segment.start + _MIDNIGHT) // DAY
    last = (segment.end + _MIDNIGHT) // DAY
    sweet = not patient.quiet and ("diabetes" in patient.diseases or rng.percent(25))
    hours = () if patient.quiet else {1: (17,), 2: (11, 18), 3: (0, 10, 15, 20)}[patient.acuity]
    yield segment.start + rng.between(5, 40), _admission(rng, patient)
    for day in range(first, last + 1):
        midnight = day * DAY - _MIDNIGHT
        yield midnight + rng.between(4 * 60, 7 * 60 + 30), _morning(rng, patient)
        for hour in hours:
            if rng.percent(45 + 12 * patient.acuity):
                yield midnight + hour * 60 + rng.between(0, 59), tuple(rng.some(("K", "NA", "GLU", "MG"), 3))
        if sweet:
            for minute in (435, 690, 1005, 1290):  # bedside tests before meals and at night
                yield midnight + minute + rng.between(-25, 25), ("GLU",)
    if segment.present and rng.percent(40):  # just less or just more than 24 hours ago
        yield SPAN - DAY + rng.between(-60, 60), tuple(rng.some(_WHOLE, rng.between(3, 9)))


def _admission(rng: SeededRandom, patient: Patient) -> tuple[str, ...]:
    bases = [*_BMP, *_CBC, "MG"]
    bases += [base for base, share in (("TP", 45), ("PT", 45), ("A1C", 10)) if rng.percent(share)]
    if "A1C" not in bases and "diabetes" in patient.diseases and rng.percent(25):
        bases.append("A1C")
    return tuple(bases) if patient.kind != "new" else tuple(rng.some(bases, len(bases) * 3 // 4))


def _morning(rng: SeededRandom, patient: Patient) -> tuple[str, ...]:
    if patient.quiet and rng.percent(75):
        return ("NA",)
    habits = patient.habits
    bases = list(_BMP if rng.percent(92) else ("NA", "K", "CL"))
    bases += _CBC if rng.percent(habits["CBC"]) else ()
    return (*bases, *(base for base in ("MG", "TP", "PT") if rng.percent(habits[base])))


def _visit_draws(rng: SeededRandom, patient: Patient, segment: Segment) -> Iterator[_Draw]:
    bases = list(_BMP) if rng.percent(50) else []
    bases += _CBC if rng.percent(30) else ()
    shares = (("A1C", 60 if "diabetes" in patient.diseases else 25), ("TP", 15), ("PT", 10), ("MG", 10))
    bases += [base for base, share in shares if rng.percent(share)]
    yield segment.start + rng.between(5, 40), tuple(bases)


def _repeats(rng: SeededRandom, draws: Sequence[_Draw], until: int) -> Iterator[_Draw]:
    """Repeat some tests within two hours, after one blood draw in sixteen."""
    for moment, bases in draws:
        later = moment + rng.between(15, 115)
        if bases and later <= until and rng.percent(6):
            yield later, tuple(rng.some(bases, rng.between(1, 5)))
            if later + 30 <= until and rng.percent(30):
                yield later + rng.between(10, 30), tuple(rng.some(bases, 1))


def _results(rng: SeededRandom, body: Physiology, base: str, moment: int) -> Iterator[Measurement]:
    """Yield one result. As in a real laboratory, it may be cancelled, wrong, duplicated or in another unit."""
    issued = min(LATEST, moment + rng.between(_QUICKEST, 110))
    reading = Measurement(base, moment, issued, body.lab(base, moment))
    fate = rng.weighted(_FATES)
    if fate == "cancelled":
        yield replace(reading, value=None, status="cancelled")
        later = moment + rng.between(10, 50)
        if later <= LATEST - _QUICKEST and rng.percent(60):  # a new specimen is taken
            again = min(LATEST, later + rng.between(_QUICKEST, 90))
            yield Measurement(base, later, again, body.lab(base, later))
    elif fate == "error":
        wrong = (reading.value if isinstance(reading.value, int) else 0) * rng.one((3, 5, 14, 18, 20)) // 10
        yield replace(reading, value=max(1, wrong), status="entered-in-error")
        yield reading
    elif fate == "double":
        yield reading
        yield reading
    elif fate == "tie":  # two devices measure one sample
        yield reading
        yield replace(reading, value=body.lab(base, moment))
    elif fate == "other_unit":
        yield replace(reading, other_unit=True)
    else:
        yield replace(reading, status=fate)


_FATES = (
    ("final", 933), ("corrected", 10), ("amended", 4), ("cancelled", 15), ("error", 6), ("double", 14), ("tie", 10),
    ("other_unit", 8),
)  # fmt: skip


def _signs(rng: SeededRandom, body: Physiology, segment: Segment, count: int) -> Iterator[Measurement]:
    """Yield exactly `count` vital signs, in rounds spread over the segment."""
    if count <= 0:
        return
    oxygen = segment.stay and rng.percent(35)
    kinds = _SIGNS if oxygen else _SIGNS[:-1]
    rounds = -(-count // len(kinds))
    length = segment.end - segment.start
    for number in range(rounds):
        latest = segment.start + length * (number + 1) // rounds
        moment = max(segment.start, latest - rng.between(0, max(0, length // rounds * 2 // 3)))
        for base in kinds[: count - number * len(kinds)]:
            taken = min(segment.end, LATEST, moment + rng.between(0, 2))
            yield _sign(rng, body, base, taken)


def _sign(rng: SeededRandom, body: Physiology, base: str, taken: int) -> Measurement:
    value = body.pressure() if base == "BP" else body.sign(base)
    status = "entered-in-error" if rng.percent(1) and rng.percent(40) else "final"
    return Measurement(base, taken, taken, value, status)
