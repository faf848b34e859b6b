"""Requests to release documents: what the rules say about them, and their judgement."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property, lru_cache, partial

from typing_extensions import override

from fhir_gym.tasks.authoring import Concept, codings, concept_texts, instant, parse_instant, reference
from fhir_gym.tasks.core.ids import seeded_random
from fhir_gym.tasks.grading import parse_reference, same_reference
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog, patients_of
from fhir_gym.tasks.packs.shift.kind import RequestContent
from fhir_gym.tasks.packs.shift.lookups import Named
from fhir_gym.tasks.packs.shift.outcomes import ALREADY_DONE, DONE, NOT_ALLOWED, NOTHING_TO_DO
from fhir_gym.tasks.packs.shift.p3_releases.scene import (
    ACT_REASON,
    APPROVAL,
    CONSENT,
    CONSENT_DAYS,
    LEFT_OUT,
    PURPOSES,
    RELEASE,
    REPEAT,
    RESTRICTED,
    SPAN,
    ReleaseScene,
    consent_resource,
    document_resource,
)
from fhir_gym.tasks.packs.shift.patient_records import (
    Chart,
    Entry,
    broken,
    chart_at,
    coded_in,
    created_for,
    moment_of,
    name_of,
    other_values,
)
from fhir_gym.tasks.packs.shift.patients import PatientJudge, PatientRequest
from fhir_gym.types import Json, Resource, as_list, as_object, objects_in

SENT = ("completed", "in-progress")
"""Statuses of releases that count."""
READABLE = ("final", "amended")
"""Statuses of the texts of documents that count."""
CONSENT_RULES = (
    *("consents", "refusals", "latest consent", "consent status", "consent period", "consent purpose"),
    *("consent actor", "consent department", "consent age"),
)
DOCUMENT_RULES = ("document status", "text status", "document department", "document age", "restricted documents")
REPEAT_RULES = ("repeats", "release status", "release department", "release recipient", "release age")
RULES = (*CONSENT_RULES, *DOCUMENT_RULES, *REPEAT_RULES)
"""The rules that an agent may overlook; ``refusals`` count even if no consent is needed."""


class ReleaseContent(RequestContent):
    """What to release.

    Attributes:
        department: Name of the department.
    """

    patient: Named
    department: str
    recipient: str
    purpose: str


class ReleaseRequest(PatientRequest):
    """A request to release documents."""

    ask: ReleaseContent


@dataclass(frozen=True, slots=True)
class Decision:
    """What the rules say about a request.

    Attributes:
        documents: References to the documents to release.
        records: References to records that show why nothing is released; each of them suffices.
        points: Names of the points of the policies that decide.
        lacks_consent: Whether nothing is released because there is no consent.
    """

    outcome: str
    documents: frozenset[str] = frozenset()
    records: tuple[str, ...] = ()
    points: frozenset[str] = frozenset()
    lacks_consent: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """Functions that read the records of a patient for a request. A decision calls only those that it needs.

    Attributes:
        releases: Reads the earlier releases.
        consents: Reads the consents; the latest is the last.
    """

    releases: Callable[[], tuple[Entry, ...]]
    consents: Callable[[], tuple[Entry, ...]]
    documents: Callable[[], tuple[Entry, ...]]


@dataclass(frozen=True, slots=True)
class Release:
    """A request with the references to what it names, and the policies that decide.

    Attributes:
        recipient: Reference to the Organization.
        values: The valid values of the policies for the department.
    """

    department: Concept
    recipient: str
    purpose: str
    values: Mapping[str, str]
    today: str
    base_url: str = ""

    def decide(self, chart: Chart) -> Decision:
        """Decide about the request by the records of the patient."""
        reads = (partial(read, chart) for read in (self.releases, self.consents, self.documents))
        return self.decide_by(Reading(*reads))

    def releases(self, chart: Chart) -> tuple[Entry, ...]:
        """Read the earlier releases of a patient. They depend on the department, the recipient and the policies."""
        return tuple(map(self._sent, chart.of("Communication")))

    def consents(self, chart: Chart) -> tuple[Entry, ...]:
        """Read the consents of a patient; the latest is the last."""
        return self.apply(terms_of(chart, self.base_url))

    def apply(self, consents: Iterable[Terms]) -> tuple[Entry, ...]:
        """Return the effects of the consents on the request, latest last."""
        return tuple(sorted(map(self._consent, consents), key=lambda consent: consent.moment))

    def documents(self, chart: Chart) -> tuple[Entry, ...]:
        """Read the documents of a patient. They depend on the department and the policies alone."""
        return tuple(map(self._document, chart.of("DocumentReference")))

    def decide_by(self, reading: Reading, ignoring: str = "") -> Decision:
        """Decide about the request."""
        repeats = [release for release in reading.releases() if release.counts(ignoring)]
        if repeats and ignoring != "repeats":
            return Decision(ALREADY_DONE, records=_names(repeats), points=frozenset({REPEAT}))
        need = self.values[self.purpose]
        points = {REPEAT, self.purpose}
        if need == APPROVAL:
            return Decision(NOT_ALLOWED, points=frozenset(points))
        consents = [consent for consent in reading.consents() if consent.counts(ignoring)]
        deciding = consents[:1] if ignoring == "latest consent" else consents[-1:]
        if ignoring != "consents":
            if deciding and deciding[0].flag and (need == CONSENT or ignoring != "refusals"):
                return Decision(NOT_ALLOWED, records=_names(deciding))
            if need == CONSENT and not deciding:
                return Decision(NOT_ALLOWED, points=frozenset({*points, CONSENT_DAYS}), lacks_consent=True)
        documents = [document for document in reading.documents() if document.counts(ignoring)]
        outcome = DONE if documents else NOTHING_TO_DO
        return Decision(outcome, frozenset(_names(documents)), points=frozenset({SPAN, RESTRICTED}))

    def _is_recent(self, value: Json, point: str) -> bool:
        return moment_of(value) >= _day_before(self.today, self.values[point])

    def _is_department(self, concepts: Json) -> bool:
        return self._department_code in coded_in(concepts)

    @property
    def _department_code(self) -> tuple[str, str]:
        return self.department.system, self.department.code

    def _sent(self, release: Resource) -> Entry:
        rules = {
            "release status": release.get("status") in SENT,
            "release department": self._is_department(release.get("category")),
            "release recipient": any(self._is_recipient(recipient) for recipient in as_list(release.get("recipient"))),
            "release age": self._is_recent(release.get("sent"), REPEAT),
        }
        return Entry(name_of(release), broken(rules))

    def _is_recipient(self, value: Json) -> bool:
        return same_reference(value, self.recipient, self.base_url)

    def _consent(self, consent: Terms) -> Entry:
        first = _day_before(self.today, self.values[CONSENT_DAYS])
        rules = {
            "consent status": consent.is_active,
            "consent period": _contains(consent.period, self.today),
            "consent purpose": not consent.purposes or PURPOSES[self.purpose] in consent.purposes,
            "consent actor": not consent.actors or self.recipient in consent.actors,
            "consent department": consent.codes is None or self._department_code in consent.codes,
            "consent age": consent.denies or consent.moment >= first,
        }
        return Entry(consent.record, broken(rules), moment=consent.moment, flag=consent.denies)

    def _document(self, document: Resource) -> Entry:
        setting = as_object(document.get("context")).get("practiceSetting")
        restricted = any(label.get("code") == "R" for label in codings(document.get("securityLabel")))
        rules = {
            "document status": document.get("status") == "current",
            "text status": document.get("docStatus") in READABLE,
            "document department": self._is_department(setting),
            "document age": self._is_recent(document.get("date"), SPAN),
            "restricted documents": not restricted or self.values[RESTRICTED] != LEFT_OUT,
        }
        return Entry(name_of(document), broken(rules))

    def problems(self, communication: Resource, documents: frozenset[str]) -> Iterator[Json]:
        """Yield the errors in the Communication of a release."""
        yield from other_values(communication, status="completed")
        expected = {"category": self._department_code, "reasonCode": (ACT_REASON, PURPOSES[self.purpose])}
        for name, code in expected.items():
            if coded_in(communication.get(name)) != [code]:
                yield {name: communication.get(name)}
        recipients = as_list(communication.get("recipient"))
        if len(recipients) != 1 or not self._is_recipient(recipients[0]):
            yield {"recipient": communication.get("recipient")}
        if moment_of(communication.get("sent"))[:10] != self.today:
            yield f"sent {communication.get('sent')}"
        parts = [as_object(payload).get("contentReference") for payload in as_list(communication.get("payload"))]
        left = [
            document
            for document in documents
            if not any(same_reference(part, document, self.base_url) for part in parts)
        ]
        if left or len(parts) != len(documents):
            yield {"payload": communication.get("payload"), "expected": sorted(documents)}

    def permit(self, patient: str, scene: ReleaseScene) -> Resource:
        """Return a consent of a patient that does not exist and permits the release, like one of another patient."""
        days = self.values[CONSENT_DAYS]
        id = f"permit-{patient}-{self.department.code}-{self.recipient}-{self.purpose}-{days}"
        consents = [consent for chart in scene.charts.values() for consent in chart.of("Consent")]
        entries = [self._consent(_terms(consent, self.base_url)) for consent in consents]
        models = [model for model, entry in zip(consents, entries, strict=True) if not entry.flag and entry.counts("")]
        rng = seeded_random(id)
        if models:
            return {**rng.choice(models), "id": id, "patient": reference("Patient", patient)}
        given_on = _random_moment(rng, _day_before(self.today, days), scene.now)
        return consent_resource(id, patient, given_on, {"type": "permit"})

    def missing_document(self, patient: str, scene: ReleaseScene) -> Resource:
        """Return a document of a patient that does not exist and would be released, like one of another patient."""
        span = self.values[SPAN]
        id = f"document-{patient}-{self.department.code}-{span}-{self.values[RESTRICTED]}"
        own = {"id": id, "subject": reference("Patient", patient)}
        context = {"practiceSetting": self.department.concept}
        documents = [
            document_reference
            for chart in scene.charts.values()
            for document_reference in chart.of("DocumentReference")
        ]
        models = [document for document in documents if self._document({**document, "context": context}).counts("")]
        rng = seeded_random(id)
        if models:
            return {**rng.choice(models), **own, "context": context}
        written = _random_moment(rng, _day_before(self.today, span), scene.now)
        return document_resource(id, patient, self.department, written)


@dataclass(frozen=True, slots=True)
class Terms:
    """What a consent says.

    Attributes:
        record: Reference to the Consent.
        denies: Whether the consent is a refusal.
        moment: When the consent was given (instant).
        period: The period for which the consent holds.
        purposes: The codes of the purposes; empty for all purposes.
        actors: References to the recipients, None for other actors; empty for all recipients.
        codes: Systems and codes of the departments; None for all departments.
    """

    record: str
    is_active: bool
    denies: bool
    moment: str
    period: Json
    purposes: Sequence[Json]
    actors: frozenset[str | None]
    codes: Sequence[tuple[Json, Json]] | None


def terms_of(chart: Chart, base_url: str = "") -> list[Terms]:
    """Return what the consents of a patient say."""
    return [_terms(consent, base_url) for consent in chart.of("Consent")]


def _terms(consent: Resource, base_url: str) -> Terms:
    provision = as_object(consent.get("provision"))
    parsed = (parse_reference(actor.get("reference"), base_url) for actor in objects_in(provision.get("actor")))
    return Terms(
        record=name_of(consent),
        is_active=consent.get("status") == "active",
        denies=provision.get("type") == "deny",
        moment=moment_of(consent.get("dateTime")),
        period=provision.get("period"),
        purposes=[purpose.get("code") for purpose in objects_in(provision.get("purpose"))],
        actors=frozenset("/".join(name) if name else None for name in parsed),
        codes=coded_in(provision["code"]) if "code" in provision else None,
    )


def _random_moment(rng: random.Random, first_day: str, last: str) -> str:
    """Draw an instant between the start of a day and an instant."""
    start, end = parse_instant(f"{first_day}T00:00:00Z"), parse_instant(last)
    return instant(start + timedelta(seconds=rng.randrange(int((end - start).total_seconds()))))


@lru_cache(maxsize=256)
def _day_before(day: str, days: str) -> str:
    """Return the day that is a number of days before a day."""
    return (date.fromisoformat(day) - timedelta(days=int(days))).isoformat()


def release_of(ask: ReleaseContent, scene: ReleaseScene, values: Mapping[str, str], base_url: str = "") -> Release:
    """Return a request with the records that it names."""
    recipient = f"Organization/{scene.recipients[ask.recipient]}"
    return Release(department_of(ask, scene), recipient, ask.purpose, values, scene.now[:10], base_url)


def department_of(ask: ReleaseContent, scene: ReleaseScene) -> Concept:
    """Return the department of a request."""
    return next(department for department in scene.departments if department.display == ask.department)


def _contains(period: Json, day: str) -> bool:
    """Whether a period contains a day; a missing period contains all days."""
    if not isinstance(period, dict):
        return period is None
    start, end = (str(period.get(name, day))[:10] for name in ("start", "end"))
    return start <= day <= end


def _names(entries: Sequence[Entry]) -> tuple[str, ...]:
    return tuple(entry.record for entry in entries)


class ReleaseJudge(PatientJudge[ReleaseScene, ReleaseRequest]):
    """Judges releases against the records that the agent met."""

    def __init__(
        self, requests: Sequence[ReleaseRequest], scene: ReleaseScene, log: EpisodeLog, answers: Sequence[str]
    ) -> None:
        super().__init__(requests, scene, log, answers)
        self._now, self._today = parse_instant(scene.now), instant(log.end.world.now)[:10]

    def _release(self, number: int) -> Release:
        ask = self.requests[number].ask
        values = self.scene.library.values(RELEASE.code, department_of(ask, self.scene).code, self._now)
        return release_of(ask, self.scene, values, self.base_url)

    @cached_property
    def _new(self) -> dict[str, str]:
        """The Communications that the agent created for patients of the scene, each with its patient."""
        return created_for(self.log, "Communication", self.scene.charts)

    @override
    @cached_property
    def claimed(self) -> list[frozenset[str]]:
        """For each request, the new Communications that belong to it."""
        claimed: list[set[str]] = [set() for _ in self.requests]
        for record, patient in self._new.items():
            possible = [
                n for n, request in enumerate(self.requests) if patient.removeprefix("Patient/") in request.patients
            ]
            if possible:
                # If a Communication fits several requests, it belongs to the first that was answered as done.
                fit = {n: self._fit(n, self.log.created[record]) for n in possible}
                best = min(possible, key=lambda n: (-fit[n], bool(claimed[n]), self.answers[n] != DONE, n))
                claimed[best].add(record)
        return [frozenset(records) for records in claimed]

    def _fit(self, number: int, made: Resource) -> int:
        """Return how many of recipient, department and purpose of a Communication are those of a request."""
        return 5 - len(
            [*self._release(number).problems({**made, "status": "completed", "sent": self._today}, frozenset())]
        )

    def _charts(self, number: int, patient: str) -> list[Chart]:
        """Return the records of a patient at the moments that decide a request, without releases for this request.

        A release is right if it was so when the agent wrote it, or is so at the end of the episode. If there is no
        release, the earlier letters decide. Live shifts have no letters; there, also the end of the episode decides.
        """
        log, end = self.log, len(self.log.writes)
        mine = [write.number for write in log.writes if write.record in self.claimed[number]]
        own = self.claimed[number]
        others = [record for record, whose in self._new.items() if whose == patient and record not in own]
        earlier = [record for record in others if any(record in claimed for claimed in self.claimed[:number])]
        moments = [(end, others), (min(mine), others)] if mine else [(end, earlier), (0, earlier)]
        if not mine and log.end.timeline:
            moments.append((end, others))
        charts: list[Chart] = []
        for moment, releases in moments:
            chart = chart_at(log, self.scene.charts[patient], moment).with_records_at(log, releases, moment or end)
            if chart not in charts:
                charts.append(chart)
        return charts

    def _decisions(self, number: int, release: Release) -> list[Decision]:
        patients = self.requests[number].patients
        charts = self._charts(number, f"Patient/{patients[0]}") if len(patients) == 1 else []
        return [release.decide(chart) for chart in charts]

    @override
    def problems(self, number: int, left: Sequence[str]) -> tuple[Sequence[Json], Json]:
        request, release = self.requests[number], self._release(number)
        problems: list[Json] = [f"left {', '.join(left)}"]
        possible = [decision for decision in self._decisions(number, release) if decision.outcome == DONE]
        if len(left) == 1 and possible:
            made = self.log.at_end(left[0]) or {}
            problems = [*release.problems(made, possible[0].documents)]
            if patients_of(made, self.base_url) != {f"Patient/{request.patients[0]}"}:
                problems.append({"subject": made.get("subject")})
            others = [other.display.casefold() for other in self.scene.departments if other != release.department]
            if any(other in text.casefold() for text in concept_texts(made.get("category")) for other in others):
                problems.append({"category": made.get("category")})
        return problems, None

    @override
    def is_rightly_declined_for_patient(self, number: int) -> bool:
        patient, release = self.requests[number].patients[0], self._release(number)
        return any(
            self.answers[number] == decision.outcome != DONE and self._knows(patient, release, decision)
            for decision in self._decisions(number, release)
        )

    def _knows(self, patient: str, release: Release, decision: Decision) -> bool:
        """Whether the agent has read the policies that decide, and has seen or looked for the records that decide."""
        log = self.log
        points = sorted(decision.points)
        if not log.has_seen(self.scene.library.documents_for(RELEASE.code, release.department.code, self._now, points)):
            return False
        if decision.records:
            return any(record in log.seen or record in self._new for record in decision.records)
        if decision.outcome == NOTHING_TO_DO:
            return bool(log.lookups_of(release.missing_document(patient, self.scene)))
        return not decision.lacks_consent or bool(log.lookups_of(release.permit(patient, self.scene)))
