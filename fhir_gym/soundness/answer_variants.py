"""Other spellings of a right answer, and wrong answers that resemble it, for each answer form."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any

from fhir_gym.errors import UnknownNameError
from fhir_gym.fhir.definitions import Element, children, codes
from fhir_gym.tasks.core.ids import id_number
from fhir_gym.tasks.grading.answers import (
    AnswerForm,
    CountAnswer,
    CountedIdsAnswer,
    EmptyAnswer,
    IdAnswer,
    IdSetAnswer,
    LetteredAnswer,
    answer_count,
)
from fhir_gym.types import Json, Resource

Path = tuple[str | int, ...]
"""Path of a value inside a resource: names and list indices."""

_SERVER_MADE = frozenset({"resourceType", "id", "meta", "text"})
_MIN_DIGITS = 4


def leaves(resource: Resource) -> Iterator[tuple[Path, Json]]:
    """Yield the path and value of every primitive that the server does not set."""
    for name, value in resource.items():
        if name not in _SERVER_MADE:
            yield from _leaves(value, (name,))


def _leaves(value: Json, path: Path) -> Iterator[tuple[Path, Json]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(item, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index))
    else:
        yield path, value


def path_name(resource_type: str, path: Path) -> str:
    """Format a path without list indices, such as ``Patient.name.family``."""
    return ".".join((resource_type, *(str(part) for part in path if isinstance(part, str))))


def replaced(resource: Resource, path: Path, value: Json) -> Resource:
    """Copy a resource with another value at a path."""
    changed = copy.deepcopy(resource)
    holder: Any = changed
    for part in path[:-1]:
        holder = holder[part]
    holder[path[-1]] = value
    return changed


def removed(resource: Resource, path: Path) -> Resource:
    """Copy a resource without the value at a path; drop parent elements that become empty."""
    changed = copy.deepcopy(resource)
    holders: list[Any] = [changed]
    for part in path[:-1]:
        holders.append(holders[-1][part])
    for holder, part in zip(reversed(holders), reversed(path), strict=True):
        if holder is holders[-1] or not holder[part]:
            del holder[part]
    return changed


def values_at(resource: Resource, path: Path) -> list[Json]:
    """The primitive values at a path; list indices are ignored."""
    name = path_name("", path)
    return [value for other, value in leaves(resource) if path_name("", other) == name]


def made_up_values(resource_type: str, path: Path, value: Json) -> list[Json]:
    """Invented wrong values of the right type; empty for a reference."""
    if _is_reference(path, value):
        return []
    return [mutant for mutant in mutated(_element(resource_type, path), value) if mutant != value]


def neighbour_values(
    path: Path, value: Json, ids: Mapping[str, Sequence[str]], neighbours: Iterable[Resource]
) -> list[Json]:
    """Wrong values from other records: their values at the same path. For a reference, references to other records.

    Args:
        path: Path of the value.
        value: The right value.
        ids: Known ids by resource type.
        neighbours: The other resources of the same type.
    """
    if _is_reference(path, value):
        target, _, id = str(value).rpartition("/")
        return [f"{target}/{other}" for other in ids.get(target, ()) if other != id]
    wrong = [
        other_value for neighbour in neighbours for other_value in values_at(neighbour, path) if other_value != value
    ]
    return [wrong_value for n, wrong_value in enumerate(wrong) if wrong_value not in wrong[:n]]


def _is_reference(path: Path, value: Json) -> bool:
    return path[-1] == "reference" and isinstance(value, str) and "/" in value


def mutated(element: Element | None, value: Json) -> list[Json]:
    """Invented values of the same type with another meaning."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1]
    if not isinstance(value, str):
        return []
    if element is not None and element.binding is not None:
        return [code for code in sorted(codes(element.binding)) if code != value]
    moment = _other_time(value)
    if moment is not None:
        return [moment]
    if sum(character.isdigit() for character in value) >= _MIN_DIGITS:
        last = max(index for index, character in enumerate(value) if character.isdigit())
        return [f"{value[:last]}{(int(value[last]) + 1) % 10}{value[last + 1 :]}"]
    return [f"{value}a", value[1:] or "b"]


def _other_time(value: str) -> str | None:
    try:
        if len(value) == len("2000-01-01"):
            return (date.fromisoformat(value) + timedelta(days=1)).isoformat()
        moved = datetime.fromisoformat(value) + timedelta(hours=1)
    except (ValueError, OverflowError):
        return None
    return moved.isoformat().replace("+00:00", "Z") if "T" in value and moved.tzinfo else None


def _element(resource_type: str, path: Path) -> Element | None:
    """The definition of the element at a path; None for an unknown element."""
    content, element = resource_type, None
    for name in (part for part in path if isinstance(part, str)):
        try:
            element = children(content).get(name)
        except UnknownNameError:
            return None
        if element is None:
            return None
        content = element.content
    return element


Respell = Callable[[list[Json]], list[Json]]
_NOBODY = "nobody-0"
_FEW = 3


def consists_of_ids(form: AnswerForm) -> bool:
    """Whether the form asks for ids or for an empty answer, so that a bare number is never right."""
    return isinstance(form, IdAnswer | IdSetAnswer | CountedIdsAnswer | EmptyAnswer)


def none_answer(form: AnswerForm) -> list[Json]:
    """The answer for "no record was found"."""
    return [0] if isinstance(form, CountAnswer | CountedIdsAnswer) else []


def spellings(form: AnswerForm, answer: Sequence[Json], base_url: str) -> Iterator[tuple[str, Respell]]:
    """Yield names and functions; each function respells an answer.

    They are functions because the ids of created resources differ between episodes.
    """
    if isinstance(form, IdAnswer) and len(form.types) == len(answer):
        yield from _ids_spelled(form.types, answer, base_url, 0)
    elif isinstance(form, IdSetAnswer):
        yield from _ids_spelled((form.type,) * len(answer), answer, base_url, 0)
        yield "answer in another order", lambda ids: ids[::-1]
    elif isinstance(form, CountedIdsAnswer):
        yield from _ids_spelled((form.type,) * (len(answer) - 1), answer, base_url, 1)
        yield "answer in another order", lambda items: [items[0], *items[:0:-1]]
        yield "number as text", lambda items: [str(items[0]), *items[1:]]
    elif isinstance(form, LetteredAnswer):
        yield "answer in another order", lambda items: items[::-1]
        yield "answer in capital letters", lambda items: [str(item).upper() for item in items]
    elif isinstance(form, CountAnswer):
        yield "number as text", lambda items: [str(items[0])]
        yield "number with spaces", lambda items: [f" {items[0]} "]
        yield "number as 1.0", lambda items: [float(items[0])]
    elif any(isinstance(item, int | float) and not isinstance(item, bool) for item in answer):
        yield "numbers as text", lambda items: [_as_text(item) for item in items]


def _as_text(item: Json) -> Json:
    return str(item).lower() if isinstance(item, bool) else str(float(item)) if isinstance(item, int | float) else item


def _ids_spelled(
    types: Sequence[str], answer: Sequence[Json], base_url: str, start: int
) -> Iterator[tuple[str, Respell]]:
    """Yield functions that respell the ids from position `start`: ``Type/id``, URL, with spaces, or number."""
    if not types:
        return

    def each(change: Callable[[str, Json], Json]) -> Respell:
        return lambda items: [*items[:start], *(change(k, i) for k, i in zip(types, items[start:], strict=True))]

    yield "answer Type/id", each(lambda kind, id: f"{kind}/{id}")
    yield "answer as url", each(lambda kind, id: f"{base_url}/{kind}/{id}")
    yield "answer Type/id/_history/1", each(lambda kind, id: f"{kind}/{id}/_history/1")
    yield "answer with spaces", each(lambda kind, id: f" {id} ")
    if all(str(id).isdecimal() for id in answer[start:]):
        yield "answer as numbers", each(lambda kind, id: int(id))


def wrong_answers(form: AnswerForm, answer: list[Json], others: Sequence[str]) -> Iterator[tuple[str, list[Json]]]:
    """Yield wrong answers that resemble the right answer.

    Args:
        form: The answer form that the task requests.
        answer: The right answer.
        others: Ids of other records.
    """
    if isinstance(form, IdSetAnswer):
        yield from _wrong_sets(answer, others)
    elif isinstance(form, CountedIdsAnswer):
        yield from (("count right, " + name, [answer[0], *ids]) for name, ids in _wrong_sets(answer[1:], others))
        yield from ((f"ids right, {name}", [*count, *answer[1:]]) for name, count in _wrong_counts(answer[:1]))
        more = next((id for id in others if id not in answer), _NOBODY)
        yield "one more, counted", [(answer_count(answer[0]) or 0) + 1, *answer[1:], more]
        if len(answer) > 1:
            yield "one less, counted", [len(answer) - 2, *answer[2:]]
        yield "without count", answer[1:]
    elif isinstance(form, CountAnswer):
        yield from _wrong_counts(answer)
    elif isinstance(form, LetteredAnswer):
        yield from _wrong_letters([str(item) for item in answer])
    else:
        yield from _wrong_items(answer, others)


def _wrong_counts(answer: list[Json]) -> Iterator[tuple[str, list[Json]]]:
    right = answer_count(answer[0]) or 0
    for number in dict.fromkeys((right + 1, right - 1, 0, 2 * right + 10)):
        if number != right:
            yield f"answer {number}", [number]
    yield "answer twice", [right, right]
    yield "answer and a half", [right + 0.5]
    yield "answer in words", [f"{right} slots"]
    yield "answer missing", []
    yield "answer empty", [None]
    yield "answer nested", [[right]]


def _wrong_sets(answer: list[Json], others: Sequence[str]) -> Iterator[tuple[str, list[Json]]]:
    strangers = [id for id in others if id not in answer]
    for id in strangers:
        yield f"answer with {id} too", [*answer, id]
    for position in range(min(len(answer), _FEW)):
        yield f"answer without item {position}", [*answer[:position], *answer[position + 1 :]]
    if answer:
        yield "answer without the last", answer[:-1]
        yield "answer with an item twice", [*answer, answer[0]]
        yield "answer with an empty item", [*answer, None]
        yield "answer as one text", [", ".join(map(str, answer)) + ","]
        yield "answer nested", [answer]
        for id in strangers[:_FEW]:
            yield f"answer with {id} in place of one", [id, *answer[1:]]
    else:
        yield "answer none", ["none"]
        yield "answer with an empty item", [None]


def _wrong_letters(answer: list[str]) -> Iterator[tuple[str, list[Json]]]:
    texts = [item.partition(":")[2].strip() for item in answer]
    for position, item in enumerate(answer):
        head, tail, letter = answer[:position], answer[position + 1 :], item.partition(":")[0]
        for other in dict.fromkeys(texts):
            if other.casefold() != texts[position].casefold():
                yield f"answer {letter} = {other!r}", [*head, f"{letter}: {other}", *tail]
        yield f"answer {letter} missing", [*head, *tail]
        yield f"answer {letter} = None", [*head, None, *tail]
        yield f"answer {letter} without a text", [*head, f"{letter}:", *tail]
        yield f"answer {letter} without the letter", [*head, texts[position], *tail]
        yield f"answer {letter} twice", [*answer, item]
    if len(answer) > 1:
        yield "answer as one text", [", ".join(answer)]
    yield "answer nested", [[*answer]]
    yield "answer repeated", [*answer, *answer]


def _wrong_items(answer: list[Json], others: Sequence[str]) -> Iterator[tuple[str, list[Json]]]:
    for position, right in enumerate(answer):
        head, tail = answer[:position], answer[position + 1 :]
        yield from ((f"answer {position}: another id {id}", [*head, id, *tail]) for id in others if id != right)
        yield f"answer {position} missing", [*head, *tail]
        yield f"answer {position} empty", [*head, None, *tail]
        if (number := id_number(right)) is not None:
            following = str(right).replace(str(number), str(number + 1))
            yield f"answer {position}: the following id", [*head, following, *tail]
    yield "answer with one item more", [*answer, others[0] if others else _NOBODY]
    yield "answer repeated", [*answer, *(answer or [None])]
    if answer != answer[::-1]:
        yield "answer in reverse", answer[::-1]
