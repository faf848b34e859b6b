"""Requests to release documents: what the rules say about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial

from fhir_gym.tasks.authoring import Concept, codings, instant, parse_instant
from fhir_gym.tasks.grading import same_reference
from fhir_gym.tasks.packs.shift.kind import Ask
from fhir_gym.tasks.packs.shift.lookups import Named
from fhir_gym.tasks.packs.shift.outcomes import ALREADY_DONE, DONE, NOT_ALLOWED, NOTHING_TO_DO
from fhir_gym.tasks.packs.shift.patient_records import Chart, Entry, broken, moment_of, name_of
from fhir_gym.tasks.packs.shift.patients import PatientRequest
from fhir_gym.tasks.packs.shift.release_records import (
    ACT_REASON,
    APPROVAL,
    CONSENT,
    CONSENT_DAYS,
    LEFT_OUT,
    PURPOSES,
    REPEAT,
    RESTRICTED,
    SPAN,
    ReleaseScene,
    consent_resource,
    document_resource,
)
from fhir_gym.types import Json, Resource

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


class ReleaseAsk(Ask):
    """What to release.

    Attributes:
        patient: The patient's name and date of birth.
        department: Name of the department.
        recipient: Name of the Organization.
        purpose: The purpose; see `PURPOSES`.
    """

    patient: Named
    department: str
    recipient: str
    purpose: str


class ReleaseRequest(PatientRequest):
    """A request to release documents."""

    ask: ReleaseAsk


@dataclass(frozen=True, slots=True)
class Decision:
    """What the rules say about a request.

    Attributes:
        outcome: The outcome.
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
        documents: Reads the documents.
    """

    releases: Callable[[], tuple[Entry, ...]]
    consents: Callable[[], tuple[Entry, ...]]
    documents: Callable[[], tuple[Entry, ...]]


@dataclass(frozen=True, slots=True)
class Release:
    """A request with the references to what it names, and the policies that decide.

    Attributes:
        department: The department.
        recipient: Reference to the Organization.
        purpose: The purpose; see `PURPOSES`.
        values: The valid values of the policies for the department.
        today: The present day.
        base_url: Base URL of the server.
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
        return tuple(sorted(map(self._consent, chart.of("Consent")), key=lambda one: one.moment))

    def documents(self, chart: Chart) -> tuple[Entry, ...]:
        """Read the documents of a patient. They depend on the department and the policies alone."""
        return tuple(map(self._document, chart.of("DocumentReference")))

    def decide_by(self, reading: Reading, ignoring: str = "") -> Decision:
        """Decide about the request.

        Args:
            reading: The records of the patient.
            ignoring: One of `RULES` that is not applied, or an empty text.
        """
        repeats = [one for one in reading.releases() if one.counts(ignoring)]
        if repeats and ignoring != "repeats":
            return Decision(ALREADY_DONE, records=_names(repeats), points=frozenset({REPEAT}))
        need = self.values[self.purpose]
        points = {REPEAT, self.purpose}
        if need == APPROVAL:
            return Decision(NOT_ALLOWED, points=frozenset(points))
        consents = [one for one in reading.consents() if one.counts(ignoring)]
        deciding = consents[:1] if ignoring == "latest consent" else consents[-1:]
        if ignoring != "consents":
            if deciding and deciding[0].flag and (need == CONSENT or ignoring != "refusals"):
                return Decision(NOT_ALLOWED, records=_names(deciding))
            if need == CONSENT and not deciding:
                return Decision(NOT_ALLOWED, points=frozenset({*points, CONSENT_DAYS}), lacks_consent=True)
        documents = [one for one in reading.documents() if one.counts(ignoring)]
        outcome = DONE if documents else NOTHING_TO_DO
        return Decision(outcome, frozenset(_names(documents)), points=frozenset({SPAN, RESTRICTED}))

    def _is_recent(self, value: Json, point: str) -> bool:
        first = date.fromisoformat(self.today) - timedelta(days=int(self.values[point]))
        return moment_of(value)[:10] >= first.isoformat()

    def _is_department(self, concepts: Json) -> bool:
        return any((one.get("system"), one.get("code")) == self._department_code for one in codings(concepts))

    @property
    def _department_code(self) -> tuple[str, str]:
        return self.department.system, self.department.code

    def _sent(self, release: Resource) -> Entry:
        rules = {
            "release status": release.get("status") in SENT,
            "release department": self._is_department(release.get("category")),
            "release recipient": any(self._is_recipient(one) for one in _list(release.get("recipient"))),
            "release age": self._is_recent(release.get("sent"), REPEAT),
        }
        return Entry(name_of(release), broken(rules))

    def _is_recipient(self, value: Json) -> bool:
        return same_reference(value, self.recipient, self.base_url)

    def _consent(self, consent: Resource) -> Entry:
        found = consent.get("provision")
        provision = found if isinstance(found, dict) else {}
        denies = provision.get("type") == "deny"
        actors = [one.get("reference") for one in _list(provision.get("actor")) if isinstance(one, dict)]
        purposes = [one.get("code") for one in _list(provision.get("purpose")) if isinstance(one, dict)]
        rules = {
            "consent status": consent.get("status") == "active",
            "consent period": _contains(provision.get("period"), self.today),
            "consent purpose": not purposes or PURPOSES[self.purpose] in purposes,
            "consent actor": not actors or any(map(self._is_recipient, actors)),
            "consent department": "code" not in provision or self._is_department(provision["code"]),
            "consent age": denies or self._is_recent(consent.get("dateTime"), CONSENT_DAYS),
        }
        return Entry(name_of(consent), broken(rules), moment=moment_of(consent.get("dateTime")), flag=denies)

    def _document(self, document: Resource) -> Entry:
        context, labels = document.get("context"), codings(document.get("securityLabel"))
        setting = context.get("practiceSetting") if isinstance(context, dict) else None
        restricted = any(one.get("code") == "R" for one in labels)
        rules = {
            "document status": document.get("status") == "current",
            "text status": document.get("docStatus") in READABLE,
            "document department": self._is_department(setting),
            "document age": self._is_recent(document.get("date"), SPAN),
            "restricted documents": not restricted or self.values[RESTRICTED] != LEFT_OUT,
        }
        return Entry(name_of(document), broken(rules))

    def problems(self, made: Resource, documents: frozenset[str]) -> Iterator[Json]:
        """Yield what is wrong with the Communication of a release.

        Args:
            made: The Communication.
            documents: References to the documents to release.
        """
        if made.get("status") != "completed":
            yield f"status {made.get('status')}"
        wanted = {"category": self._department_code, "reasonCode": (ACT_REASON, PURPOSES[self.purpose])}
        for name, code in wanted.items():
            if [(one.get("system"), one.get("code")) for one in codings(made.get(name))] != [code]:
                yield {name: made.get(name)}
        recipients = _list(made.get("recipient"))
        if len(recipients) != 1 or not self._is_recipient(recipients[0]):
            yield {"recipient": made.get("recipient")}
        if moment_of(made.get("sent"))[:10] != self.today:
            yield f"sent {made.get('sent')}"
        parts = [one.get("contentReference") if isinstance(one, dict) else None for one in _list(made.get("payload"))]
        left = [one for one in documents if not any(same_reference(part, one, self.base_url) for part in parts)]
        if left or len(parts) != len(documents):
            yield {"payload": made.get("payload"), "expected": sorted(documents)}

    def permit(self, patient: str, now: str) -> Resource:
        """Return a consent of a patient that does not exist and permits the release."""
        id = f"permit-{patient}-{self.department.code}-{self.recipient.rpartition('/')[2]}-{self.purpose}"
        given = instant(parse_instant(now) - timedelta(days=1))
        return consent_resource(id, patient, given, {"type": "permit"})

    def missing_document(self, patient: str, now: str) -> Resource:
        """Return a document of a patient that does not exist and would be released."""
        id = f"document-{patient}-{self.department.code}"
        written = instant(parse_instant(now) - timedelta(days=1))
        return document_resource(id, patient, self.department, written)


def release_of(ask: ReleaseAsk, scene: ReleaseScene, values: Mapping[str, str], base_url: str = "") -> Release:
    """Return a request with the records that it names.

    Args:
        ask: The request.
        scene: The scene.
        values: The valid values of the policies for the department.
        base_url: Base URL of the server.
    """
    recipient = f"Organization/{scene.recipients[ask.recipient]}"
    return Release(department_of(ask, scene), recipient, ask.purpose, values, scene.now[:10], base_url)


def department_of(ask: ReleaseAsk, scene: ReleaseScene) -> Concept:
    """Return the department of a request."""
    return next(one for one in scene.departments if one.display == ask.department)


def _contains(period: Json, day: str) -> bool:
    """Whether a period contains a day; a missing period contains all days."""
    if not isinstance(period, dict):
        return period is None
    start, end = (str(period.get(name, day))[:10] for name in ("start", "end"))
    return start <= day <= end


def _list(value: Json) -> Sequence[Json]:
    return value if isinstance(value, list) else []


def _names(entries: Sequence[Entry]) -> tuple[str, ...]:
    return tuple(one.record for one in entries)
