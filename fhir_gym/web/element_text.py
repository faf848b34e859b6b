"""Short texts of FHIR elements, for table cells and the summary lines of trees."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fhir_gym.types import Json

MAX_TEXT = 200
"""Maximum number of characters of a short text."""
_MAX_ITEMS = 3
_MAX_DEPTH = 4


def element_text(value: Json) -> str:
    """Return the short text of an element: the name of a HumanName, the display of a CodeableConcept, and so on.

    The type of an element is recognised by its children, so that elements of any resource type have a text, and
    elements of the wrong type have one too.

    Examples:
        >>> element_text({"coding": [{"system": "http://loinc.org", "code": "8867-4", "display": "Heart rate"}]})
        'Heart rate'
        >>> element_text({"value": 72, "unit": "beats/min"})
        '72 beats/min'
    """
    return shortened(_text(value, _MAX_DEPTH))


def shortened(text: str, max_chars: int = MAX_TEXT) -> str:
    """Return a text, or its first characters and an ellipsis if it is longer than `max_chars`."""
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


def _text(value: Json, depth: int) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return _list_text(value, depth)
    if isinstance(value, dict):
        return _object_text(value, depth)
    return str(value)[: MAX_TEXT + 1]


def _list_text(items: list[Json], depth: int) -> str:
    if depth == 0:
        return f"{len(items)} items"
    shown = [text for item in items[:_MAX_ITEMS] if (text := _text(item, depth - 1))]
    more = len(items) - _MAX_ITEMS
    return "; ".join(shown) + (f" and {more} more" if more > 0 else "")


def _object_text(value: Mapping[str, Json], depth: int) -> str:
    if depth == 0:
        return f"{len(value)} elements"
    for children, text_of in _FORMS:
        if not children.isdisjoint(value):
            shown_text = text_of(value, depth - 1)
            if shown_text:
                return shown_text
    parts = [f"{name}: {text}" for name, inner in list(value.items())[:_MAX_ITEMS] if (text := _text(inner, depth - 1))]
    more = len(value) - _MAX_ITEMS
    return ", ".join(parts) + (", …" if more > 0 else "")


def _resource(value: Mapping[str, Json], depth: int) -> str:
    kind, id = _text(value.get("resourceType"), depth), _text(value.get("id"), depth)
    return f"{kind}/{id}" if id else kind


def _reference(value: Mapping[str, Json], depth: int) -> str:
    reference, display = _text(value.get("reference"), depth), _text(value.get("display"), depth)
    return f"{display} ({reference})" if display and reference else display or reference


def _concept(value: Mapping[str, Json], depth: int) -> str:
    return _text(value.get("text"), depth) or _text(value.get("coding"), depth)


def _name(value: Mapping[str, Json], depth: int) -> str:
    parts = [value.get(name) for name in ("prefix", "given", "family", "suffix")]
    words = [_text(name_part, depth) for part in parts for name_part in (part if isinstance(part, list) else [part])]
    return _text(value.get("text"), depth) or " ".join(word for word in words if word)


def _address(value: Mapping[str, Json], depth: int) -> str:
    line = value.get("line")
    street = [_text(address_line, depth) for address_line in (line if isinstance(line, list) else [line])]
    rest = [_text(value.get(name), depth) for name in ("city", "state", "postalCode", "country")]
    return _text(value.get("text"), depth) or ", ".join(part for part in (*street, *rest) if part)


def _period(value: Mapping[str, Json], depth: int) -> str:
    start, end = _text(value.get("start"), depth), _text(value.get("end"), depth)
    return f"{start} to {end}" if start and end else f"from {start}" if start else f"until {end}"


def _range(value: Mapping[str, Json], depth: int) -> str:
    low, high = _text(value.get("low"), depth), _text(value.get("high"), depth)
    return f"{low} to {high}" if low and high else f"at least {low}" if low else f"at most {high}"


def _ratio(value: Mapping[str, Json], depth: int) -> str:
    return f"{_text(value.get('numerator'), depth)} / {_text(value.get('denominator'), depth)}"


def _value(value: Mapping[str, Json], depth: int) -> str:
    """Return the text of a Quantity, a ContactPoint or an Identifier."""
    unit = value.get("unit", value.get("code"))
    parts = [_text(part, depth) for part in (value.get("comparator"), value.get("value"), unit)]
    return " ".join(part for part in parts if part)


def _code(value: Mapping[str, Json], depth: int) -> str:
    return _text(value.get("display"), depth) or _text(value.get("code"), depth)


def _extension(value: Mapping[str, Json], depth: int) -> str:
    name = _text(value.get("url"), depth).rpartition("/")[2]
    text = next((_text(inner, depth) for key, inner in value.items() if key.startswith("value")), "")
    return f"{name}: {text}" if text else name


def _child(name: str) -> Callable[[Mapping[str, Json], int], str]:
    return lambda value, depth: _text(value.get(name), depth)


_FORMS: tuple[tuple[frozenset[str], Callable[[Mapping[str, Json], int], str]], ...] = (
    (frozenset({"resourceType"}), _resource),
    (frozenset({"reference"}), _reference),
    (frozenset({"coding"}), _concept),
    (frozenset({"family", "given"}), _name),
    (frozenset({"line", "city", "postalCode"}), _address),
    (frozenset({"numerator", "denominator"}), _ratio),
    (frozenset({"low", "high"}), _range),
    (frozenset({"value"}), _value),
    (frozenset({"url"}), _extension),
    (frozenset({"start", "end"}), _period),
    (frozenset({"display", "code"}), _code),
    (frozenset({"div"}), _child("status")),
    (frozenset({"text"}), _child("text")),
)
"""How to recognise a datatype by its children. The first entry with one of its children, and with a text, applies."""
