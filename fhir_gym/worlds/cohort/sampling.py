"""Schedule each patient's measurements: blood draws, repeats, and rounds of vital signs up to the required number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fhir_gym.worlds.cohort.patients import LATEST, SPAN, Patient, Segment
from fhir_gym.worlds.cohort.physiology import Physiology
from fhir_gym.worlds.hospital.labs import PANELS
from fhir_gym.worlds.hospital.seeded_random import SeededRandom
from fhir_gym.worlds.hospital.times import DAY, START

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
