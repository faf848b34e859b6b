from __future__ import annotations

from functools import partial

import pytest

from fhir_gym.fhir import World
from fhir_gym.types import Resource
from tests.tasks.packs.shift.playing import edited, failed, opened, play

DRUG, TEST = "MedicationRequest", "ServiceRequest"


UCUM = "http://unitsofmeasure.org"


@pytest.mark.parametrize(
    "unit",
    [
        {"code": "mg"},
        {"unit": "mg", "system": UCUM},
        {"code": "mg", "system": UCUM},
        {"unit": "mg", "code": "mg", "system": UCUM},
    ],
)
def test_the_unit_of_a_dose_may_be_written_in_any_way(hospital: World, unit: Resource) -> None:
    def edit(order: Resource) -> None:
        quantity = order["dosageInstruction"][0]["doseAndRate"][0]["doseQuantity"]
        del quantity["unit"]
        quantity.update(unit)

    with opened(hospital, "Q4-1", 4) as episode:
        assert failed(play(episode, partial(edited, DRUG, edit))) == []
