"""The judgement of recalls."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property

from fhir_gym.tasks.authoring import SNOMED, codings, concept_texts, instant
from fhir_gym.tasks.core.ids import seeded_random
from fhir_gym.tasks.grading import same_moment
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog, patients_of
from fhir_gym.tasks.packs.shift.kind import Judgement
from fhir_gym.tasks.packs.shift.laboratory import LOINC, TESTS
from fhir_gym.tasks.packs.shift.outcomes import DONE, NOTHING_TO_DO
from fhir_gym.tasks.packs.shift.patient_records import Chart, chart_at
from fhir_gym.tasks.packs.shift.s4_recalls.rules import Decision, RecallContent, RecallDesk, RecallRequest
from fhir_gym.tasks.packs.shift.s4_recalls.scene import CONDITIONS, RecallScene, diagnosis
from fhir_gym.tasks.packs.shift.sweeps import RecordVerdict, judge_sweep
from fhir_gym.types import Json, Resource

_CONSIDERED = 3
"""Number of patients without the condition whom an agent that finds nothing to do must have considered."""


def conditions_that_would_count(ask: RecallContent, desk: RecallDesk, scene: RecallScene) -> Iterator[Resource]:
    """Yield conditions that do not exist, each of a patient who would need a recall because of it."""
    left = _CONSIDERED
    recorded = [one["recordedDate"] for one in scene.records if one["resourceType"] == "Condition"]
    for patient in scene.patients:
        chart = scene.charts[f"Patient/{patient['id']}"]
        code = CONDITIONS[ask.condition].code
        model = seeded_random("condition", ask, patient["id"]).choice(recorded)
        absent = diagnosis(f"{ask.test}-{code}-{patient['id']}", ask.condition, patient["id"], model)
        with_it = Chart(patient, (*chart.records, absent))
        if left and not desk.read(ask.test, chart).facts().has_condition(ask) and desk.decide(ask, with_it).needed:
            left -= 1
            yield absent


class RecallJudge:
    """Judges sweeps; each patient by the state of the records that the agent met.

    Args:
        requests: The requests.
        scene: The scene.
        log: What the agent wrote and looked up.
        answers: The outcome that the agent reported for each request.
    """

    def __init__(
        self, requests: Sequence[RecallRequest], scene: RecallScene, log: EpisodeLog, answers: Sequence[str]
    ) -> None:
        self._requests, self._scene, self._log, self._answers = requests, scene, log, answers
        self._desk = RecallDesk(scene.rules, scene.place, scene.laboratory, scene.now, log.end.base_url)
        self._today = instant(log.end.world.now)[:10]

    def judge(self) -> list[Judgement]:
        """Judge all requests."""
        return [self._judge_one(number) for number in range(len(self._requests))]

    @cached_property
    def _new(self) -> dict[str, tuple[str, Resource]]:
        """The orders that the agent created for patients of the scene, each with its patient, as it last was."""
        found: dict[str, tuple[str, Resource]] = {}
        for one in self._log.writes_of_agent:
            if one.resource_type == "ServiceRequest" and one.after is not None and not self._log.at_start(one.record):
                known = patients_of(one.after, self._log.end.base_url) & self._scene.charts.keys()
                patient = next(iter(sorted(known)), found.get(one.record, ("",))[0])
                if patient:
                    found[one.record] = patient, one.after
        return found

    @cached_property
    def _claimed(self) -> list[dict[str, list[str]]]:
        """For each request, the new orders that belong to it, by patient."""
        found: list[dict[str, list[str]]] = [{} for _ in self._requests]
        for record, (patient, order) in self._new.items():
            fits = [_fit(one.ask, order) for one in self._requests]
            alike = [number for number, fit in enumerate(fits) if fit == max(fits)]
            # If an order fits several requests, it belongs to the first that has none for the patient.
            number = next((one for one in alike if patient not in found[one]), alike[0])
            found[number].setdefault(patient, []).append(record)
        return found

    def _decisions(self, number: int, patient: str) -> list[Decision]:
        """Return what is right for a patient at the moments that decide; more than one decision may be.

        An order is right if it was so when the agent wrote it, or is so at the end of the episode. If there is no
        order, the earlier letters decide, or the end of the episode.
        """
        log, end, ask = self._log, len(self._log.writes), self._requests[number].ask
        mine = self._claimed[number].get(patient, [])
        others = [one for one, (whose, _) in self._new.items() if whose == patient and one not in mine]
        earlier = [one for one in others if any(one in claimed.get(patient, ()) for claimed in self._claimed[:number])]
        moments = [(end, earlier), (end, others), (0, earlier)]
        if mine:
            moments = [(min(one.number for one in log.writes if one.record in mine), others), (end, others)]
        found: dict[Decision, None] = {}
        for moment, orders in moments if others or self._is_touched(patient) else moments[:1]:
            chart = chart_at(log, self._scene.charts[patient], moment)
            states = (log.before(one, moment or end) for one in orders)
            left = [one for one in states if one is not None]
            found[self._desk.decide(ask, Chart(chart.patient, (*chart.records, *left)))] = None
        # An order that the agent got wrong for an earlier request must not condemn this request.
        wrong = [one for one in earlier if _has((log.at_end(one) or {}).get("code"), *TESTS[ask.test].codes)]
        return [*found, *([Decision(needed=False, excuses=tuple(wrong))] if wrong else [])]

    def _is_touched(self, patient: str) -> bool:
        """Whether a record of a patient was changed during the episode, or created by other people than the agent."""
        chart = self._scene.charts[patient]
        return chart_at(self._log, chart, len(self._log.writes)) is not chart

    def _judge_one(self, number: int) -> Judgement:
        """Judge a sweep."""
        request, answer, claimed = self._requests[number], self._answers[number], self._claimed[number]
        verdicts = []
        for patient in self._scene.charts:
            decisions = self._decisions(number, patient)
            left = [one for one in claimed.get(patient, []) if one in self._log.changed]
            problems: list[Json] = [*self._problems(request.ask, left, decisions)]
            due = any(one.needed for one in decisions) if left else all(one.needed for one in decisions)
            if due or problems:
                verdicts.append(RecordVerdict(patient, problems or None, harmed=bool(left and problems), due=due))
        records = frozenset(record for found in claimed.values() for record in found)
        if any(one.due for one in verdicts):
            return judge_sweep(verdicts, outcome=DONE, answer=answer, claimed=records)
        looked = answer == NOTHING_TO_DO and self._looked(number)
        return Judgement.declined(request, answer, looked, records, harmed=bool(verdicts))

    def _problems(self, ask: RecallContent, left: Sequence[str], decisions: Sequence[Decision]) -> Iterator[Json]:
        """Yield what is wrong with the orders that the agent left for a patient."""
        urgent = {one.urgent for one in decisions if one.needed}
        if not left:
            if all(one.needed for one in decisions):
                yield "not recalled"
            return
        if len(left) != 1 or not urgent:
            yield f"left {', '.join(sorted(left))}"
            return
        order = self._log.at_end(left[0]) or {}
        for name, wanted in (("status", "active"), ("intent", "order")):
            if order.get(name) != wanted:
                yield f"{name} {order.get(name)}"
        if order.get("priority") not in [("routine", "urgent")[one] for one in urgent]:
            yield f"priority {order.get('priority')}"
        rules, condition = self._scene.rules, CONDITIONS[ask.condition]
        if not _is_only(order.get("code"), LOINC, TESTS[ask.test].main.code, {*rules.limits} - {ask.test}):
            yield {"code": order.get("code")}
        if not _is_only(order.get("reasonCode"), SNOMED, condition.code, {*rules.conditions} - {ask.condition}):
            yield {"reasonCode": order.get("reasonCode")}
        if not same_moment(order.get("authoredOn"), self._today):
            yield f"authoredOn {order.get('authoredOn')}"

    def _looked(self, number: int) -> bool:
        """Whether the agent looked for patients with the condition, and read why they need no recall."""
        ask, log = self._requests[number].ask, self._log
        if not all(log.lookups_of(one) for one in conditions_that_would_count(ask, self._desk, self._scene)):
            return False
        return all(
            any(excuse in log.seen or excuse in self._new for excuse in one.excuses)
            for patient in self._scene.charts
            for one in self._decisions(number, patient)[:1]
            # An agent need not read patients who are not active patients of the place.
            if one.excuses and patient not in one.excuses
        )


def _is_only(concept: Json, system: str, code: str, others: Collection[str]) -> bool:
    """Whether concepts have this code and no other, and their texts have no name of another test or condition."""
    found = [(one.get("system"), one.get("code")) for one in codings(concept)]
    texts = [one.casefold() for one in concept_texts(concept)]
    return found == [(system, code)] and not any(other.casefold() in one for one in texts for other in others)


def _fit(ask: RecallContent, order: Resource) -> int:
    """Return how well an order fits a request: 2 for test and condition, 1 for one of them."""
    test, condition = TESTS[ask.test], CONDITIONS[ask.condition]
    return _has(order.get("code"), *test.codes) + _has(order.get("reasonCode"), condition.code)


def _has(concept: Json, *codes: str) -> bool:
    return any(one.get("code") in codes for one in codings(concept))
