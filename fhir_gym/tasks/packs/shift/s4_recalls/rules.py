"""The rules of recalls: which patients need one, and how urgent it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from fhir_gym.tasks.authoring import SNOMED, codes_of, codings, instant, parse_instant
from fhir_gym.tasks.grading import same_reference
from fhir_gym.tasks.packs.shift.kind import Request, RequestContent
from fhir_gym.tasks.packs.shift.laboratory import LOINC, TESTS, VALID
from fhir_gym.tasks.packs.shift.patient_records import Chart, Entry, broken, moment_of, name_of
from fhir_gym.tasks.packs.shift.s4_recalls.scene import CARE, CONDITIONS, RecallRules
from fhir_gym.types import Json, Resource

ACTIVE = ("active", "recurrence", "relapse")
"""Clinical statuses of conditions that count."""
OPEN = ("active", "on-hold")
"""Statuses of orders that count."""
COMING = ("booked", "pending")
"""Statuses of appointments that count."""

RULES = (
    *("place", "active patients", "death", "clinical status", "verification"),
    *("result status", "laboratory", "value", "similar test", "window"),
    *("orders", "order status", "order intent", "order age"),
    *("visits", "visit status", "visit time"),
    *("consents", "consent status", "purpose", "latest consent", "urgency"),
)
"""The rules that an agent may overlook."""
_WHOLE_RULES = frozenset({"window", "orders", "visits", "consents", "latest consent", "urgency"})
"""The rules that are not about a single record."""


class RecallContent(RequestContent):
    """Whom to recall.

    Attributes:
        condition: Name of the condition; see `CONDITIONS`.
        test: Name of the test; see `TESTS`.
        since: The patients have had no result of the test on this day or later.
    """

    condition: str
    test: str
    since: str


class RecallRequest(Request):
    """A request to recall patients."""

    ask: RecallContent


@dataclass(frozen=True, slots=True)
class Decision:
    """What the rules say about a patient.

    Attributes:
        needed: Whether the patient needs a recall.
        urgent: Whether the recall is urgent.
        excuses: References to the records because of which a patient with the condition needs no recall.
    """

    needed: bool
    urgent: bool = False
    excuses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """What the records of a patient say about recalls for a test.

    Attributes:
        conditions: Codes of the conditions that count.
        excuses: References to the records because of which the patient needs no recall, whatever the results.
        results: The time of each valid result of the test.
        last: The time of the latest of these results, or an empty text.
        urgent: Whether a recall would be urgent.
    """

    conditions: frozenset[str]
    excuses: tuple[str, ...]
    results: Mapping[str, str]
    last: str
    urgent: bool

    def has_condition(self, ask: RecallContent) -> bool:
        """Whether the patient has the condition of a request."""
        return CONDITIONS[ask.condition].code in self.conditions

    def decide(self, ask: RecallContent) -> Decision:
        """Decide about a request."""
        if not self.has_condition(ask):
            return Decision(needed=False)
        excuses = (*self.excuses, *(name for name, moment in self.results.items() if moment >= ask.since))
        return Decision(not excuses, not excuses and self.urgent, excuses)

    def needs_recall(self, ask: RecallContent) -> bool:
        """Whether the patient needs a recall; this is faster than `decide`."""
        return not self.excuses and self.last < ask.since and self.has_condition(ask)


@dataclass(frozen=True, slots=True)
class Reading:
    """The records of a patient, read for a test.

    Attributes:
        patient: The patient.
        conditions: The conditions.
        results: The results of the test and of the similar test.
        orders: The orders of the test and of the similar test.
        visits: The appointments.
        consents: The consents.
    """

    patient: Entry
    conditions: tuple[Entry, ...]
    results: tuple[Entry, ...]
    orders: tuple[Entry, ...]
    visits: tuple[Entry, ...]
    consents: tuple[Entry, ...]

    @property
    def deciding_rules(self) -> frozenset[str]:
        """The rules without which the facts may differ: no other rule decides alone about one of the records."""
        kinds = (self.conditions, self.results, self.orders, self.visits, self.consents)
        entries = (self.patient, *(one for entries in kinds for one in entries))
        return _WHOLE_RULES.union(*(one.broken for one in entries if len(one.broken) == 1))

    def facts(self, ignoring: str = "") -> Facts:
        """Return what the records say about recalls, if one of `RULES` is ignored."""

        def counting(entries: Iterable[Entry]) -> list[Entry]:
            return [one for one in entries if one.counts(ignoring)]

        valid = counting(self.results)
        consents = sorted(counting(self.consents), key=lambda one: one.moment)
        deciding = consents if ignoring == "latest consent" else consents[-1:]
        excuses = (
            *(() if self.patient.counts(ignoring) else (self.patient,)),
            *(() if ignoring == "orders" else counting(self.orders)),
            *(() if ignoring == "visits" else counting(self.visits)),
            *(one for one in deciding if one.flag and ignoring != "consents"),
        )
        results = {} if ignoring == "window" else {one.record: one.moment for one in valid}
        latest = max(valid, key=lambda one: one.moment, default=None)
        return Facts(
            conditions=frozenset(code for one in counting(self.conditions) for code in one.codes),
            excuses=tuple(one.record for one in excuses),
            results=results,
            last=max(results.values(), default=""),
            urgent=latest is not None and latest.flag and ignoring != "urgency",
        )


class RecallDesk:
    """Reads records, and decides which patients need a recall.

    Args:
        rules: What differs between the rules of two variations.
        place: Id of the Organization whose patients are recalled.
        laboratory: Id of the Organization whose results count.
        now: Current time, an instant.
        base_url: Base URL of the server.
    """

    def __init__(self, rules: RecallRules, place: str, laboratory: str, now: str, base_url: str = "") -> None:
        self._rules, self._place, self._laboratory = rules, f"Organization/{place}", f"Organization/{laboratory}"
        self._base_url, self._now = base_url, now
        moment = parse_instant(now)
        self._first_day = instant(moment - timedelta(days=rules.order_days))[:10]
        self._last_day = instant(moment + timedelta(days=rules.visit_days))[:10]

    def decide(self, ask: RecallContent, chart: Chart) -> Decision:
        """Decide about a patient."""
        return self.read(ask.test, chart).facts().decide(ask)

    def read(self, test: str, chart: Chart) -> Reading:
        """Read the records of a patient for a test."""
        found = TESTS[test]
        alike = (*found.codes, found.similar.code)
        return Reading(
            patient=self._patient(chart.patient),
            conditions=tuple(map(_condition, chart.of("Condition"))),
            results=tuple(self._result(test, one) for one in chart.of("Observation") if _has_code(one, alike)),
            orders=tuple(self._order(test, one) for one in chart.of("ServiceRequest") if _has_code(one, alike)),
            visits=tuple(map(self._visit, chart.of("Appointment"))),
            consents=tuple(map(_consent, chart.of("Consent"))),
        )

    def _patient(self, patient: Resource) -> Entry:
        here = same_reference(patient.get("managingOrganization"), self._place, self._base_url)
        dead = patient.get("deceasedBoolean") is True or "deceasedDateTime" in patient
        rules = {"place": here, "active patients": patient.get("active") is True, "death": not dead}
        return Entry(name_of(patient), broken(rules))

    def _result(self, test: str, result: Resource) -> Entry:
        performers, quantity = result.get("performer"), result.get("valueQuantity")
        listed = performers if isinstance(performers, list) else []
        code = next((one for one in TESTS[test].codes if _has_code(result, (one,))), "")
        value = quantity.get("value") if isinstance(quantity, dict) else None
        rules = {
            "similar test": bool(code),
            "result status": result.get("status") in VALID,
            "laboratory": any(same_reference(one, self._laboratory, self._base_url) for one in listed),
            "value": "valueQuantity" in result,
        }
        above = bool(code) and isinstance(value, int | float) and value > self._rules.limit(test, code)
        return Entry(name_of(result), broken(rules), moment=moment_of(result.get("effectiveDateTime")), flag=above)

    def _order(self, test: str, order: Resource) -> Entry:
        rules = {
            "similar test": _has_code(order, TESTS[test].codes),
            "order status": order.get("status") in OPEN,
            "order intent": order.get("intent") == "order",
            "order age": moment_of(order.get("authoredOn"))[:10] >= self._first_day,
        }
        return Entry(name_of(order), broken(rules))

    def _visit(self, visit: Resource) -> Entry:
        start = moment_of(visit.get("start"))
        coming = start > self._now and start[:10] <= self._last_day
        return Entry(name_of(visit), broken({"visit status": visit.get("status") in COMING, "visit time": coming}))


def _condition(condition: Resource) -> Entry:
    rules = {
        "clinical status": _is_one_of(condition.get("clinicalStatus"), ACTIVE),
        "verification": _is_one_of(condition.get("verificationStatus"), ("confirmed",)),
    }
    return Entry(name_of(condition), broken(rules), codes=tuple(codes_of(condition.get("code"), SNOMED)))


def _consent(consent: Resource) -> Entry:
    provision = consent.get("provision")
    known = provision if isinstance(provision, dict) else {}
    purposes = known.get("purpose")
    listed = [one.get("code") for one in purposes if isinstance(one, dict)] if isinstance(purposes, list) else []
    rules = {"consent status": consent.get("status") == "active", "purpose": CARE in listed}
    moment, denies = moment_of(consent.get("dateTime")), known.get("type") == "deny"
    return Entry(name_of(consent), broken(rules), moment=moment, flag=denies)


def _has_code(record: Resource, codes: Sequence[str]) -> bool:
    return any(one.get("system") == LOINC and one.get("code") in codes for one in codings(record.get("code")))


def _is_one_of(concept: Json, codes: Sequence[str]) -> bool:
    return any(one.get("code") in codes for one in codings(concept))
