"""The cohort has exact counts, the characteristics in the paper, and all records that tasks need."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import date
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fhir.resources.R4B import get_fhir_model_class
from hypothesis import given
from hypothesis import strategies as st

from fhir_gym import worlds
from fhir_gym.fhir import World
from fhir_gym.fhir.serialization import normalise
from fhir_gym.types import Resource
from fhir_gym.worlds import catalogue, cohort
from fhir_gym.worlds.cohort import sampling
from fhir_gym.worlds.cohort.charts import observation
from fhir_gym.worlds.cohort.patients import LATEST, SPAN, Patient, draw_segments
from fhir_gym.worlds.cohort.sampling import CRITICAL, Excursion, Measurement, limits
from fhir_gym.worlds.hospital import people
from fhir_gym.worlds.hospital.labs import LABS
from fhir_gym.worlds.hospital.seeded_random import SeededRandom
from fhir_gym.worlds.hospital.times import age
from fhir_gym.worlds.hospital.vitals import VITALS
from tests.worlds.references import targets

MINED = ("CA", "CL", "CR", "PT", "TP", "GLU", "K", "MG", "NA", "HGB", "HCT")
DAY = 24 * 60
PINNED = json.loads((Path(__file__).parent / "pinned_cohort.json").read_bytes())


@cache
def mini(seed: int = 0) -> tuple[Resource, ...]:
    return tuple(cohort.generate(seed, cohort.MINI))


def of(kind: str) -> list[Resource]:
    return [resource for resource in mini() if resource["resourceType"] == kind]


def person_of(chance: SeededRandom) -> people.Demographics:
    return people.cohort(chance.between(0, 50), 20, purpose="test")[chance.between(0, 19)]


# documented properties


def test_counts_equal_those_of_the_paper() -> None:
    full, small = cohort.FULL, cohort.MINI
    assert full.total - full.patients == 785_207
    assert small.total - small.patients == 20_000
    for noun in ("observations", "procedures", "conditions", "medications"):
        assert abs(getattr(full, noun) / 785_207 - getattr(small, noun) / 20_000) < 0.0002
    counts = Counter(resource["resourceType"] for resource in mini())
    assert counts == {
        "Patient": 100, "Observation": 14_351, "Procedure": 3_183, "Condition": 1_906, "MedicationRequest": 560
    }  # fmt: skip


def test_pinned() -> None:
    with worlds.load("cohort-mini") as world:
        found = {"version": catalogue.RECIPES["cohort-mini"].version, "cohort-mini": world.manifest.content_hash}
    wanted = {key: PINNED[key] for key in found}
    assert found == wanted, "other bytes come out of the same seed: count cohort.VERSION up and pin the new hashes"


def test_seeds_repeat_and_differ() -> None:
    assert mini() == tuple(cohort.generate(0, cohort.MINI))
    assert not {r["id"] for r in of("Patient")} & {r["id"] for r in mini(1) if r["resourceType"] == "Patient"}


def test_other_people_than_in_the_hospital() -> None:
    hospital = {person.mrn for person in people.cohort(0, 100)}
    assert not hospital & {patient["id"] for patient in of("Patient")}


def test_sample_is_valid_r4_and_kept_by_the_server() -> None:
    for resource in mini()[::7]:
        get_fhir_model_class(resource["resourceType"]).model_validate(resource)
        assert normalise(json.loads(json.dumps(resource))) == resource


def test_references_and_times() -> None:
    patients = {f"Patient/{resource['id']}" for resource in of("Patient")}
    for resource in mini():
        assert set(targets(resource)) <= patients
        for element in ("effectiveDateTime", "issued", "performedDateTime", "recordedDate", "authoredOn"):
            if element in resource:
                assert "2018-11-13T10:15" <= resource[element] < "2023-11-13T10:15:00+00:00"
    for kind in ("Observation", "Procedure", "Condition", "MedicationRequest"):
        assert {r["subject"]["reference"] for r in of(kind)} == patients


def test_patients_as_in_table_2() -> None:
    patients = of("Patient")
    years = [age(date.fromisoformat(p["birthDate"]), cohort.NOW.date()) for p in patients]
    mean = sum(years) / len(years)
    assert abs(mean - 58.15) < 3
    assert abs((sum((year - mean) ** 2 for year in years) / len(years)) ** 0.5 - 19.82) < 3
    assert sum(p["gender"] == "female" for p in patients) == 47
    names = Counter((p["name"][0]["family"], *p["name"][0]["given"]) for p in patients)
    assert max(names.values()) > 1, "namesakes"


def test_shape_of_observations_is_the_official_one(shared_dir: Path) -> None:
    lines = (shared_dir / "medagentbench" / "Observation.ndjson").read_text().splitlines()
    official = {o["code"]["text"]: o for o in map(json.loads, lines)}
    ours = {
        o["code"]["text"]: o
        for o in of("Observation")
        if o["status"] == "final" and "interpretation" not in o and o["code"]["text"] in official
    }
    assert set(ours) == set(official) == {"A1C", "GLU", "K", "MG"}
    for base, other in official.items():
        mine = ours[base]
        assert set(mine) == set(other) - {"meta"}
        for element in ("status", "category", "code"):
            assert mine[element] == other[element]
        assert set(mine["subject"]) == set(other["subject"])
        unit = LABS[base].unit
        assert other["valueQuantity"]["unit"] == unit[0] and other["valueQuantity"]["code"] == unit[1]


def test_the_benchmarks_searches() -> None:
    with worlds.load("cohort-mini") as world:
        served = world.session()
        every = {(o["subject"]["reference"][8:], o["code"]["text"]) for o in of("Observation")}
        for base in ("GLU", "K", "MG", "A1C", "NA", "BP"):
            patient = min(who for who, what in every if what == base)
            found = served.get(f"/Observation?patient={patient}&code={base}&_count=5000")
            wanted = [
                o for o in of("Observation") if (o["subject"]["reference"][8:], o["code"]["text"]) == (patient, base)
            ]
            assert found["total"] == len(wanted) > 0
        vitals = served.get(f"/Observation?patient={patient}&category=vital-signs&_summary=count")["total"]
        assert vitals > 0
        served.close()


def test_as_real_data_has_it() -> None:
    labs = [o for o in of("Observation") if o["category"][0]["coding"][0]["code"] == "laboratory"]
    statuses = Counter(o["status"] for o in labs)
    assert set(statuses) == {"final", "corrected", "amended", "cancelled", "entered-in-error"}
    assert statuses["final"] > 0.9 * len(labs)
    assert all(("valueQuantity" in o) != (o["status"] == "cancelled") for o in labs)
    moments: dict[tuple[str, ...], list[Any]] = defaultdict(list)
    for o in labs:
        if "valueQuantity" in o:
            moments[o["subject"]["reference"], o["code"]["text"], o["effectiveDateTime"]].append(o["valueQuantity"])
    several = [values for values in moments.values() if len(values) > 1]
    assert any(values[0] == values[1] for values in several), "duplicates"
    assert any(values[0] != values[1] for values in several), "ties"
    units = {(o["code"]["text"], o["valueQuantity"]["unit"]) for o in labs if "valueQuantity" in o}
    assert {("GLU", "mg/dL"), ("GLU", "mmol/L"), ("MG", "mg/dL"), ("K", "mmol/L")} <= units
    mine = [o["effectiveDateTime"] for o in labs if o["subject"] == labs[-1]["subject"]]
    assert any(later < earlier for earlier, later in pairwise(mine)), "not in the order of time"
    signs = Counter(o["code"]["text"] for o in of("Observation") if o["code"]["text"] not in LABS)
    assert set(signs) == {"BP", "HR", "RR", "SPO2", "TEMP", "FIO2"}


def test_other_units_give_equal_values() -> None:
    person = people.cohort(0, 1)[0]
    told = {}
    for base, value in {"GLU": 180, "MG": 20, "CA": 95, "CR": 110, "HGB": 135, "HCT": 405, "K": 41, "A1C": 61}.items():
        told[base] = observation("o", person, Measurement(base, 0, 1, value, other_unit=True))["valueQuantity"]["value"]
    assert told == {"GLU": 10.0, "MG": 0.82, "CA": 2.37, "CR": 97, "HGB": 135, "HCT": 0.405, "K": 4.1, "A1C": 6.1}


@pytest.mark.parametrize(
    ("base", "value", "flag"),
    [("K", 27, "LL"), ("K", 34, "L"), ("K", 40, None), ("K", 52, "H"), ("K", 63, "HH"), ("HGB", 128, None)],
)
def test_flags(base: str, value: int, flag: str | None) -> None:
    woman = people.cohort(0, 1, women=100)[0]
    found = observation("o", woman, Measurement(base, 0, 1, value))
    codes = [concept["coding"][0]["code"] for concept in found.get("interpretation", [])]
    assert codes == ([flag] if flag else [])


# records that tasks need


def _usable(seed: int, size: cohort.Size) -> dict[str, tuple[Patient, dict[str, list[tuple[int, int]]]]]:
    """Return final and corrected results in the hospital's units, by patient and test name, in chronological order."""
    found: dict[str, tuple[Patient, dict[str, list[tuple[int, int]]]]] = {}
    for patient, readings in cohort.cohort_measurements(seed, size):
        by_base: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for reading in readings:
            if isinstance(reading.value, int) and reading.status != "entered-in-error" and not reading.other_unit:
                by_base[reading.base].append((reading.taken, reading.value))
        found[patient.person.mrn] = patient, {base: sorted(values) for base, values in by_base.items()}
    return found


def _degree(base: str, sex: str, value: int) -> str:
    low, high = limits(LABS[base], sex)
    lowest, highest = CRITICAL[base]
    if value < low:
        return "critically low" if value < lowest else "low"
    if value > high:
        return "critically high" if value > highest else "high"
    edge = max(1, (high - low) // 8)
    return "borderline low" if value < low + edge else "borderline high" if value > high - edge else "normal"


DEGREES = {"critically low", "low", "borderline low", "normal", "borderline high", "high", "critically high"}


@pytest.mark.parametrize(
    ("size", "least"),
    [(cohort.MINI, 1), pytest.param(cohort.FULL, 8, marks=pytest.mark.exhaustive)],
    ids=["mini", "full"],
)
def test_scenarios_of_every_kind(size: cohort.Size, least: int) -> None:
    counts: dict[str, Counter[str]] = {base: Counter() for base in MINED}
    degrees: dict[str, set[tuple[str, str]]] = {base: set() for base in MINED}
    for patient, by_base in _usable(0, size).values():
        for base in MINED:
            values = by_base.get(base, [])
            times = [moment for moment, _ in values]
            counts[base]["sparse"] += 0 < len(values) <= 3
            counts[base]["cluster"] += any(0 < b - a <= 120 for a, b in pairwise(times))
            counts[base]["edge"] += any(abs(SPAN - DAY - moment) <= 60 for moment in times)
            within = sum(moment >= SPAN - DAY for moment in times)
            counts[base]["none today"] += within == 0
            counts[base]["window"] += within >= 3 or base not in ("GLU", "K", "NA")
            degrees[base] |= {(patient.person.sex, _degree(base, patient.person.sex, value)) for _, value in values}
    for base in MINED:
        for kind in ("sparse", "cluster", "edge", "window"):
            assert counts[base][kind] >= least, (base, kind)
        for sex in ("female", "male"):
            if size is cohort.FULL:
                assert {degree for who, degree in degrees[base] if who == sex} == DEGREES, (base, sex)
    assert counts["MG"]["none today"] >= 15 and counts["NA"]["none today"] == 0, "the sodium of this morning"


def test_medians_are_plausible_for_patients() -> None:
    pooled: dict[str, list[int]] = defaultdict(list)
    for _, by_base in _usable(0, cohort.MINI).values():
        for base, values in by_base.items():
            pooled[base] += [value for _, value in values]
    plausible = {
        "NA": (135, 143), "K": (37, 46), "CL": (97, 106), "CA": (84, 98), "MG": (16, 22), "CR": (75, 140),
        "TP": (60, 76), "PT": (112, 140), "HGB": (100, 145), "HCT": (300, 435), "GLU": (88, 150), "A1C": (48, 70),
        "HR": (68, 95), "RR": (14, 20), "SPO2": (94, 99), "TEMP": (364, 374),
    }  # fmt: skip
    for base, (low, high) in plausible.items():
        assert low <= sorted(pooled[base])[len(pooled[base]) // 2] <= high, base
    assert set(pooled) <= set(LABS) | set(VITALS)


# internals


@given(st.integers(0, 10**6), st.integers(1, 3_000))
def test_budgets_are_met_exactly(seed: int, quota: int) -> None:
    chance = SeededRandom(seed, "test")
    patient = Patient.draw(chance, person_of(chance))
    segments = draw_segments(chance, patient, quota)
    assert sum(segment.budget for segment in segments) == quota
    assert all(earlier.end <= later.start for earlier, later in pairwise(segments))
    assert segments[-1].present and not any(segment.present for segment in segments[:-1])
    measurements = sampling.draw_measurements(chance, patient, segments)
    assert len(measurements) == quota
    assert all(patient.begin <= measurement.taken <= measurement.issued <= LATEST for measurement in measurements)
    assert any(measurement.base == "NA" and measurement.taken >= SPAN - 330 for measurement in measurements)


@given(st.integers(-500, 500), st.integers(-500, 500), st.integers(0, 1_000), st.integers(0, 1_000))
def test_excursions_stay_between_level_and_target(level: int, target: int, peak: int, moment: int) -> None:
    moved = Excursion(target, peak, 0, 1_000).moved(level, moment)
    assert min(level, target) - 1 <= moved <= max(level, target) + 1
    assert Excursion(target, peak, 0, 1_000).moved(level, peak) == target


@pytest.mark.exhaustive
def test_the_whole_cohort(tmp_path: Path) -> None:
    path = worlds.build("cohort", tmp_path / "cohort.sqlite")
    assert path.stat().st_size < 1.5 * 2**30
    with World.open(path) as world:
        assert world.manifest.total == cohort.FULL.total
        assert world.manifest.content_hash == PINNED["cohort"]
    path.unlink()  # pytest keeps temporary folders of several runs
