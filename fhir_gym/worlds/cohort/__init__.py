"""Generator of the cohort: 100 inpatients with long records, in the proportions of MedAgentBench.

The cohort has five resource types: Patient, Observation (laboratory and vital signs), Procedure, Condition and
MedicationRequest. The counts match Table 2 of the MedAgentBench paper: 100 patients with 785,207 records. As on the
benchmark's server, Observations are coded with base names (`GLU`, `K`, `MG`, `A1C`, …) in the LOINC code system, so
that the benchmark's queries find these Observations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fhir_gym.types import Resource
from fhir_gym.worlds.cohort import charts, sampling
from fhir_gym.worlds.cohort.patients import Patient, Segment, draw_segments
from fhir_gym.worlds.cohort.sampling import Measurement
from fhir_gym.worlds.hospital import people
from fhir_gym.worlds.hospital.seeded_random import IdSequence, SeededRandom
from fhir_gym.worlds.hospital.times import NOW

__all__ = ["FULL", "MINI", "NOW", "VERSION", "Size", "cohort_measurements", "generate"]

VERSION = 3
"""Version that increases whenever a seed gives different resources, even if only the hospital's generators changed."""


@dataclass(frozen=True)
class Size:
    """Number of resources of each type; every patient has at least one resource of each type."""

    patients: int
    observations: int
    procedures: int
    conditions: int
    medications: int

    @property
    def total(self) -> int:
        """Number of resources, including patients."""
        return self.patients + self.observations + self.procedures + self.conditions + self.medications


FULL = Size(patients=100, observations=563_426, procedures=124_969, conditions=74_821, medications=21_991)
"""The size of MedAgentBench: 785,207 records of 100 patients."""

MINI = Size(patients=100, observations=14_351, procedures=3_183, conditions=1_906, medications=560)
"""A smaller size with the same proportions: 20,000 records."""

# Table 2 of the MedAgentBench paper: age 58.15 ± 19.82 years, 47 % women.
_AGES: people.Ages = (
    ((6, 17), 3), ((18, 29), 6), ((30, 44), 15), ((45, 59), 24), ((60, 74), 32), ((75, 89), 18), ((90, 96), 2),
)  # fmt: skip
_WOMEN = 47


def generate(seed: int = 0, size: Size = FULL) -> Iterator[Resource]:
    """Yield all resources of the cohort, patients first; records are not sorted by time.

    Args:
        seed: Any integer.
        size: Number of resources of each type.
    """
    ids = IdSequence()
    patients = _patients(seed, size)
    yield from (people.patient_resource(patient.person) for patient in patients)
    weights = [patient.weight for patient in patients]
    done, diagnosed, prescribed = (
        _apportioned(total, weights) for total in (size.procedures, size.conditions, size.medications)
    )
    for number, (patient, segments, measurements) in enumerate(_measured(seed, size, patients)):
        for reading in _rng(seed, "order", patient).shuffled(measurements):
            yield charts.observation(ids.new("OBS"), patient.person, reading)
        yield from charts.procedure_resources(_rng(seed, "procedures", patient), ids, patient, segments, done[number])
        yield from charts.condition_resources(
            _rng(seed, "conditions", patient), ids, patient, segments, diagnosed[number]
        )
        yield from charts.medication_resources(
            _rng(seed, "medications", patient), ids, patient, segments, prescribed[number]
        )


def cohort_measurements(seed: int = 0, size: Size = FULL) -> Iterator[tuple[Patient, list[Measurement]]]:
    """Yield the measurements of each patient, from which the Observations are built."""
    for patient, _, measurements in _measured(seed, size, _patients(seed, size)):
        yield patient, measurements


def _patients(seed: int, size: Size) -> list[Patient]:
    persons = people.cohort(seed, size.patients, ages=_AGES, women=_WOMEN, purpose="cohort")
    return [Patient.draw(SeededRandom(seed, "cohort patient", person.mrn), person) for person in persons]


def _measured(
    seed: int, size: Size, patients: Sequence[Patient]
) -> Iterator[tuple[Patient, list[Segment], list[Measurement]]]:
    shares = _apportioned(size.observations, [patient.weight for patient in patients])
    for patient, share in zip(patients, shares, strict=True):
        segments = draw_segments(_rng(seed, "course", patient), patient, share)
        yield patient, segments, sampling.draw_measurements(_rng(seed, "readings", patient), patient, segments)


def _rng(seed: int, noun: str, patient: Patient) -> SeededRandom:
    return SeededRandom(seed, f"cohort {noun}", patient.person.mrn)


def _apportioned(total: int, weights: Sequence[int]) -> list[int]:
    """Distribute a total in proportion to weights, at least 1 to each; the first parts get the remainder."""
    spare, whole = total - len(weights), sum(weights)
    if spare < 0:
        raise ValueError(f"{len(weights)} patients need at least as many records, not {total}")
    shares = [1 + spare * weight // whole for weight in weights]
    left = total - sum(shares)
    return [share + (number < left) for number, share in enumerate(shares)]
