"""Values that slots take from the server's answers: pointers, and the resources that a search found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fhir_gym.training.menu.prompt import Prompt, parse_day
from fhir_gym.training.menu.templates import Slot, Variable
from fhir_gym.training.menu.view import Pointer, SearchResult, Seen, View

_TIMED = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)")
_MAX_TIMES = 3


def pointer_value(pointer: Pointer, attribute: str) -> str | None:
    """Return a pointer's ``id``, its reference (``ref``), or its date at a path."""
    if attribute == "ref":
        return pointer.reference
    if attribute == "id":
        return pointer.id
    return next((value for path, value in pointer.seen.dates if path == attribute), None)


def search_value(slot: Slot, view: View) -> int | list[str] | None:
    """Return the value of a slot about the latest search for a type; None without such a search."""
    result = view.searches.get(slot.args[0])
    if result is None:
        return None
    if slot.kind == "total":
        return result.total
    chosen = list(_filtered(result, slot.args[1], view.prompt))
    if slot.kind == "count":
        return len(chosen)
    return [seen.id if slot.kind == "ids" else seen.reference for seen in chosen]


def _filtered(result: SearchResult, condition: tuple[Any, ...], prompt: Prompt) -> Iterator[Seen]:
    for seen in result.entries:
        if not condition or _passes(seen, condition, prompt):
            yield seen


def _passes(seen: Seen, condition: tuple[Any, ...], prompt: Prompt) -> bool:
    """Return whether a date of a resource is on the weekdays, and between the times, that the prompt names."""
    path, on_weekdays, first, end = condition
    value = next((value for at, value in seen.dates if at == path), "")
    match = _TIMED.match(value)
    if match is None:
        return False
    day, time = match.groups()
    if on_weekdays and ((on := parse_day(day)) is None or on.weekday() not in prompt.weekdays):
        return False
    times = prompt.times
    if any(index is not None and index >= len(times) for index in (first, end)):
        return False
    return (first is None or time >= times[first]) and (end is None or time < times[end])


def explain_value(value: Any, view: View) -> Iterator[tuple[Slot, Pointer | None]]:
    """Yield the slots that find a value in the server's answers, each with the pointer that it uses."""
    if isinstance(value, list) or (isinstance(value, int) and not isinstance(value, bool)):
        yield from ((slot, None) for slot in _explain_search(value, view))
    elif isinstance(value, str):
        for variable, attribute, pointer in _attributes(view).get(value, ()):
            yield Slot("pointer", (variable, attribute)), pointer


def _explain_search(value: Any, view: View) -> Iterator[Slot]:
    for name, result in view.searches.items():
        conditions: list[tuple[Any, ...]] = [()]
        paths = sorted({path for seen in result.entries for path, at in seen.dates if _TIMED.match(at)})
        times: list[int | None] = [None, *range(min(_MAX_TIMES, len(view.prompt.times)))]
        for path in paths:
            limits = [(first, end) for first in times for end in times if first is None or first != end]
            conditions += [(path, weekdays, first, end) for weekdays in (True, False) for first, end in limits]
        slots = [Slot(kind, (name, condition)) for condition in conditions for kind in ("count", "ids", "refs")]
        for slot in (Slot("total", (name,)), *slots):
            searched = search_value(slot, view)
            if isinstance(searched, list):
                searched = [item for item in searched if item not in getattr(value, "known", ())]
            if searched == value:
                yield slot


def _attributes(view: View) -> dict[str, list[tuple[Variable, str, Pointer]]]:
    """Return the pointers that can fill a leaf, by value."""
    by_kind: dict[str, list[tuple[Variable, str, Pointer]]] = {}
    for seen in view.latest.values():
        variables = [Variable(seen.type)]
        for link in seen.links:
            target = link.reference.rpartition("/")[0].rpartition("/")[2]
            variables.append(Variable(seen.type, link.path, target))
        for variable in dict.fromkeys(variables):
            for pointer in view.pointers(variable):
                if pointer.seen is not seen:
                    continue
                by_kind.setdefault(pointer.reference, []).append((variable, "ref", pointer))
                by_kind.setdefault(pointer.id, []).append((variable, "id", pointer))
        pointer = next(p for p in view.pointers(Variable(seen.type)) if p.seen is seen)
        for path, value in seen.dates:
            if pointer_value(pointer, path) == value:
                by_kind.setdefault(value, []).append((Variable(seen.type), path, pointer))
    return by_kind
