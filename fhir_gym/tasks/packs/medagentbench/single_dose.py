"""Check that an order is for a single time: neither as needed nor repeated."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from fhir_gym.actions import Action, Post
from fhir_gym.tasks import Check
from fhir_gym.tasks.authoring import codes_of, concept_texts
from fhir_gym.tasks.grading import is_within, plain, same_moment
from fhir_gym.types import Json, Resource

_REPEATING = "http://terminology.hl7.org/CodeSystem/v3-GTSAbbreviation"
"""Code system of timings; each of its codes means a repetition, such as BID (twice a day)."""
_REPEATED = re.compile(
    r"\b(every|each|daily|nightly|hourly|weekly|twice|times|prn|as needed|q\s?\d+\s?h?|qd|qod|bid|tid|qid)\b"
)
_ONCE = frozenset(
    {"count", "countMax", "frequency", "frequencyMax", "period", "periodMax", "periodUnit", "boundsPeriod"}
)
"""Elements that `Timing.repeat` may have if its count is 1."""
_DURATION = frozenset({"duration", "durationUnit"})
_OF_ORDER = frozenset({"medicationCodeableConcept", "dispenseRequest"})
"""Elements of a drug order outside its dosage."""


def single_dose_check(
    name: str, holder: Resource, timing: str, refills: Json = 0, *, now: str, timed: bool = True
) -> Check:
    """Check that an order is for a single time.

    Args:
        name: Name of the check.
        holder: A ServiceRequest, or the Dosage of a drug order.
        timing: Name of the element of `holder` that contains the Timing.
        refills: Number of repeats of a drug order.
        now: Current time, at which the order is due.
        timed: Whether the timing may have a duration.
    """
    needed = {name: value for name, value in holder.items() if name.startswith("asNeeded")}
    needless = all(value is False for value in needed.values())
    single = needless and _is_once(holder.get(timing), now, timed) and not refills
    said = {**needed, timing: holder.get(timing), "refills": refills}
    return Check(name=name, passed=single, expected="once, not as needed", actual=said)


def invalid_timings(gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
    """Yield wrong solutions in which one order is forbidden, as needed, repeated or contradicted by a text."""
    thrice = {"repeat": {"frequency": 3, "period": 1, "periodUnit": "d"}}
    daily = {"code": {"text": "once daily"}}
    past = {"event": ["1999-01-01"]}
    changes: dict[str, tuple[Resource, Resource]] = {
        "not to be carried out": ({"doNotPerform": True},) * 2,
        "changed nobody knows how": ({"modifierExtension": [{"url": "urn:example:x", "valueBoolean": True}]},) * 2,
        "as needed": ({"asNeededBoolean": True},) * 2,
        "for a case": ({"asNeededCodeableConcept": {"text": "palpitations"}},) * 2,
        "three times a day": ({"timing": thrice}, {"occurrenceTiming": thrice}),
        "once a day": ({"timing": daily}, {"occurrenceTiming": daily}),
        "once, long ago": ({"timing": past}, {"occurrenceTiming": past}),
        "with more in words": ({"text": "10 g, and again in the evening"}, {}),
        "with another instruction": ({"additionalInstruction": [{"text": "Take 3 tablets"}]}, {}),
        "of another name": ({"medicationCodeableConcept": {"text": "Warfarin"}}, {}),
        "to dispense ten times": ({"dispenseRequest": {"quantity": {"value": 10, "unit": "dose"}}}, {}),
        "to dispense again": ({"dispenseRequest": {"numberOfRepeatsAllowed": 2}}, {}),
    }
    for name, change in changes.items():
        yield from _with(gold, name, *change)


def explicit_single_doses(gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
    """Yield other correct solutions, in which one order says explicitly that it is for a single time."""
    count, text = {"repeat": {"count": 1}}, {"code": {"text": "once"}}
    changes: dict[str, tuple[Resource, Resource]] = {
        "not as needed": ({"asNeededBoolean": False},) * 2,
        "for once": ({"timing": count}, {"occurrenceTiming": count}),
        "for once, in words": ({"timing": text}, {"occurrenceTiming": text}),
    }
    for name, change in changes.items():
        yield from _with(gold, name, *change)
    for action in gold:
        for name, told in _told(json.loads(action.body or "{}")) if action.kind == "POST" else ():
            yield from _with(gold, name, told, {})


def _told(body: Resource) -> Iterator[tuple[str, Resource]]:
    """Yield elements that repeat the content of a drug order in words."""
    for dosage in body.get("dosageInstruction", []):
        (dose_and_rate,) = dosage["doseAndRate"]
        dose, route = dose_and_rate["doseQuantity"], dosage["route"]["text"]
        time = dose_and_rate.get("rateQuantity")
        over = f" over {time['value']:g} {time['unit']}" if time else ""
        said = f"{dose['value']:g} {dose['unit']} {route}"
        yield "repeated in words", {"text": f"Give {said}{over}, single dose, now."}
        yield "repeated for the patient", {"patientInstruction": f"{said} x1{over}", "sequence": 1}
        yield "to dispense once", {"dispenseRequest": {"quantity": {"value": 1, "unit": "dose"}}}
        yield "with a method", {"method": {"text": f"Administer by {route} route"}}


def _with(gold: Sequence[Action], name: str, dosage: Resource, service: Resource) -> Iterator[tuple[str, list[Action]]]:
    """Yield, for each order of a solution, the solution in which this order also has the given elements.

    A drug order gets the elements of `dosage`, in its dosage where possible. Any other order gets the elements of
    `service`.
    """
    for n, action in enumerate(gold):
        if action.kind != "POST":
            continue
        body = json.loads(action.body or "")
        is_drug = "dosageInstruction" in body
        if is_drug and dosage.keys() <= _OF_ORDER:
            body |= {name: {**body.get(name, {}), **value} for name, value in dosage.items()}
        elif is_drug and "doNotPerform" not in dosage:
            body["dosageInstruction"] = [
                {**dosage_instruction, **dosage} for dosage_instruction in body["dosageInstruction"]
            ]
        elif "occurrenceDateTime" in body and "occurrenceTiming" in service:
            continue  # an order can have only one occurrence element
        elif not service:
            continue
        else:
            body |= service
        yield f"a {body['resourceType']} {name}", [*gold[:n], Post(action.url, body), *gold[n + 1 :]]


def _is_once(timing: Json, now: str, timed: bool) -> bool:
    """Return whether a Timing means a single time now, or states neither a frequency nor a time."""
    if not isinstance(timing, dict):
        return timing is None
    repeat, code, event = timing.get("repeat", {}), timing.get("code"), timing.get("event", [])
    if not isinstance(repeat, dict) or not isinstance(event, list):
        return False  # the content comes from the agent's request and may be any JSON
    bounds = repeat.get("boundsPeriod", {})
    if not is_within(now, bounds) or len(event) > 1 or not all(same_moment(moment, now[:10]) for moment in event):
        return False
    said = repeat.keys() - (_DURATION if timed else set())
    if repeat.get("count") == 1 and repeat.get("countMax", 1) == 1:
        return said <= _ONCE
    often = said - {"boundsPeriod"} - ({"frequency"} if repeat.get("frequency") == 1 else set())
    told = [plain(text).casefold() for text in concept_texts(code)]
    return not often and not codes_of(code, _REPEATING) and not any(_REPEATED.search(text) for text in told)
