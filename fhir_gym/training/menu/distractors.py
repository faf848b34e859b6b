"""Distractors: templates in which one slot is replaced by another slot of the same type."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from zlib import crc32

from fhir_gym.training.menu.slots import Slot, Value, Variable
from fhir_gym.training.menu.templates import Template, Templates

_MAX_OPTIONS = 24
"""Number of distractors to prepare for each template."""
_INDICES = range(3)
_FIXED = ("resourceType", "system", "unit")


def derive_distractors(templates: Templates) -> tuple[tuple[Template, ...], ...]:
    """Return for each template the templates that differ from it in one slot, in an order without meaning.

    The other slot is one that fits the leaf: another constant of a leaf of that name, another date, reference or text
    of the prompt, another date of the same resource, a pointer to another resource of the type, or another condition
    on the resources that a search found.
    """
    pool = _Pool(templates)
    derived = []
    for template in templates.templates:
        options: dict[tuple[int, str], Template] = {}
        for at, slot in enumerate(template.slots):
            for other in pool.others(template, at, slot):
                options[at, other.slots[at].name] = other
        known = {one.shape + repr(one.slots) for one in templates.templates}
        new = [one for one in options.values() if one.shape + repr(one.slots) not in known]
        derived.append(tuple(sorted(new, key=_rank)[:_MAX_OPTIONS]))
    return tuple(derived)


def _rank(template: Template) -> tuple[int, str]:
    text = template.shape + repr(template.slots)
    return crc32(text.encode()), text


class _Pool:
    """The slots and constants of all templates, grouped by the slots that they can replace."""

    def __init__(self, templates: Templates) -> None:
        self._dictionaries: Mapping[str, Mapping[str, Value]] = templates.dictionaries
        self._constants: dict[str, set[Value]] = defaultdict(set)
        self._slots: dict[str, set[Slot]] = defaultdict(set)
        self._variables: dict[str, set[Variable]] = defaultdict(set)
        for template in templates.templates:
            for name, slot in zip(template.names, template.slots, strict=True):
                if slot.kind == "const" and isinstance(slot.args[0], str):
                    self._constants[_key(name)].add(slot.args[0])
                elif slot.kind != "pointer":
                    self._slots[slot.kind].add(slot)
            for variable in template.variables:
                self._variables[variable.target or variable.type].add(variable)

    def others(self, template: Template, at: int, slot: Slot) -> Iterator[Template]:
        """Yield the templates with another slot at a leaf."""
        if slot.kind == "pointer":
            yield from self._other_pointers(template, at, slot)
        else:
            for other in self._other_slots(template.names[at], slot):
                if other != slot:
                    yield _with(template, at, other)

    def _other_slots(self, name: str, slot: Slot) -> Iterator[Slot]:
        if slot.kind in ("const", "word_value"):
            yield from self._other_constants(name, slot)
        elif slot.kind in ("reference", "number"):
            at = 0 if slot.kind == "number" else 1
            yield from (replace(slot, args=(*slot.args[:at], index, *slot.args[at + 1 :])) for index in _INDICES)
        elif slot.kind in ("date", "text"):
            for other in sorted(self._slots[slot.kind], key=_slot_name):
                if _form(other) == _form(slot):
                    yield replace(other, prefix=slot.prefix, capital=slot.capital)
        else:
            for kind in ("total", "count") if slot.kind in ("total", "count") else (slot.kind,):
                yield from sorted(self._slots[kind], key=_slot_name)

    def _other_constants(self, name: str, slot: Slot) -> Iterator[Slot]:
        if slot.kind == "word_value":
            values = {str(value) for value in self._dictionaries[slot.args[0]].values()}
        else:
            values = set() if name.endswith(_FIXED) else {str(value) for value in self._constants[_key(name)]}
        yield from (Slot("const", (value,), slot.prefix) for value in sorted(values))

    def _other_pointers(self, template: Template, at: int, slot: Slot) -> Iterator[Template]:
        number, attribute = slot.args
        variable = template.variables[number]
        if attribute not in ("ref", "id"):
            for name in ("start", "end", "requestedPeriod.start", "requestedPeriod.end"):
                if name != attribute and (name.startswith("requested") == attribute.startswith("requested")):
                    yield _with(template, at, replace(slot, args=(number, name)))
            return
        if at == 0 and "edits" in template.skeleton:
            return
        kind = variable.target or variable.type
        for index in _INDICES:
            yield _with(template, at, Slot("reference", (kind, index, attribute), slot.prefix))
        for other in sorted(self._variables[kind], key=lambda one: one.name):
            if other != variable:
                added = Slot("pointer", (len(template.variables), attribute), slot.prefix)
                yield replace(_with(template, at, added), variables=(*template.variables, other))


def _with(template: Template, at: int, slot: Slot) -> Template:
    return replace(template, slots=(*template.slots[:at], slot, *template.slots[at + 1 :]))


def _form(slot: Slot) -> object:
    """Return what two dates or texts must share to replace each other: with or without a time, the kind of context."""
    return slot.args[4] is not None if slot.kind == "date" else slot.args[0]


def _slot_name(slot: Slot) -> str:
    return slot.name


def _key(name: str) -> str:
    """Return the last part of a leaf's name."""
    return re.split(r"[.?\]]", name)[-1]
