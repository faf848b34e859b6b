"""Texts of prompts: templates for instructions, contexts of three lengths, and closing rules."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from hashlib import blake2b

from fhir_gym.tasks.grading import ADD_NOTHING
from fhir_gym.tasks.packs.action_reasoning.cases import CaseSpec, Family, Scenario
from fhir_gym.tasks.packs.action_reasoning.orders import OrderSpec
from fhir_gym.tasks.packs.action_reasoning.ranges import LABS, table_text
from fhir_gym.tasks.packs.action_reasoning.series import PatientSummary
from fhir_gym.tasks.packs.medagentbench.labs import RULES

LENGTHS = (0, 1, 2)
"""Amounts of irrelevant context: none, some, much."""

_LATEST = (
    "What is the most recent {lab} result of {patient}{period}?",
    "Please look up the last {lab} result of {patient}{period} and tell me the value.",
    "I am writing a note on {person}. What is the latest {lab} value{period}?",
)
_AVERAGE = (
    "What is the average {lab} of {patient}{period}?",
    "Please calculate the mean of all {lab} results of {person}{period}.",
    "For ward rounds, I need the average of all {lab} results of {patient}{period}.",
    "Please take all {lab} values of {patient}{period} and tell me their mean.",
)
_CONDITIONAL = (
    "Review the most recent {lab} result of {someone}{period}. Order {order} if it is {side}.",
    "Check the latest {lab} result of {patient}{period}. Order {order} only if it is {side}.",
    "Unless the last {lab} result of {someone}{period} is {fine}, please order {order}.",
    "If the newest {lab} result of {patient}{period} is {side}, please order {order}. If it is {fine}, do not order "
    "anything.",
    "{Someone} may need {order}. Please check the latest {lab} result{period}: if it is {side}, place the order; if it "
    "is {fine}, do not.",
)
PROMPTS: Mapping[Scenario, tuple[str, ...]] = {
    "sparse": (*_LATEST, "{Patient} may have few {lab} results or none. Please find the latest value{period}."),
    "cluster": (
        *_LATEST,
        "{Patient} sometimes has samples taken within minutes of each other. What is the latest {lab} result{period}?",
    ),
    "edge": (
        *_LATEST,
        "Was {lab} measured for {patient}{period}? If so, please tell me the latest value from that period.",
    ),
    "window": _AVERAGE,
    "general": _CONDITIONAL,
    "demographic": _CONDITIONAL,
}
"""Templates of the instructions of each scenario; `placeholder_values` fills the placeholders."""

_WINDOW = (
    "A time window includes both ends. If the question names a moment in the past, results taken or issued after that "
    "moment do not count."
)
_RETRIEVAL_FORM = (
    "Give the value as it is stored. Finish with FINISH([<value>]), or with FINISH([-1]) if no result counts. "
    "Do not change any data."
)
_AGGREGATION_FORM = (
    "Use each result that counts exactly once. Finish with FINISH([<mean>]), or with FINISH([-1]) if no result counts. "
    "Do not change any data."
)
_CONDITIONAL_FORM = (
    "A value is low if it is below the lower limit of the patient's reference range, and high if it is above the upper "
    "limit; a value equal to a limit is within the range. If no result counts, do not order anything. "
    f"{ADD_NOTHING} Finish with FINISH([<value>, true]) if you placed the order, with FINISH([<value>, false]) if no "
    "order was needed, and with FINISH([-1, false]) if no result counts. Do not change any other data."
)
ENDINGS: Mapping[Family, str] = {
    "retrieval": f"{RULES} {_WINDOW} {_RETRIEVAL_FORM}",
    "aggregation": f"{RULES} {_WINDOW} {_AGGREGATION_FORM}",
    "conditional": f"{RULES} {_WINDOW} {_CONDITIONAL_FORM}",
}
"""Closing rules of a prompt for each kind of task: which results count, and the format of the answer."""

_BRIEF_LATEST = "latest {lab} (code {code}, by time taken, then issued) of Patient/{mrn}{taken}"
BRIEFS: Mapping[Scenario, str] = {
    **dict.fromkeys(
        ("sparse", "cluster"),
        f"What is the {_BRIEF_LATEST}? Finish with FINISH([<value as stored>]), or with FINISH([-1]) if there is none.",
    ),
    "edge": f"What is the {_BRIEF_LATEST} (both ends included)? "
    "Finish with FINISH([<value as stored>]), or with FINISH([-1]) if there is none.",
    "window": "What is the mean {lab} (code {code}; of results taken at the same time, only the one issued last) of "
    "Patient/{mrn}{taken} (both ends included), rounded half up to {decimals} or finer? "
    "Finish with FINISH([<mean>]), or with FINISH([-1]) if there is no result.",
    **dict.fromkeys(
        ("general", "demographic"),
        f"Please check the {_BRIEF_LATEST} and, if it is {{side}} ({{ranges}}), order {{order}} "
        "({content}, dated now). "
        "Finish with FINISH([<value>, true]) if you ordered, with FINISH([<value>, false]) if not, or with "
        "FINISH([-1, false]) if there is no result.",
    ),
}
"""The phrasing ``brief`` of each scenario; `brief_values` fills the placeholders that `placeholder_values` lacks."""

_DECIMALS = ("a whole number", "one decimal", "two decimals", "three decimals")
_SIDES = {
    "low": ("low", "at or above the lower limit"),
    "high": ("high", "at or below the upper limit"),
    "outside": ("outside the reference range", "within the reference range"),
}
_NOTES = (
    "Vital signs and laboratory results are both stored as Observations.",
    "Other laboratory tests have their own codes.",
    "Results that the laboratory has withdrawn stay on file; their status shows it.",
    "Ward rounds start at eight in the morning.",
    "The system notifies the attending physician of every order.",
    "Problem lists and earlier procedures are on file but not needed for this question.",
    "The patient's current medication stays as it is.",
    "The pharmacy reviews all orders within an hour.",
)
"""True but irrelevant sentences."""


def placeholder_values(
    plan: CaseSpec, person: PatientSummary, age: int | None, now: str, order: OrderSpec | None
) -> dict[str, str]:
    """Return the values of the placeholders in `PROMPTS`."""
    patient = f"patient {person.id}"
    whole = f"{patient} ({_about(person, age)})"
    # If the range depends on sex and age, the prompt must not state them: the agent has to look them up.
    someone = patient if plan.scenario == "demographic" else whole
    side, fine = _SIDES[plan.direction] if plan.direction else ("", "")
    values = {
        "patient": patient,
        "person": whole,
        "someone": someone,
        "lab": LABS[plan.lab].title,
        "period": _period(plan, now),
        "order": order.name if order else "",
        "side": side,
        "fine": fine,
    }
    return values | {name.capitalize(): values[name][0].upper() + values[name][1:] for name in ("patient", "someone")}


def brief_values(plan: CaseSpec, mrn: str, now: str, order: OrderSpec | None) -> dict[str, str]:
    """Return the values of those placeholders that only `BRIEFS` have."""
    ranges = table_text(plan.lab, plan.shift).removesuffix(".")
    today = ", by sex and age today" if plan.scenario == "demographic" else ""
    period = _period(plan, now)
    return {
        "mrn": mrn,
        "code": plan.lab,
        "taken": f" taken{period}" if period else "",
        "decimals": _decimals(plan.digits),
        "ranges": f"{ranges[0].lower()}{ranges[1:]}{today}",
        "content": order.summary if order else "",
    }


def instruction(plan: CaseSpec, person: PatientSummary, age: int | None, now: str, order: OrderSpec | None) -> str:
    """Return the instruction in the phrasing that the specification names."""
    return PROMPTS[plan.scenario][plan.phrasing].format_map(placeholder_values(plan, person, age, now, order))


def context(plan: CaseSpec, person: PatientSummary, age: int | None, order: OrderSpec | None) -> str:
    """Return the codes, the ranges and the content of the order; longer contexts add a line of irrelevant sentences."""
    needed = " ".join(_needed(plan, order))
    rng = random.Random(int.from_bytes(blake2b(f"{person.id} {plan.lab} {plan.as_of}".encode()).digest()[:8], "big"))
    background = " ".join(_idle(plan, person, age, rng))
    return f"{needed}\nBackground: {background}" if background else needed


def rounding(digits: int) -> str:
    """Return the sentence that says how to round a mean."""
    return f"Round the mean half up to {_decimals(digits)}, or give more decimals. Do not round the individual values."


def _decimals(digits: int) -> str:
    return _DECIMALS[digits] if digits < len(_DECIMALS) else f"{digits} decimals"


def _needed(plan: CaseSpec, order: OrderSpec | None) -> Iterator[str]:
    lab = LABS[plan.lab]
    yield f"Lab code: {plan.lab} ({lab.title}, in {plan.unit}). The patient's id on the server is the record number."
    if plan.family == "aggregation":
        yield rounding(plan.digits)
    if plan.family == "conditional":
        yield table_text(plan.lab, plan.shift)
        if plan.scenario == "demographic":
            yield "Use the patient's sex on file and the age in full years today, from the birth date on file."
    if order is not None:
        yield order.content


def _idle(plan: CaseSpec, person: PatientSummary, age: int | None, rng: random.Random) -> Iterator[str]:
    if plan.length == 0:
        return
    yield from rng.sample(_NOTES, 1 + 2 * (plan.length - 1))
    if plan.length > 1:
        for code in rng.sample([lab for lab in LABS if lab != plan.lab], 2):
            yield f"Lab code: {code} ({LABS[code].title}). {table_text(code)}"
        if plan.scenario != "demographic":
            yield f"Patient {person.id} is on file as {person.name} ({_about(person, age)})."


def _about(person: PatientSummary, age: int | None) -> str:
    grown_up = age is None or age >= 18
    names = {"female": ("girl", "woman"), "male": ("boy", "man")}.get(person.sex, ("patient", "patient"))
    who = names[grown_up]
    return who if age is None else f"{age}-year-old {who}"


def _period(plan: CaseSpec, now: str) -> str:
    if plan.window_hours is None:
        return "" if plan.as_of == now else f" as of {plan.as_of}"
    hours = f"{plan.window_hours:g} hours"
    return f" within the last {hours}" if plan.as_of == now else f" within the {hours} up to {plan.as_of}"
