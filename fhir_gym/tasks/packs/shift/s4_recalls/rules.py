"""The rules of recalls: which patients need one, and how urgent it is; and the judgement of recalls."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from itertools import chain
from typing import Self

from typing_extensions import override

from fhir_gym.tasks.authoring import SNOMED, codes_of, codings, concept_texts, instant, parse_instant
from fhir_gym.tasks.core.ids import seeded_random
from fhir_gym.tasks.grading import same_moment, same_reference
from fhir_gym.tasks.packs.shift.formulary import LOINC
from fhir_gym.tasks.packs.shift.kind import Judgement, Request, RequestContent
from fhir_gym.tasks.packs.shift.laboratory import TESTS, VALID
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
from fhir_gym.tasks.packs.shift.s4_recalls.scene import (
    CARE,
    CONDITIONS,
    RecallRules,
    RecallScene,
    diagnosis,
    recall_resource,
)
from fhir_gym.tasks.packs.shift.sweeps import RecordVerdict, SweepJudge
from fhir_gym.types import Json, Resource, as_list, as_object, objects_in

ACTIVE = ("active", "recurrence", "relapse")
"""Clinical statuses of conditions that count."""
_CONSIDERED = 3
"""Number of patients without the condition whom an agent that finds nothing to do must have considered."""
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


class Reading:
    """The records of a patient, read for a test.

    Args:
        entries: The conditions, results, orders, appointments and consents, by resource type.
    """

    def __init__(self, patient: Entry, entries: Mapping[str, Sequence[Entry]]) -> None:
        self._patient, self._entries = patient, entries

    @property
    def deciding_rules(self) -> frozenset[str]:
        """The rules without which the facts may differ: no other rule decides alone about one of the records."""
        entries = (self._patient, *chain.from_iterable(self._entries.values()))
        return _WHOLE_RULES.union(*(entry.broken for entry in entries if len(entry.broken) == 1))

    def facts(self, ignoring: str = "") -> Facts:
        """Return the recalls according to the records if one of `RULES` is ignored."""

        def counting(resource_type: str) -> list[Entry]:
            return [entry for entry in self._entries.get(resource_type, ()) if entry.counts(ignoring)]

        valid = counting("Observation")
        consents = sorted(counting("Consent"), key=lambda consent: consent.moment)
        deciding = consents if ignoring == "latest consent" else consents[-1:]
        excuses = (
            *(() if self._patient.counts(ignoring) else (self._patient,)),
            *(() if ignoring == "orders" else counting("ServiceRequest")),
            *(() if ignoring == "visits" else counting("Appointment")),
            *(consent for consent in deciding if consent.flag and ignoring != "consents"),
        )
        results = {} if ignoring == "window" else {result.record: result.moment for result in valid}
        latest = max(valid, key=lambda result: result.moment, default=None)
        return Facts(
            conditions=frozenset(code for condition in counting("Condition") for code in condition.codes),
            excuses=tuple(excuse.record for excuse in excuses),
            results=results,
            last=max(results.values(), default=""),
            urgent=latest is not None and latest.flag and ignoring != "urgency",
        )


class RecallDesk:
    """Reads records, and decides which patients need a recall."""

    def __init__(self, rules: RecallRules, place: str, laboratory: str, now: str, base_url: str = "") -> None:
        self._rules, self._place, self._laboratory = rules, f"Organization/{place}", f"Organization/{laboratory}"
        self._base_url, self._now = base_url, now
        moment = parse_instant(now)
        self._first_day = instant(moment - timedelta(days=rules.order_days))[:10]
        self._last_day = instant(moment + timedelta(days=rules.visit_days))[:10]

    @classmethod
    def of(cls, scene: RecallScene, base_url: str = "") -> Self:
        """Return the desk of a scene."""
        return cls(scene.rules, scene.place, scene.laboratory, scene.now, base_url)

    def decide(self, ask: RecallContent, chart: Chart) -> Decision:
        """Decide about a patient."""
        return self.read(ask.test, chart).facts().decide(ask)

    def recall(self, ask: RecallContent, chart: Chart) -> Resource | None:
        """Return the recall that a patient needs; None if the patient needs none."""
        decision = self.decide(ask, chart)
        patient, day = str(chart.patient.get("id")), self._now[:10]
        return recall_resource(ask.test, ask.condition, patient, day, decision.urgent) if decision.needed else None

    def read(self, test: str, chart: Chart) -> Reading:
        """Read the records of a patient for a test."""
        entries: dict[str, list[Entry]] = {}
        for record in chart.records:
            if (entry := self._entry(test, record)) is not None:
                entries.setdefault(record["resourceType"], []).append(entry)
        return Reading(self._patient(chart.patient), entries)

    def _entry(self, test: str, record: Resource) -> Entry | None:
        """Read a record; None if it is neither about the test nor about a similar one."""
        match record["resourceType"]:
            case "Condition":
                return _condition(record)
            case "Observation" if _has_code(record, _confusable_codes(test)):
                return self._result(test, record)
            case "ServiceRequest" if _has_code(record, _confusable_codes(test)):
                return self._order(test, record)
            case "Appointment":
                start = moment_of(record.get("start"))
                coming = start > self._now and start[:10] <= self._last_day
                rules = {"visit status": record.get("status") in COMING, "visit time": coming}
                return Entry(name_of(record), broken(rules))
            case "Consent":
                return _consent(record)
        return None

    def _patient(self, patient: Resource) -> Entry:
        here = same_reference(patient.get("managingOrganization"), self._place, self._base_url)
        dead = patient.get("deceasedBoolean") is True or "deceasedDateTime" in patient
        rules = {"place": here, "active patients": patient.get("active") is True, "death": not dead}
        return Entry(name_of(patient), broken(rules))

    def _result(self, test: str, result: Resource) -> Entry:
        performers = as_list(result.get("performer"))
        code = next((code for code in TESTS[test].codes if _has_code(result, (code,))), "")
        value = as_object(result.get("valueQuantity")).get("value")
        rules = {
            "similar test": bool(code),
            "result status": result.get("status") in VALID,
            "laboratory": any(same_reference(performer, self._laboratory, self._base_url) for performer in performers),
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


def _condition(condition: Resource) -> Entry:
    rules = {
        "clinical status": _has(condition.get("clinicalStatus"), *ACTIVE),
        "verification": _has(condition.get("verificationStatus"), "confirmed"),
    }
    return Entry(name_of(condition), broken(rules), codes=tuple(codes_of(condition.get("code"), SNOMED)))


def _consent(consent: Resource) -> Entry:
    terms = as_object(consent.get("provision"))
    purposes = [purpose.get("code") for purpose in objects_in(terms.get("purpose"))]
    rules = {"consent status": consent.get("status") == "active", "purpose": CARE in purposes}
    moment, denies = moment_of(consent.get("dateTime")), terms.get("type") == "deny"
    return Entry(name_of(consent), broken(rules), moment=moment, flag=denies)


def _has_code(record: Resource, codes: Sequence[str]) -> bool:
    return any(coding.get("system") == LOINC and coding.get("code") in codes for coding in codings(record.get("code")))


def _confusable_codes(test: str) -> tuple[str, ...]:
    """Return the codes of a test and of the similar test."""
    return (*TESTS[test].codes, TESTS[test].similar.code)


def conditions_that_would_count(ask: RecallContent, desk: RecallDesk, scene: RecallScene) -> Iterator[Resource]:
    """Yield conditions that do not exist, each of a patient who would need a recall because of it."""
    left = _CONSIDERED
    recorded = [record["recordedDate"] for record in scene.records if record["resourceType"] == "Condition"]
    for patient in scene.patients:
        chart = scene.charts[f"Patient/{patient['id']}"]
        code = CONDITIONS[ask.condition].code
        model = seeded_random("condition", ask, patient["id"]).choice(recorded)
        absent = diagnosis(f"{ask.test}-{code}-{patient['id']}", ask.condition, patient["id"], model)
        with_it = Chart(patient, (*chart.records, absent))
        if left and not desk.read(ask.test, chart).facts().has_condition(ask) and desk.decide(ask, with_it).needed:
            left -= 1
            yield absent


class RecallJudge(SweepJudge[RecallScene, RecallRequest]):
    """Judges sweeps; each patient by the state of the records that the agent met."""

    @cached_property
    def _desk(self) -> RecallDesk:
        return RecallDesk.of(self.scene, self.base_url)

    @cached_property
    def _new(self) -> dict[str, str]:
        """The orders that the agent created for patients of the scene, each with its patient."""
        return created_for(self.log, "ServiceRequest", self.scene.charts)

    @cached_property
    def _claimed(self) -> list[dict[str, list[str]]]:
        """For each request, the new orders that belong to it, by patient."""
        claimed: list[dict[str, list[str]]] = [{} for _ in self.requests]
        for record, patient in self._new.items():
            fits = [_fit(request.ask, self.log.created[record]) for request in self.requests]
            alike = [number for number, fit in enumerate(fits) if fit == max(fits)]
            # If an order fits several requests, it belongs to the first that has none for the patient.
            number = next((number for number in alike if patient not in claimed[number]), alike[0])
            claimed[number].setdefault(patient, []).append(record)
        return claimed

    def _decisions(self, number: int, patient: str) -> list[Decision]:
        """Return the right decisions for a patient; there may be several.

        An order is right if it is due when the agent writes it or at the end of the episode. If there is no order, the
        state after the requests with earlier letters decides, or the end of the episode.
        """
        log, end, ask = self.log, len(self.log.writes), self.requests[number].ask
        mine = self._claimed[number].get(patient, [])
        others = [order for order, whose in self._new.items() if whose == patient and order not in mine]
        earlier = [
            order for order in others if any(order in claimed.get(patient, ()) for claimed in self._claimed[:number])
        ]
        moments = [(end, earlier), (end, others), (0, earlier)]
        if mine:
            moments = [(min(write.number for write in log.writes if write.record in mine), others), (end, others)]
        decisions: dict[Decision, None] = {}
        for moment, orders in moments if others or self._is_touched(patient) else moments[:1]:
            chart = chart_at(log, self.scene.charts[patient], moment).with_records_at(log, orders, moment or end)
            decisions[self._desk.decide(ask, chart)] = None
        # An order that the agent got wrong for an earlier request must not condemn this request.
        wrong = [order for order in earlier if _has((log.at_end(order) or {}).get("code"), *TESTS[ask.test].codes)]
        return [*decisions, *([Decision(needed=False, excuses=tuple(wrong))] if wrong else [])]

    def _is_touched(self, patient: str) -> bool:
        """Whether a record of a patient was changed during the episode, or created by other people than the agent."""
        chart = self.scene.charts[patient]
        return chart_at(self.log, chart, len(self.log.writes)) is not chart

    @override
    def judge_request(self, number: int) -> Judgement:
        ask, claimed = self.requests[number].ask, self._claimed[number]
        verdicts = []
        for patient in self.scene.charts:
            decisions = self._decisions(number, patient)
            left = [order for order in claimed.get(patient, []) if order in self.log.changed]
            problems: list[Json] = [*self._problems(ask, left, decisions)]
            due = (any if left else all)(decision.needed for decision in decisions)
            if due or problems:
                verdicts.append(RecordVerdict(patient, problems or None, harmed=bool(left and problems), due=due))
        records = frozenset(record for orders in claimed.values() for record in orders)
        return self.sweep(number, verdicts, records, lambda: self._looked(number))

    def _problems(self, ask: RecallContent, left: Sequence[str], decisions: Sequence[Decision]) -> Iterator[Json]:
        urgent = {decision.urgent for decision in decisions if decision.needed}
        if not left:
            if all(decision.needed for decision in decisions):
                yield "not recalled"
            return
        if len(left) != 1 or not urgent:
            yield f"left {', '.join(sorted(left))}"
            return
        order = self.log.at_end(left[0]) or {}
        yield from other_values(order, status="active", intent="order")
        if order.get("priority") not in [("routine", "urgent")[is_urgent] for is_urgent in urgent]:
            yield f"priority {order.get('priority')}"
        rules, condition = self.scene.rules, CONDITIONS[ask.condition]
        if not _is_only(order.get("code"), LOINC, TESTS[ask.test].main.code, {*rules.limits} - {ask.test}):
            yield {"code": order.get("code")}
        if not _is_only(order.get("reasonCode"), SNOMED, condition.code, {*rules.conditions} - {ask.condition}):
            yield {"reasonCode": order.get("reasonCode")}
        if not same_moment(order.get("authoredOn"), instant(self.log.end.world.now)[:10]):
            yield f"authoredOn {order.get('authoredOn')}"

    def _looked(self, number: int) -> bool:
        """Whether the agent looked for patients with the condition, and read why they need no recall."""
        ask, log = self.requests[number].ask, self.log
        if not all(map(log.lookups_of, conditions_that_would_count(ask, self._desk, self.scene))):
            return False
        return all(
            any(excuse in log.seen or excuse in self._new for excuse in decision.excuses)
            for patient in self.scene.charts
            for decision in self._decisions(number, patient)[:1]
            # An agent need not read patients who are not active patients of the place.
            if decision.excuses and patient not in decision.excuses
        )


def _is_only(concept: Json, system: str, code: str, others: Collection[str]) -> bool:
    """Whether concepts have this code and no other, and their texts have no name of another test or condition."""
    texts = [text.casefold() for text in concept_texts(concept)]
    return coded_in(concept) == [(system, code)] and not any(
        other.casefold() in text for text in texts for other in others
    )


def _fit(ask: RecallContent, order: Resource) -> int:
    """Return how well an order fits a request: 2 for test and condition, 1 for one of them."""
    test, condition = TESTS[ask.test], CONDITIONS[ask.condition]
    return _has(order.get("code"), *test.codes) + _has(order.get("reasonCode"), condition.code)


def _has(concept: Json, *codes: str) -> bool:
    return any(coding.get("code") in codes for coding in codings(concept))
