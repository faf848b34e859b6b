"""Lazy agents that look up nothing, misjudge the range, write the wrong resource, or answer in the wrong form."""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override

from benchmarks.lazy_agents.careful import CONDITIONAL, Actions, CarefulAgent, LazyAgent, create
from benchmarks.lazy_agents.prompt import ParsedPrompt, RangeRow
from fhir_gym.actions import Finish
from fhir_gym.tasks.authoring.bundles import entries
from fhir_gym.tasks.packs.action_reasoning.cases import ErrorLabel
from fhir_gym.types import Json, Resource


def _finish(prompt: ParsedPrompt, value: Json, flag: bool = False) -> str:
    return Finish([value, flag] if prompt.family == "conditional" else [value]).text()


# Agents that read only the prompt.


class SaysNone(LazyAgent):
    """Always says that there is no result."""

    trivial = True
    label: ClassVar[ErrorLabel] = "missing retrieval"

    @override
    def actions(self, prompt: ParsedPrompt) -> Actions:
        yield _finish(prompt, -1)


class Constant(SaysNone):
    """Always answers the same number."""

    label = "hallucinated value"

    @override
    def actions(self, prompt: ParsedPrompt) -> Actions:
        yield _finish(prompt, 4.1)


class NeverOrders(SaysNone):
    """Answers the middle of the reference range and never places an order."""

    label, families = "hallucinated value", CONDITIONAL

    @override
    def actions(self, prompt: ParsedPrompt) -> Actions:
        yield _finish(prompt, round((prompt.ranges[0].low + prompt.ranges[0].high) / 2, 1))


class AlwaysOrders(SaysNone):
    """Answers a value outside the reference range and always places the order."""

    label, families = "hallucinated value", CONDITIONAL

    @override
    def actions(self, prompt: ParsedPrompt) -> Actions:
        yield from self.place_order(prompt)
        yield _finish(prompt, round(prompt.ranges[0].low * 0.9, 1), True)


class Empty(SaysNone):
    """Finishes with an empty list."""

    label, affects = "format", "form"

    @override
    def actions(self, prompt: ParsedPrompt) -> Actions:
        yield Finish([]).text()


# Agents that misjudge the range.


class OtherSex(LazyAgent):
    """Uses the reference range for the other sex."""

    label, families, affects, trivial = "context-insensitive range", CONDITIONAL, "decision", True

    @override
    def applies(self, prompt: ParsedPrompt) -> bool:
        return prompt.needs_patient

    @override
    def choose_range(self, prompt: ParsedPrompt, patient: Resource) -> RangeRow:
        other = "male" if patient["gender"] == "female" else "female"
        return super().choose_range(prompt, {**patient, "gender": other})


class OtherAge(OtherSex):
    """Uses the reference range for another age."""

    @override
    def choose_range(self, prompt: ParsedPrompt, patient: Resource) -> RangeRow:
        right = CarefulAgent.choose_range(self, prompt, patient)
        same_sex = [row for row in prompt.ranges if row.sex in (None, patient["gender"])]
        return same_sex[same_sex.index(right) - 1]


class MenOnly(OtherSex):
    """Assumes that every patient is a 40-year-old man, without reading the Patient."""

    @override
    def actions(self, prompt: ParsedPrompt) -> Actions:
        row = next(row for row in prompt.ranges if row.applies_to("male", 40))
        value = yield from self.look_up(prompt)
        yield from self.conclude(prompt, value, value != -1 and self.is_due(prompt, row, value))


class NeverSawPatient(LazyAgent):
    """Orders if most of the reference ranges require it, without reading the Patient."""

    label, families, affects = "missing retrieval", CONDITIONAL, "evidence"

    @override
    def applies(self, prompt: ParsedPrompt) -> bool:
        return prompt.needs_patient

    @override
    def actions(self, prompt: ParsedPrompt) -> Actions:
        value = yield from self.look_up(prompt)
        decisions = [value != -1 and self.is_due(prompt, row, value) for row in prompt.ranges]
        yield from self.conclude(prompt, value, decisions.count(True) > len(decisions) / 2)


class LimitIsOutside(LazyAgent):
    """Treats values just inside the reference range as outside."""

    label, families, affects = "boundary misclassification", CONDITIONAL, "decision"

    @override
    def applies(self, prompt: ParsedPrompt) -> bool:
        return super().applies(prompt) and not prompt.needs_patient

    @override
    def is_due(self, prompt: ParsedPrompt, row: RangeRow, value: float) -> bool:
        margin = 0.1 * (row.high - row.low)
        return super().is_due(prompt, row._replace(low=row.low + margin, high=row.high - margin), value)


class JustOutsideIsInside(LimitIsOutside):
    """Treats values just outside the reference range as inside."""

    @override
    def is_due(self, prompt: ParsedPrompt, row: RangeRow, value: float) -> bool:
        margin = 0.1 * (row.high - row.low)
        return CarefulAgent.is_due(self, prompt, row._replace(low=row.low - margin, high=row.high + margin), value)


# Agents that write the wrong resource.


class OrdersNothing(LazyAgent):
    """Says that an order is due but places none."""

    label, families, affects = "wrong action", CONDITIONAL, "action"

    @override
    def place_order(self, prompt: ParsedPrompt) -> Actions:
        yield from ()


class OrdersTwice(OrdersNothing):
    """Places the order twice."""

    @override
    def place_order(self, prompt: ParsedPrompt) -> Actions:
        yield create(prompt.order or {})
        yield create(prompt.order or {})


class OrdersForAnother(OrdersNothing):
    """Places the order for another patient."""

    @override
    def place_order(self, prompt: ParsedPrompt) -> Actions:
        patients = list(entries((yield "GET /Patient?_count=2")))
        other = next(patient["id"] for patient in patients if patient["id"] != prompt.mrn)
        yield create({**(prompt.order or {}), "subject": {"reference": f"Patient/{other}"}})


class OrdersDraft(OrdersNothing):
    """Places the order as a draft."""

    @override
    def place_order(self, prompt: ParsedPrompt) -> Actions:
        yield create({**(prompt.order or {}), "status": "draft"})


class OrdersUnasked(OrdersNothing):
    """Says that no order is due but places one."""

    @override
    def finish(self, prompt: ParsedPrompt, answer: list[Json]) -> Actions:
        if answer[1] is False:
            yield create(prompt.order or {})
        yield from super().finish(prompt, answer)


class WritesElsewhere(LazyAgent):
    """Writes the result as a new Observation."""

    label, affects = "wrong action", "action"

    @override
    def finish(self, prompt: ParsedPrompt, answer: list[Json]) -> Actions:
        code, subject = {"text": f"{prompt.lab} reviewed"}, {"reference": f"Patient/{prompt.mrn}"}
        yield create({"resourceType": "Observation", "status": "final", "code": code, "subject": subject})
        yield from super().finish(prompt, answer)


# Agents that answer in the wrong form.


class InWords(LazyAgent):
    """Answers in words."""

    label, affects = "format", "form"

    @override
    def finish(self, prompt: ParsedPrompt, answer: list[Json]) -> Actions:
        yield Finish([f"The {prompt.title} is {answer[0]}; no further action is needed."]).text()


class WithUnit(InWords):
    """Answers the value and its unit in one text."""

    @override
    def finish(self, prompt: ParsedPrompt, answer: list[Json]) -> Actions:
        yield Finish([f"{answer[0]} mg/dL", *answer[1:]]).text()


class ValueOnly(InWords):
    """Answers the value without saying whether the order is due."""

    families = CONDITIONAL

    @override
    def finish(self, prompt: ParsedPrompt, answer: list[Json]) -> Actions:
        yield Finish(answer[:1]).text()


class GivesUp(InWords):
    """Continues to read and never finishes."""

    @override
    def finish(self, prompt: ParsedPrompt, answer: list[Json]) -> Actions:
        while True:
            yield f"GET /Patient/{prompt.mrn}"
