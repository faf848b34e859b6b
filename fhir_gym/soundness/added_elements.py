"""Policies that do everything right and add an element to a written record.

A policy must fail if the added element changes the meaning of the record; otherwise the policy must succeed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from fhir_gym.actions import Finish
from fhir_gym.fhir.definitions import DATA_TYPES, Element, codes, modifiers
from fhir_gym.soundness.answer_variants import Path
from fhir_gym.soundness.equivalents import same
from fhir_gym.soundness.policy_groups import Expected
from fhir_gym.soundness.policy_runner import Policy, script
from fhir_gym.soundness.recording import GoldRecording, RecordedStep, rebody
from fhir_gym.tasks.core.dates import instant
from fhir_gym.tasks.core.task import Task
from fhir_gym.tasks.grading.allowed_additions import BY_DATA_TYPE, BY_RECORD, EVERYWHERE, WITHOUT_EFFECT, Rule
from fhir_gym.tasks.grading.unrequested_content import elements_of
from fhir_gym.types import Json, Resource

_LONG_AGO = "1999-01-01"
_CONTRARY = "Entered in error: ignore this, do not do it."
_UNKNOWN = {"url": "urn:example:unknown", "valueBoolean": True}
_SAMPLES: Mapping[str, Json] = {
    "boolean": True,
    "integer": 10,
    "positiveInt": 10,
    "unsignedInt": 10,
    "decimal": 10.5,
    "date": _LONG_AGO,
    "dateTime": _LONG_AGO,
    "instant": f"{_LONG_AGO}T08:00:00Z",
    "code": "other",
    "CodeableConcept": {"text": "Something else"},
    "Coding": {"system": "urn:example:codes", "code": "other"},
    "Reference": {"display": "Somebody else"},
    "Period": {"start": _LONG_AGO, "end": "1999-01-02"},
    "Timing": {"repeat": {"frequency": 3, "period": 1, "periodUnit": "d"}},
    "Range": {"low": {"value": 5, "unit": "g"}, "high": {"value": 10, "unit": "g"}},
    "Ratio": {"numerator": {"value": 10, "unit": "g"}, "denominator": {"value": 1, "unit": "h"}},
    "Annotation": {"text": "For information"},
    "Narrative": {"status": "generated", "div": '<div xmlns="http://www.w3.org/1999/xhtml">For information</div>'},
    "Identifier": {"system": "urn:example:ids", "value": "77"},
    "ContactPoint": {"system": "email", "value": "somebody@example.org"},
    "Address": {"city": "Elsewhere"},
    "Attachment": {"title": "A picture"},
    "Dosage": {"text": "10 g three times a day"},
    "Meta": {"tag": [{"system": "urn:example:tags", "code": "entered-by-hand"}]},
    "Extension": _UNKNOWN,
}
_QUANTITIES = ("Quantity", "Age", "Duration", "Money", "Count")
_TEXTS = ("string", "markdown")
_NOT_TRIED = frozenset({"resourceType", "id", "contained", "implicitRules", "modifierExtension", "identifier", "text"})

Addition = tuple[str, Resource]
"""A description of an added element, and the body that contains it."""


def reversals(task: Task[Any], gold: GoldRecording, now: datetime) -> Iterator[Policy]:
    """Yield policies that add one element to a written record."""
    for index, step in enumerate(gold.steps):
        if not step.writes or not isinstance(step.body, dict):
            continue
        kind = step.body["resourceType"]
        remarks = tuple(name for name in task.harmless_additions.get(kind, ()) if _takes_text(kind, name))
        maker = _Maker(task.requested_elements.get(kind, ()), remarks, gold, instant(now))
        new = step.created is not None and kind in task.requested_elements
        deserves: Expected | None = "may pass" if step.created and task.is_question(step.body) else None
        for name, body in maker.contrary(kind, step.body, new=new):
            actions = gold.actions
            actions[index] = rebody(step.action, body)
            play = script([*actions, Finish(gold.answer)])
            yield Policy("meaning reversed", f"{kind} with {name}", play, deserves=deserves)
        if new:
            for name, body in maker.neutral(kind, step.body):
                other = RecordedStep(rebody(step.action, body), body, step.answer, step.before, step.created)
                yield same(f"{kind} with neutral {name}", gold, [*gold.steps[:index], other, *gold.steps[index + 1 :]])


class _Maker:
    """Adds elements to the records that one step writes.

    Args:
        asked: Paths of the elements that the task requests.
        remarks: Names of the text elements that the task allows as harmless additions.
        gold: The reference episode.
        now: Present time of the world, as a FHIR instant.
    """

    def __init__(self, asked: tuple[str, ...], remarks: tuple[str, ...], gold: GoldRecording, now: str) -> None:
        self._asked = asked
        self._remarks = remarks
        self._patients = gold.ids.get("Patient", [])
        self._now = now

    def contrary(self, kind: str, body: Resource, *, new: bool) -> Iterator[Addition]:
        """Yield additions that change the meaning of a record."""
        for place, content, part, path in _parts(kind, body):
            elements = elements_of(content)
            added: dict[str, list[Json]] = {}
            for name, element in elements.items():
                if name not in part and f"{path}{name}" not in self._asked and not _excluded(element, part):
                    if name == "minutesDuration" and "end" not in part:
                        continue  # without an end time, any duration is right
                    added[name] = [*self._against(content, element, new=new)]
            if "modifierExtension" in elements:
                added["modifierExtension"] = [[_UNKNOWN]]
            if content == "Reference" and "identifier" not in part:
                added["identifier"] = [{"use": "old", "system": "urn:example:ids", "value": "77"}]
            if not place:
                added |= {name: [self._annulling(elements[name])] for name in self._remarks if name not in part}
                added["implicitRules"] = ["urn:example:rules"]
            for name, values in added.items():
                for value in values:
                    yield f"{path}{name} = {value!r}", _with(body, place, name, value)

    def _against(self, content: str, element: Element, *, new: bool) -> Iterator[Json]:
        """Yield values for an element that change the meaning of the record."""
        name, closed = element.name, new and content in BY_RECORD
        if name in _NOT_TRIED and name not in BY_DATA_TYPE.get(content, {}):
            return
        table = BY_RECORD[content] if closed else BY_DATA_TYPE.get(content, {})
        changes = (new or content in DATA_TYPES) and name in modifiers(content)
        rule = table.get(name) or (EVERYWHERE if closed else WITHOUT_EFFECT if changes else {}).get(name)
        if rule is None:
            if closed or changes:
                yield _listed(element, _sample(element))
        elif isinstance(rule, tuple):
            other = next(iter(_other_than(rule, element)), None)
            if other is not None:
                yield _listed(element, other)
        elif rule in ("today", "in force", "length"):
            yield _listed(element, _sample(element))
        elif rule == "anything" and element.type in ("CodeableConcept", "Annotation"):
            yield self._annulling(element)
        elif rule == "anything" and element.type == "Reference" and not {"Patient"}.isdisjoint(element.targets):
            yield from (_listed(element, {"reference": f"Patient/{id}"}) for id in self._patients[-1:])

    def _annulling(self, element: Element) -> Json:
        text = {"text": _CONTRARY} if element.type in ("CodeableConcept", "Annotation") else _CONTRARY
        return _listed(element, text)

    def neutral(self, kind: str, body: Resource) -> Iterator[Addition]:
        """Yield additions that do not change the meaning of a record."""
        for place, content, part, path in _parts(kind, body):
            for name, rule in {**(EVERYWHERE if not place else {}), **BY_RECORD.get(content, {})}.items():
                element = elements_of(content).get(name)
                if element is None or name in part or name in ("id", "text", "contained") or _excluded(element, part):
                    continue
                if f"{path}{name}" in self._asked or rule in ("part", "length"):
                    continue
                yield f"{path}{name}", _with(body, place, name, _listed(element, self._fitting(rule, element)))

    def _fitting(self, rule: Rule, element: Element) -> Json:
        if isinstance(rule, tuple):
            return rule[0] if element.type != "CodeableConcept" else {"text": rule[0]}
        if rule == "today":
            return self._now if element.type == "instant" else self._now[:10]
        if rule == "in force":
            return {"start": self._now[:10]}
        return _sample(element)


def _takes_text(kind: str, name: str) -> bool:
    element = elements_of(kind).get(name)
    return element is not None and element.type in ("CodeableConcept", "Annotation", *_TEXTS) and name != "dependent"


def _parts(content: str, part: Resource, place: Path = (), path: str = "") -> Iterator[tuple[Path, str, Resource, str]]:
    """Yield the record and each nested object: its path, R4 type, content, and the prefix of its element names."""
    yield place, content, part, path
    for name, value in part.items():
        element = elements_of(content).get(name)
        if element is None or not element.content:
            continue
        for n, item in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(item, dict):
                inner = (*place, name, n) if isinstance(value, list) else (*place, name)
                yield from _parts(element.content, item, inner, f"{path}{name}.")


def _with(body: Resource, place: Path, name: str, value: Json) -> Resource:
    changed = copy.deepcopy(body)
    holder: Any = changed
    for step in place:
        holder = holder[step]
    holder[name] = value
    return changed


def _excluded(element: Element, part: Resource) -> bool:
    """Whether the object already has another type of the same choice element (``value[x]``)."""
    return element.choice is not None and any(
        name.startswith(element.choice) and name[len(element.choice) : len(element.choice) + 1].isupper()
        for name in part
    )


def _other_than(rule: tuple[str | bool | int, ...], element: Element) -> Iterator[Json]:
    if element.type == "boolean":
        yield False in rule and True not in rule
    elif element.type in ("CodeableConcept", "Coding"):
        yield _SAMPLES[element.type]
    elif element.binding is not None:
        yield from sorted(codes(element.binding) - {str(value) for value in rule})
    else:
        yield 7


def _sample(element: Element) -> Json:
    """A sample value of an element's type."""
    if element.binding is not None and element.type == "code":
        return sorted(codes(element.binding))[0]
    if element.type in _QUANTITIES:
        return {"value": 10, "unit": "g"}
    if element.type in _SAMPLES:
        return _SAMPLES[element.type]
    if element.type in _TEXTS:
        return "For information"
    if element.type in ("BackboneElement", "Element"):
        below = [
            child for name, child in elements_of(element.content).items() if name not in ("id", "extension", *_ALWAYS)
        ]
        chosen = [child for child in below if child.required] or below[:1]
        return {
            child.name: _listed(child, _sample(child)) for child in chosen if child.choice is None or child is chosen[0]
        }
    return "urn:example:value"


_ALWAYS = ("implicitRules", "modifierExtension")


def _listed(element: Element, value: Json) -> Json:
    return [value] if element.many else value
