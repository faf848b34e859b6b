"""Generate the large world of the benchmarks: many Observations for few patients, as in MedAgentBench's cohort."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from fhir_gym.types import Resource
from fhir_gym.worlds import Progress
from fhir_gym.worlds.catalogue import Recipe
from fhir_gym.worlds.hospital import NOW, VERSION
from fhir_gym.worlds.hospital.labs import LABS, lab_resources
from fhir_gym.worlds.hospital.people import Demographics, cohort, patient_resource
from fhir_gym.worlds.hospital.seeded_random import IdSequence, SeededRandom
from fhir_gym.worlds.hospital.times import START, minutes
from fhir_gym.worlds.hospital.vitals import VITALS, vital_resources
from fhir_gym.worlds.loading import load_recipe

__all__ = ["OBSERVATIONS", "PATIENTS", "generate", "large_world"]

OBSERVATIONS = 200_000
PATIENTS = 100
_VERSION = 1 + VERSION  # both versions only increase, so a change of either one changes the sum
_DISEASES = ("hypertension", "diabetes", "kidney", "heart", "anemia")


def generate(seed: int, *, observations: int = OBSERVATIONS, patients: int = PATIENTS) -> Iterator[Resource]:
    """Generate Patients, then laboratory results and vital signs, divided evenly between the Patients.

    Args:
        seed: The same seed gives the same resources.
        observations: Exact number of Observations.
        patients: Number of Patients.
    """
    people = cohort(seed, patients)
    yield from (patient_resource(person) for person in people)
    ids = IdSequence()
    for number, person in enumerate(people):
        share = observations // patients + (number < observations % patients)
        yield from _measured(SeededRandom(seed, "large", person.mrn), ids.new, person, share)


def _measured(
    chance: SeededRandom, new_id: Callable[[str], str], person: Demographics, count: int
) -> Iterator[Resource]:
    """Generate Observations of one patient, in no chronological order."""
    diseases = [disease for disease in _DISEASES if chance.percent(30)]
    span = int((NOW - START).total_seconds()) // 60
    bases = list(LABS)
    signs = ["BP", *VITALS]
    while count > 0:
        taken = START + minutes(chance.between(0, span - 180))
        if chance.percent(45):
            found = lab_resources(chance, new_id, person, chance.some(bases, chance.between(1, 8)), taken, diseases)
        else:
            found = vital_resources(chance, new_id, person, chance.some(signs, chance.between(2, 5)), taken, diseases)
        for observation in list(found)[:count]:
            count -= 1
            yield observation


def large_world(
    observations: int = OBSERVATIONS, patients: int = PATIENTS, *, progress: Progress | None = None
) -> Path:
    """Return the path of the world. The first call builds the world in the cache folder."""
    recipe = Recipe(
        f"large-{observations}-{patients}",
        f"{observations:,} Observations over {patients:,} patients",
        _VERSION,
        NOW,
        partial(generate, observations=observations, patients=patients),
        observations + patients,
    )
    with load_recipe(recipe, progress=progress) as world:
        return world.path
