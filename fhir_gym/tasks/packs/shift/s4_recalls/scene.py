"""A place whose patients have conditions, laboratory results, orders of tests, appointments and consents."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import cached_property
from types import MappingProxyType
from typing import Any

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks import Params
from fhir_gym.tasks.authoring import (
    SNOMED,
    Concept,
    IdAllocator,
    at,
    instant,
    new_person,
    organization_name,
    patient_resource,
    reference,
)
from fhir_gym.tasks.packs.shift.charts import Diagnosis, condition_resource
from fhir_gym.tasks.packs.shift.clinic import plausible_status
from fhir_gym.tasks.packs.shift.formulary import LOINC
from fhir_gym.tasks.packs.shift.kind import ShiftScene
from fhir_gym.tasks.packs.shift.laboratory import TESTS, Analyte, LabResult, reported_value
from fhir_gym.tasks.packs.shift.laboratory import result_resource as reported_resource
from fhir_gym.tasks.packs.shift.p3_releases.scene import consent_resource
from fhir_gym.tasks.packs.shift.patient_records import Chart, charts_of
from fhir_gym.tasks.packs.shift.registry import PROVIDER, organization_resource, place_names
from fhir_gym.types import Resource

CONDITIONS = MappingProxyType(
    {
        "chronic kidney disease": Concept(system=SNOMED, code="709044004", display="Chronic kidney disease"),
        "coronary heart disease": Concept(system=SNOMED, code="53741008", display="Coronary arteriosclerosis"),
        "gout": Concept(system=SNOMED, code="90560007", display="Gout"),
        "hypertension": Concept(system=SNOMED, code="38341003", display="Hypertension"),
        "obesity": Concept(system=SNOMED, code="414916001", display="Obesity"),
        "type 2 diabetes": Concept(system=SNOMED, code="44054006", display="Type 2 diabetes mellitus"),
    }
)
"""The conditions by the names that requests use."""
CARE = "CAREMGT"
"""The purpose of consents that decide about recalls."""

_PURPOSES = {CARE: "care management", "HMARKT": "healthcare marketing", "HRESCH": "healthcare research"}
_ACT_REASON = "http://terminology.hl7.org/CodeSystem/v3-ActReason"
_LABORATORIES = (
    ("Alpine", "Beacon", "Cedar", "Delta", "Harbor", "Ironwood", "Juniper", "Lakeside"),
    ("Clinical", "Diagnostic", "Medical", "Regional"),
    ("Laboratory",),
)
_KINDS = (*(PROVIDER,) * 2, *(("dept", "Hospital Department"),) * 2)
_PREVALENCES = (0.75, 0.65, 0.55, 0.12)
"""The share of patients who have each of the conditions of a scene."""
_CLINICAL = (*("active",) * 11, "recurrence", "relapse", "inactive", "remission", "resolved")
_VERIFICATION = (*("confirmed",) * 9, "provisional", "refuted", "entered-in-error")
_RESULT = (*("final",) * 9, "amended", "corrected", "preliminary", "entered-in-error", "cancelled")
_ORDER = (*("active",) * 4, "on-hold", "completed", "revoked", "draft", "entered-in-error")
_INTENT = (*("order",) * 4, "plan", "proposal")
_VISIT = (*("booked",) * 4, "pending", "cancelled", "cancelled", "noshow", "entered-in-error")
_CONSENT = (*("active",) * 4, "draft", "rejected", "inactive", "entered-in-error")
_OLDEST_DAYS = 600
_MARGIN_DAYS = 2
"""Orders and appointments are at least this far from the limits of the rules."""


class RecallRules(Params):
    """What differs between the rules of two variations.

    Attributes:
        place: Name of the Organization whose patients are recalled.
        laboratory: Name of the Organization whose results count.
        conditions: Names of the conditions; see `CONDITIONS`.
        limits: Names of the tests, see `TESTS`, each with its limit in the main unit.
        order_days: An order counts for this number of days.
        visit_days: A visit counts if it is at most this number of days away.
    """

    place: str
    laboratory: str
    conditions: tuple[str, ...]
    limits: dict[str, str]
    order_days: int
    visit_days: int

    def limit(self, test: str, code: str) -> float:
        """Return the limit of a test in the unit of a LOINC code of this test."""
        return float(self.limit_text(test, code))

    def limit_text(self, test: str, code: str) -> str:
        """Return the limit of a test in the unit of a LOINC code of this test, as a text."""
        limits = TESTS[test]
        limit = self.limits[test]
        return limit if code == limits.main.code else reported_value(limits, limits.other, float(limit))


class RecallScene(ShiftScene):
    """The records of a place.

    Attributes:
        rules: What differs between the rules of two variations.
        place: Id of the Organization whose patients are recalled.
        laboratory: Id of the Organization whose results count.
        fewest: Minimum number of patients to recall in a sweep that has any.
        most: Maximum number of patients to recall in a sweep.
        rules_that_matter: Minimum number of rules that make a difference in each sweep.
        organizations: The place, another place and two laboratories.
        patients: The Patients of both places.
        records: The conditions, results, orders, appointments and consents of the patients, in no particular order.
    """

    now: str
    rules: RecallRules
    place: str
    laboratory: str
    fewest: int
    most: int
    rules_that_matter: int
    organizations: tuple[dict[str, Any], ...]
    patients: tuple[dict[str, Any], ...]
    records: tuple[dict[str, Any], ...]

    @cached_property
    def charts(self) -> dict[str, Chart]:
        """The charts of the patients by reference (``Patient/1``)."""
        return charts_of(self.patients, self.records)

    @override
    def resources(self) -> list[Resource]:
        return [*self.organizations, *self.patients, *self.records]


class RecallSceneSampler:
    """Draws a place; the records of all patients come from the same random process."""

    def __init__(self, rng: random.Random, world: World, ids: IdAllocator) -> None:
        self._rng, self._world, self._now, self._ids = rng, world, world.now, ids
        self._places: tuple[str, ...] = ()
        self._laboratories: tuple[str, ...] = ()

    def scene(
        self, *, patients: int, tests: int, results: Sequence[int], fewest: int, most: int, rules_that_matter: int
    ) -> RecallScene:
        """Draw the records."""
        rng, new = self._rng, self._ids.new
        self._places = (new("Organization"), new("Organization"))
        self._laboratories = (new("Organization"), new("Organization"))
        names = [*place_names(rng, self._world, 2), *self._laboratory_names()]
        conditions = tuple(rng.sample(sorted(CONDITIONS), len(_PREVALENCES)))
        chosen = rng.sample(sorted(TESTS), tests)
        rules = RecallRules(
            place=names[0],
            laboratory=names[2],
            conditions=tuple(sorted(conditions)),
            limits={test: rng.choice(TESTS[test].limits) for test in sorted(chosen)},
            order_days=rng.choice((60, 90, 120)),
            visit_days=rng.choice((14, 21, 28)),
        )
        people = [self._patient() for _ in range(patients)]
        records = [
            record
            for person in people
            for record in (
                *self._conditions(person["id"], conditions),
                *(result for test in chosen for result in self._results(person["id"], test, rng.choice(results))),
                *self._orders(person["id"], chosen, rules.order_days),
                *self._visits(person["id"], rules.visit_days),
                *self._consents(person["id"]),
            )
        ]
        return RecallScene(
            now=instant(self._now),
            rules=rules,
            place=self._places[0],
            laboratory=self._laboratories[0],
            fewest=fewest,
            most=most,
            rules_that_matter=rules_that_matter,
            organizations=tuple(
                organization_resource(id, name, *kind)
                for id, name, kind in zip((*self._places, *self._laboratories), names, _KINDS, strict=True)
            ),
            patients=tuple(people),
            records=tuple(records),
        )

    def _laboratory_names(self) -> list[str]:
        names: dict[str, None] = {}
        while len(names) < len(self._laboratories):
            names[organization_name(self._rng, self._world, _LABORATORIES)] = None
        return [*names]

    def _ago(self, first: int, last: int) -> str:
        day = self._now.date() - timedelta(days=self._rng.randint(first, last))
        return instant(at(day, self._rng.randrange(6, 18), self._rng.randrange(60)))

    def _patient(self) -> Resource:
        rng = self._rng
        patient = patient_resource(new_person(rng, self._world, self._ids.new("Patient")))
        address = patient.pop("address")
        deceased: Resource = {}
        if rng.random() < 0.2:
            deceased = rng.choice(
                ({"deceasedBoolean": False}, {"deceasedBoolean": True}, {"deceasedDateTime": self._ago(3, 60)[:10]})
            )
        return {
            **patient,
            "active": rng.random() < 0.93,
            **deceased,
            "address": address,
            "managingOrganization": reference("Organization", rng.choice((*self._places[:1] * 6, self._places[1]))),
        }

    def _conditions(self, patient: str, names: Sequence[str]) -> Iterator[Resource]:
        """Draw the diagnoses of a patient; some are recorded twice."""
        rng = self._rng
        for name, share in zip(names, _PREVALENCES, strict=True):
            if rng.random() >= share:
                continue
            for _ in range(rng.choice((1, 1, 1, 1, 2))):
                verification = rng.choice(_VERIFICATION)
                clinical = "" if verification == "entered-in-error" else rng.choice(_CLINICAL)
                id, recorded = self._ids.new("Condition"), self._ago(20, _OLDEST_DAYS)
                yield diagnosis(id, name, patient, recorded, clinical, verification)

    def _results(self, patient: str, name: str, count: int) -> Iterator[Resource]:
        """Draw the results of a patient, on different days."""
        rng, test = self._rng, TESTS[name]
        today = self._now.date()
        for ago in sorted(rng.sample(range(5, _OLDEST_DAYS), count), reverse=True):
            taken = at(today - timedelta(days=ago), rng.randrange(6, 18), rng.randrange(60))
            analyte = rng.choice((*(test.main,) * 4, *(test.other,) * 3, test.similar))
            observation = reported_resource(
                LabResult(
                    id=self._ids.new("Observation"),
                    patient=patient,
                    code=analyte.code,
                    status=rng.choice(_RESULT),
                    taken=instant(taken),
                    issued=instant(taken + timedelta(minutes=rng.randrange(40, 400))),
                    value=reported_value(test, analyte, rng.uniform(test.low, test.high)),
                )
            )
            value = observation.pop("valueQuantity")
            laboratory = rng.choice((*self._laboratories[:1] * 6, self._laboratories[1]))
            observation["performer"] = [reference("Organization", laboratory)]
            observation |= {"dataAbsentReason": _UNKNOWN} if rng.random() < 0.14 else {"valueQuantity": value}
            yield observation

    def _orders(self, patient: str, names: Sequence[str], days: int) -> Iterator[Resource]:
        """Draw orders of tests; some are for a similar test."""
        rng = self._rng
        for name in names:
            for _ in range(rng.choice((0, 0, 0, 0, 1, 2))):
                test = TESTS[name]
                recent = rng.random() < 0.6
                yield {
                    "resourceType": "ServiceRequest",
                    "id": self._ids.new("ServiceRequest"),
                    "status": rng.choice(_ORDER),
                    "intent": rng.choice(_INTENT),
                    "code": coded(rng.choice((test.main, test.main, test.other, test.similar))),
                    "subject": reference("Patient", patient),
                    "authoredOn": self._ago(1, days - _MARGIN_DAYS) if recent else self._ago(days + _MARGIN_DAYS, 400),
                }

    def _visits(self, patient: str, days: int) -> Iterator[Resource]:
        """Draw appointments, most of them in the future."""
        rng = self._rng
        for _ in range(rng.choice((0, 0, 0, 0, 1, 1, 2))):
            near = rng.randint(_MARGIN_DAYS, days - _MARGIN_DAYS)
            ahead = rng.choice((near, near, near, -near, days + near))
            start = at(self._now.date() + timedelta(days=ahead), rng.randrange(8, 17), rng.choice((0, 15, 30, 45)))
            yield {
                "resourceType": "Appointment",
                "id": self._ids.new("Appointment"),
                "status": plausible_status(rng.choice(_VISIT), instant(start), instant(self._now)),
                "start": instant(start),
                "end": instant(start + timedelta(minutes=rng.choice((20, 30, 45)))),
                "participant": [{"actor": reference("Patient", patient), "status": "accepted"}],
            }

    def _consents(self, patient: str) -> Iterator[Resource]:
        """Draw consents; a later consent may revoke an earlier consent."""
        rng, today = self._rng, self._now.date()
        for ago in rng.sample(range(5, _OLDEST_DAYS), rng.choice((0, 0, 0, 0, 1, 2, 3, 3))):
            purpose = rng.choice((CARE, CARE, CARE, *_PURPOSES))
            id, status = self._ids.new("Consent"), rng.choice(_CONSENT)
            given_on = instant(at(today - timedelta(days=ago), rng.randrange(8, 17), rng.randrange(60)))
            provision = {
                "type": rng.choice(("deny", "deny", "permit")),
                "purpose": [{"system": _ACT_REASON, "code": purpose, "display": _PURPOSES[purpose]}],
            }
            yield consent_resource(id, patient, given_on, provision, status)


_UNKNOWN: Resource = {
    "coding": [
        {"system": "http://terminology.hl7.org/CodeSystem/data-absent-reason", "code": "error", "display": "Error"}
    ],
    "text": "The specimen could not be analyzed.",
}


def coded(analyte: Analyte) -> Resource:
    """Build the code of an order."""
    return {"coding": [{"system": LOINC, "code": analyte.code, "display": analyte.display}]}


def diagnosis(
    id: str, name: str, patient: str, recorded: str, clinical: str = "active", verification: str = "confirmed"
) -> Resource:
    """Build a Condition."""
    return condition_resource(
        Diagnosis(
            id=id,
            patient=patient,
            concept=CONDITIONS[name],
            clinical=clinical,
            verification=verification,
            recorded=recorded,
        )
    )


def recall_resource(test: str, condition: str, patient: str, written: str, urgent: bool) -> Resource:
    """Build the recall of a patient: an order of the test."""
    reason = CONDITIONS[condition]
    return {
        "resourceType": "ServiceRequest",
        "status": "active",
        "intent": "order",
        "priority": "urgent" if urgent else "routine",
        "code": {"coding": [{"system": LOINC, "code": TESTS[test].main.code}]},
        "subject": reference("Patient", patient),
        "authoredOn": written,
        "reasonCode": [{"coding": [{"system": reason.system, "code": reason.code}]}],
    }
