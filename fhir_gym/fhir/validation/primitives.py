"""The formats of primitive values, with HAPI's messages."""

from __future__ import annotations

import base64
import binascii
import re
from calendar import monthrange
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation

from fhir_gym.fhir.definitions import binding
from fhir_gym.fhir.serialization.primitives import WHITESPACE, is_blank
from fhir_gym.fhir.validation.report import Issues
from fhir_gym.fhir.validation.tree import Node

Problem = tuple[str, str]
"""The end of the message's id, and the message."""

_CHECKS = "Type_Specific_Checks_DT_"
_YEAR = r"([0-9]([0-9]([0-9][1-9]|[1-9]0)|[1-9]00)|[1-9]000)"
_MONTH = r"(0[1-9]|1[0-2])"
_DAY = r"(0[1-9]|[1-2][0-9]|3[0-1])"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:([0-5][0-9]|60)(\.[0-9]+)?"
_ZONE = r"(Z|[+-]((0[0-9]|1[0-3]):[0-5][0-9]|14:00))"
_DATE = re.compile(f"{_YEAR}(-{_MONTH}(-{_DAY})?)?")
_DATE_TIME = re.compile(f"{_YEAR}(-{_MONTH}(-{_DAY}(T{_TIME}{_ZONE}?)?)?)?")
_INSTANT = re.compile(f"-?[0-9]{{4}}-{_MONTH}-{_DAY}T{_TIME}{_ZONE}")
_CLOCK = re.compile(_TIME)
_TEXT = re.compile(r"[ \r\n\t\S]+", re.ASCII)  # a no-break space is no white space, as in Java
_SPACE = re.compile(r"\s", re.ASCII)
_ID = re.compile(r"[A-Za-z0-9\-.]{1,64}")
_INTEGER = re.compile(r"-?[0-9]+")
_OID = re.compile(r"[0-2](\.(0|[1-9][0-9]*))+")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_ABSOLUTE = re.compile(r"[a-z][a-z0-9+.-]*:[^\s]+")
_INTEGER_DIGITS = 11
_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1
_REASONABLE_YEARS = range(1800, 2107)  # HAPI: until 80 years after the present, which was 2026 when it was recorded
_LONGEST_TEXT = 1_048_576
_SHORTEST_OID_ROOT = 4
_URIS = frozenset({"uri", "url", "canonical", "oid", "uuid"})


def is_absolute(url: str) -> bool:
    """Return whether a URL is absolute."""
    return _ABSOLUTE.fullmatch(url) is not None


def is_id(text: str) -> bool:
    """Return whether a text may be the id of a resource."""
    return _ID.fullmatch(text) is not None


def check_primitive(node: Node, issues: Issues) -> bool:
    """Report what is wrong with a primitive value; return whether there is a value to check further."""
    text = node.text
    if text is None or is_blank(text):
        _check_absent(node, issues)
        return False
    if (warning := _unreasonable(node.type, text)) is not None:
        issues.add("warning", node.path, warning[1], _CHECKS + warning[0], node.steps)
    for message, problem in _problems(node.type, text, node):
        issues.add("error", node.path, problem, _CHECKS + message, node.steps)
    return True


def _check_absent(node: Node, issues: Issues) -> None:
    if not node.children:
        if node.text is None:
            text = "Primitive types must have a value or must have child extensions"
            issues.add("error", node.path, text, f"{_CHECKS}Primitive_ValueExt", node.steps)
        elif not node.text:
            issues.add("error", node.path, "value cannot be empty", f"{_CHECKS}Primitive_NotEmpty", node.steps)
        else:
            text = "Primitive types should not only be whitespace"
            issues.add("warning", node.path, text, f"{_CHECKS}Primitive_WS", node.steps)
    bound = binding(node.definition)
    if bound is not None and bound.strength == "required":
        text = "No code provided, and a code is required from the value set"
        issues.add("error", node.path, text, "Terminology_TX_Code_ValueSet_MISSING", node.steps)


def _unreasonable(kind: str, text: str) -> Problem | None:
    if kind in _TIMES and re.match("[0-9]{4}", text) and int(text[:4]) not in _REASONABLE_YEARS:
        said = f"The value '{text}' is outside the range of reasonable years - check for data entry error"
        return "DateTime_Reasonable", said
    if kind in ("string", "markdown") and text.strip(WHITESPACE) != text:
        return "String_WS", f"value should not start or finish with whitespace '{text}'"
    return None


def _problems(kind: str, text: str, node: Node) -> Iterator[Problem]:
    if kind in _URIS:
        yield from _uri(kind, text)
    elif kind == "id" and not (node.name == "id" and node.parent is not None and node.parent.is_resource):
        if not is_id(text):
            yield "ID_Valid", f"id value '{text}' is not valid"
    elif check := _BY_TYPE.get(kind):
        yield from check(text)


def _uri(kind: str, text: str) -> Iterator[Problem]:
    for prefix in ("oid:", "uuid:"):
        if text.startswith(prefix):
            yield f"URI_{prefix[:-1].upper()}", f"URI values cannot start with {prefix}"
    if _SPACE.search(text):
        yield "URI_WS", f"URI values cannot have whitespace('{text}')"
    if kind == "oid" and not text.startswith("urn:oid:"):
        yield "OID_Start", "OIDs must start with urn:oid:"
    if kind == "uuid" and not text.startswith("urn:uuid:"):
        yield "UUID_Strat", "UUIDs must start with urn:uuid:"
    if kind == "canonical" and not text.startswith("#") and not is_absolute(text):
        yield "Canonical_Absolute", f"Canonical URLs must be absolute URLs if they are not fragment references ({text})"
    if text.startswith("urn:uuid:"):
        uuid = text.removeprefix("urn:uuid:").partition("#")[0].partition("|")[0]
        if not _UUID.fullmatch(uuid):
            yield "UUID_Valid", f"UUIDs must be valid and lowercase ({uuid})"
    if text.startswith("urn:oid:"):
        oid = text.removeprefix("urn:oid:")
        if not _OID.fullmatch(oid) or (oid.rfind(".") < _SHORTEST_OID_ROOT and not oid.startswith("1.3")):
            yield "OID_Valid", f"OIDs must be valid ({oid})"


def _string(text: str) -> Iterator[Problem]:
    if len(text) > _LONGEST_TEXT:
        yield "String_Length", "value is longer than permitted maximum length of 1 MB (1048576 bytes)"
    if not _TEXT.fullmatch(text):
        yield "Primitive_Regex_Type", f"Element value '{text}' does not meet string regex '{_TEXT.pattern}'"


def _code(text: str) -> Iterator[Problem]:
    if text.strip(WHITESPACE) != text or "  " in text or _SPACE.search(text.replace(" ", "")):
        yield "Code_WS", f"The code '{text}' is not valid (whitespace rules)"


def _date(text: str) -> Iterator[Problem]:
    if not _DATE.fullmatch(text) or not _is_day(text):
        yield "Date_Valid", f"Not a valid date format: '{text}'"


def _date_time(text: str) -> Iterator[Problem]:
    date, time, clock = text.partition("T")
    if not _DATE_TIME.fullmatch(text) or not _is_day(date):
        yield "DateTime_Valid", f"Not a valid date/time format: '{text}'"
    if time and not re.search(r"Z$|[+-]\d\d:\d\d$", clock):
        yield "DateTime_TZ", "If a date has a time, it must have a timezone"


def _instant(text: str) -> Iterator[Problem]:
    if not _INSTANT.fullmatch(text) or not _is_day(text.partition("T")[0]):
        yield "DateTime_Regex", f"Not a valid instant format: '{text}'"


def _is_day(date: str) -> bool:
    parts = date.split("-")
    return len(parts) < 3 or (int(parts[0]) > 0 and int(parts[2]) <= monthrange(int(parts[0]), int(parts[1]))[1])


def _time(text: str) -> Iterator[Problem]:
    if not _CLOCK.fullmatch(text):
        yield "Time_Valid", f"Not a valid time ({text})"


def _boolean(text: str) -> Iterator[Problem]:
    if text not in ("true", "false"):
        yield "Boolean_Value", "boolean values must be 'true' or 'false'"


def _at_least(least: int | None) -> Callable[[str], Iterator[Problem]]:
    def check(text: str) -> Iterator[Problem]:
        if not _INTEGER.fullmatch(text) or len(text) > _INTEGER_DIGITS or not _INT_MIN <= int(text) <= _INT_MAX:
            yield "Integer_Valid", f"The value '{text}' is not a valid integer"
        elif least is not None and int(text) < least:
            yield f"Integer_LT{least}", f"value is less than permitted minimum value of {least}"

    return check


def _decimal(text: str) -> Iterator[Problem]:
    try:
        finite = Decimal(text).is_finite()
    except InvalidOperation:
        finite = False
    if not finite or text.startswith("+"):
        yield "Decimal_Valid", f"The value '{text}' is not a valid decimal"


def _base64(text: str) -> Iterator[Problem]:
    try:
        base64.b64decode(re.sub(r"\s", "", text), validate=True)
    except (binascii.Error, ValueError):
        yield "Base64_Valid", f"The value '{text if len(text) < 100 else '(snip)'}' is not a valid Base64 value"


_TIMES = frozenset({"date", "dateTime", "instant"})
_BY_TYPE: dict[str, Callable[[str], Iterator[Problem]]] = {
    "string": _string,
    "code": _code,
    "date": _date,
    "dateTime": _date_time,
    "instant": _instant,
    "time": _time,
    "boolean": _boolean,
    "integer": _at_least(None),
    "unsignedInt": _at_least(0),
    "positiveInt": _at_least(1),
    "decimal": _decimal,
    "base64Binary": _base64,
}
