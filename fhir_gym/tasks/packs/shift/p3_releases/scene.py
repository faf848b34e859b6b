"""Patients with documents, consents and earlier releases, and the policies about releases."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from types import MappingProxyType
from typing import Any

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import Concept, IdAllocator, Person, at, instant, patient_resource, reference
from fhir_gym.tasks.packs.shift.clinic import SERVICES
from fhir_gym.tasks.packs.shift.formulary import LOINC
from fhir_gym.tasks.packs.shift.kind import ShiftScene
from fhir_gym.tasks.packs.shift.patient_records import Chart, charts_of
from fhir_gym.tasks.packs.shift.patients import draw_patients
from fhir_gym.tasks.packs.shift.policies import Library, policy_resources
from fhir_gym.tasks.packs.shift.policy_drawing import draw_library
from fhir_gym.tasks.packs.shift.policy_texts import Rule, Subject
from fhir_gym.tasks.packs.shift.registry import PROVIDER, organization_resource, place_names
from fhir_gym.types import Json, Resource

ACT_REASON = "http://terminology.hl7.org/CodeSystem/v3-ActReason"
PURPOSES = MappingProxyType({"treatment": "TREAT", "payment": "HPAYMT", "research": "HRESCH"})
"""The codes of the purposes by the names that requests use."""
NO_CONSENT, CONSENT, APPROVAL = "no consent", "a consent", "an approval that the desk cannot give"
CONSENT_DAYS, SPAN, RESTRICTED, REPEAT = "consent-days", "span", "restricted", "repeat"
LEFT_OUT = "left out"
RELEASE = Subject(
    "release",
    "Release of documents",
    (
        Rule("treatment", "A release for treatment needs {value}.", (NO_CONSENT, CONSENT)),
        Rule("payment", "A release for payment needs {value}.", (NO_CONSENT, CONSENT, APPROVAL)),
        Rule("research", "A release for research needs {value}.", (CONSENT, APPROVAL)),
        Rule(
            CONSENT_DAYS, "A consent counts for {value} days after the day of its dateTime.", ("45", "90", "120", "180")
        ),
        Rule(SPAN, "The desk releases documents of the last {value} days.", ("60", "90", "150", "210", "300")),
        Rule(RESTRICTED, "Restricted documents are {value}.", (LEFT_OUT, "released like others")),
        Rule(REPEAT, "A release is not repeated within {value} days.", ("14", "30", "45", "60")),
    ),
)
"""The subject of policies about releases; the names of the first points are the purposes."""

_LIMITS = frozenset(int(value) for rule in RELEASE.rules for value in rule.values if value.isdigit())
_OLDEST_DAYS = 400
_CONFIDENTIALITY = "http://terminology.hl7.org/CodeSystem/v3-Confidentiality"
_TYPES = (
    Concept(system=LOINC, code="11488-4", display="Consult note"),
    Concept(system=LOINC, code="18842-5", display="Discharge summary"),
    Concept(system=LOINC, code="11506-3", display="Progress note"),
    Concept(system=LOINC, code="34117-2", display="History and physical note"),
)
_SENTENCES = (
    "The patient was seen today and feels well.",
    "There is no change since the last visit.",
    "The findings were discussed with the patient.",
    "The examination showed nothing unusual.",
    "The patient will come again if the complaints return.",
    "The current treatment continues.",
    "The patient was advised to rest for some days.",
)
_STATUS = (*("current",) * 8, "superseded", "entered-in-error")
_TEXT_STATUS = (*("final",) * 6, "amended", "preliminary", "preliminary")
_CONSENT = (*("active",) * 5, "draft", "rejected", "inactive", "entered-in-error")
_SENT = (*("completed",) * 4, "in-progress", "preparation", "not-done", "entered-in-error")


class ReleaseScene(ShiftScene):
    """The records of some patients, and the policies of the hospital.

    Attributes:
        departments: The departments with documents.
        recipients: Ids of the Organizations that may receive documents, by name.
        people: The patients. Some of them share name and date of birth with another patient.
        records: The documents, consents and earlier releases of the patients, in no particular order.
    """

    now: str
    departments: tuple[Concept, ...]
    recipients: dict[str, str]
    people: tuple[Person, ...]
    records: tuple[dict[str, Any], ...]
    library: Library

    @cached_property
    def charts(self) -> dict[str, Chart]:
        """The charts of the patients by reference (``Patient/1``)."""
        return charts_of([*map(patient_resource, self.people)], self.records)

    @override
    def resources(self) -> list[Resource]:
        return [
            *(organization_resource(id, name, *PROVIDER) for name, id in self.recipients.items()),
            *map(patient_resource, self.people),
            *self.records,
            *policy_resources(self.library, (RELEASE,)),
        ]


class ReleaseSceneSampler:
    """Draws the records; those of all patients come from the same random process."""

    def __init__(self, rng: random.Random, world: World, ids: IdAllocator) -> None:
        self._rng, self._world, self._today = rng, world, world.now.date()
        self._ids = ids
        self._departments: list[Concept] = []
        self._recipients: dict[str, str] = {}

    def scene(
        self,
        *,
        people: Sequence[int],
        twins: int,
        departments: int,
        recipients: int,
        documents: Sequence[int],
        policies: int,
        amended_at: Sequence[datetime] = (),
    ) -> ReleaseScene:
        """Draw the records."""
        rng, ids = self._rng, self._ids
        self._departments = rng.sample(SERVICES, departments)
        self._recipients = {
            place_name: ids.new("Organization") for place_name in place_names(rng, self._world, recipients)
        }
        patients = draw_patients(rng, self._world, ids, people, twins)
        records = [
            record
            for patient in patients
            for record in (
                *self._documents(patient.id, documents),
                *self._consents(patient.id, rng.choice((3, 4, 5))),
                *(self._release(patient.id) for _ in range(rng.choice((0, 1, 2, 3)))),
            )
        ]
        other = rng.choice([service for service in SERVICES if service not in self._departments])
        return ReleaseScene(
            now=instant(self._world.now),
            departments=tuple(sorted(self._departments, key=lambda department: department.display)),
            recipients=self._recipients,
            people=tuple(patients),
            records=tuple(records),
            library=draw_library(
                rng, ids, self._world.now, (RELEASE,), [*self._departments, other], policies, soon=amended_at
            ),
        )

    def _ago(self, first: int, last: int = _OLDEST_DAYS) -> str:
        """Draw an instant a number of days ago that is not close to a limit of the policies."""
        while True:
            days = self._rng.randint(first, last)
            if not {days - 1, days, days + 1} & _LIMITS:
                day = self._today - timedelta(days=days)
                return instant(at(day, self._rng.randrange(7, 18), self._rng.randrange(60)))

    def _documents(self, patient: str, counts: Sequence[int]) -> Iterator[Resource]:
        rng = self._rng
        for department in self._departments:
            for _ in range(rng.choice(counts)):
                kind, written = rng.choice(_TYPES), self._ago(2)
                label = "R" if rng.random() < 0.2 else "N"
                title = _title(kind, department, written)
                text = f"{title}\n\n{' '.join(rng.sample(_SENTENCES, 4))}\n"
                yield {
                    "resourceType": "DocumentReference",
                    "id": self._ids.new("DocumentReference"),
                    "status": rng.choice(_STATUS),
                    "docStatus": rng.choice(_TEXT_STATUS),
                    "type": kind.concept,
                    "subject": reference("Patient", patient),
                    "date": written,
                    "securityLabel": [{"coding": [_label(label)]}],
                    "content": [_text(text, title, written)],
                    "context": {"practiceSetting": department.concept},
                }

    def _consents(self, patient: str, count: int) -> Iterator[Resource]:
        """Draw the consents of a patient, given at different times."""
        moments: dict[str, None] = {}
        while len(moments) < count:
            moments[self._ago(2, 380)] = None
        for moment in moments:
            status = self._rng.choice(_CONSENT)
            yield consent_resource(self._ids.new("Consent"), patient, moment, self._provision(), status)

    def _provision(self) -> Resource:
        rng = self._rng
        provision: Resource = {"type": rng.choice(("deny", "permit", "permit"))}
        if rng.random() < 0.4:
            start = self._today - timedelta(days=rng.randint(20, _OLDEST_DAYS))
            end = self._today + timedelta(days=rng.choice((-15, -3, 10, 60, 200)))
            provision["period"] = {"start": min(start, end).isoformat(), "end": end.isoformat()}
        if rng.random() < 0.5:
            actors = rng.sample(sorted(self._recipients), rng.choice((1, 1, 2)))
            provision["actor"] = [
                {"role": _RECIPIENT, "reference": reference("Organization", self._recipients[actor])}
                for actor in actors
            ]
        if rng.random() < 0.5:
            purposes = rng.sample(sorted(PURPOSES), rng.choice((1, 1, 2)))
            provision["purpose"] = [{"system": ACT_REASON, "code": PURPOSES[purpose]} for purpose in purposes]
        if rng.random() < 0.4:
            provision["code"] = [rng.choice(self._departments).concept]
        return provision

    def _release(self, patient: str) -> Resource:
        rng = self._rng
        name, purpose, department = (
            rng.choice(sorted(self._recipients)),
            rng.choice(sorted(PURPOSES)),
            self._departments,
        )
        communication = release_resource(
            *(rng.choice(department), patient, self._recipients[name], purpose, self._ago(2, 90), ()),
            status=rng.choice(_SENT),
        )
        return {"resourceType": "Communication", "id": self._ids.new("Communication"), **communication}


_RECIPIENT: Resource = {
    "coding": [
        {
            "system": "http://terminology.hl7.org/CodeSystem/v3-ParticipationType",
            "code": "IRCP",
            "display": "information recipient",
        }
    ]
}


def _label(code: str) -> Resource:
    return {"system": _CONFIDENTIALITY, "code": code, "display": {"R": "restricted", "N": "normal"}[code]}


def _title(kind: Concept, department: Concept, written: str) -> str:
    return f"{kind.display}, {department.display}, {written[:16].replace('T', ' ')}"


def _text(text: str, title: str, written: str) -> Resource:
    data = base64.b64encode(text.encode()).decode()
    return {"attachment": {"contentType": "text/plain", "data": data, "title": title, "creation": written}}


_POLICY = {
    "system": "http://terminology.hl7.org/CodeSystem/consentpolicycodes",
    "code": "hipaa-auth",
    "display": "HIPAA Authorization",
}


def consent_resource(id: str, patient: str, given_on: str, provision: Resource, status: str = "active") -> Resource:
    """Build a Consent."""
    scope = {
        "system": "http://terminology.hl7.org/CodeSystem/consentscope",
        "code": "patient-privacy",
        "display": "Privacy Consent",
    }
    return {
        "resourceType": "Consent",
        "id": id,
        "status": status,
        "scope": {"coding": [scope]},
        "category": [{"coding": [{"system": LOINC, "code": "59284-0", "display": "Consent Document"}]}],
        "patient": reference("Patient", patient),
        "dateTime": given_on,
        "policyRule": {"coding": [_POLICY]},
        "provision": provision,
    }


def document_resource(id: str, patient: str, department: Concept, written: str) -> Resource:
    """Build a document that can be released."""
    return {
        "resourceType": "DocumentReference",
        "id": id,
        "status": "current",
        "docStatus": "final",
        "type": _TYPES[0].concept,
        "subject": reference("Patient", patient),
        "date": written,
        "securityLabel": [{"coding": [_label("N")]}],
        "content": [_text("", _title(_TYPES[0], department, written), written)],
        "context": {"practiceSetting": department.concept},
    }


def release_resource(
    department: Concept,
    patient: str,
    recipient: str,
    purpose: str,
    sent: str,
    documents: Sequence[str],
    status: str = "completed",
) -> Resource:
    """Build the Communication of a release."""
    content: list[Json] = [{"contentReference": {"reference": document}} for document in documents]
    return {
        "resourceType": "Communication",
        "status": status,
        "category": [{"coding": [{"system": department.system, "code": department.code}]}],
        "subject": reference("Patient", patient),
        "sent": sent,
        "recipient": [reference("Organization", recipient)],
        "reasonCode": [{"coding": [{"system": ACT_REASON, "code": PURPOSES[purpose]}]}],
        **({"payload": content} if content else {}),
    }
