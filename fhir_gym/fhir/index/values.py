"""Write the index rows of a FHIR value: one writer function for each parameter type and FHIR type.

A writer gets the value, its path id and the `RowBuffer` of the resource. Values of the wrong type, which a lenient
server stores, have no rows. A date is an interval of instants and of calendar days: as in HAPI, searches by day, month
or year compare days as written; other searches compare instants.
"""

from __future__ import annotations

import re
import unicodedata
from calendar import monthrange
from collections.abc import Callable, Mapping
from datetime import date, datetime
from functools import lru_cache
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, NamedTuple

from fhir_gym.types import Json, as_object

DAY_MS = 86_400_000
_EPOCH = date(1970, 1, 1).toordinal()
_SECONDS = len("2023-11-14T09:00:00Z")
"""Length of an instant in the usual form. `datetime` parses this form faster than a regular expression does."""
_LONGEST_CACHED = 40
"""Maximum length of the dates in the cache."""

_DATE = re.compile(
    r"\s*(\d{4})(?:-(\d\d)(?:-(\d\d)(?:T(\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?(Z|[+-]\d\d:\d\d)?)?)?)?\s*", re.ASCII
)


class Interval(NamedTuple):
    """The interval that a date value covers, including both ends.

    Attributes:
        low: First millisecond since the epoch.
        high: Last millisecond.
        low_day: First calendar day as a number yyyymmdd.
        high_day: Last calendar day.
    """

    low: int
    high: int
    low_day: int
    high_day: int


FAR_PAST = -62_135_596_800_000
"""0001-01-01: the start of a period without a start."""

FAR_FUTURE = 253_402_300_799_999
"""9999-12-31: the end of a period without an end."""


@lru_cache(maxsize=4096)
def start_of_day(year: int, month: int, day: int) -> int:
    """Return midnight UTC in milliseconds; `ValueError` for an invalid day."""
    return (date(year, month, day).toordinal() - _EPOCH) * DAY_MS


def interval(text: str) -> Interval | None:
    """Return the interval of a FHIR date, dateTime or instant; None if it is invalid."""
    return _interval(text) if len(text) <= _LONGEST_CACHED else _interval.__wrapped__(text)


@lru_cache(maxsize=16384)
def _interval(text: str) -> Interval | None:
    if len(text) == _SECONDS and text[4::3] == "--T::Z":
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return _parsed(text)
        seconds = moment.hour * 3600 + moment.minute * 60 + moment.second
        low = (moment.toordinal() - _EPOCH) * DAY_MS + seconds * 1000
        day = moment.year * 10000 + moment.month * 100 + moment.day
        return Interval(low, low, day, day)
    return _parsed(text)


def _parsed(text: str) -> Interval | None:
    match = _DATE.fullmatch(text)
    if not match:
        return None
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        y, m, d = int(year), int(month or 1), int(day or 1)
        low = start_of_day(y, m, d)
    except ValueError:
        return None
    low_day = y * 10000 + m * 100 + d
    if hour:
        low += int(hour) * 3_600_000 + int(minute) * 60_000 + int(second or 0) * 1000
        if fraction:
            low += int(f"{fraction:0<3.3}")
        if zone and zone != "Z":
            offset = (int(zone[1:3]) * 60 + int(zone[4:6])) * 60_000
            low += -offset if zone[0] == "+" else offset
        return Interval(low, low, low_day, low_day)
    if day:
        return Interval(low, low + DAY_MS - 1, low_day, low_day)
    m = m if month else 12
    d = monthrange(y, m)[1]
    return Interval(low, start_of_day(y, m, d) + DAY_MS - 1, low_day, y * 10000 + m * 100 + d)


def period(start: str | None, end: str | None) -> Interval | None:
    """Return the interval of a Period. A missing end is unlimited. None if both ends are missing or invalid."""
    first = interval(start) if start else None
    last = interval(end) if end else None
    if first is None and last is None:
        return None
    return Interval(
        first.low if first else FAR_PAST,
        last.high if last else FAR_FUTURE,
        first.low_day if first else 10101,
        last.high_day if last else 99991231,
    )


_MAX_STRING = 768
_MAX_NUMBER = 1e300
_SHORT = 128
"""Maximum length of the references, ids and names in the cache."""


class RowBuffer:
    """Collects index rows without repeats, in the order in which they are found.

    The dictionaries are ordered sets. `token` and `date` have the rows of the current resource; the other
    dictionaries have the rows of all resources so far.
    """

    __slots__ = ("compartment", "date", "quantity", "reference", "rid", "string", "token", "uri")

    def __init__(self) -> None:
        self.string: dict[tuple[int, str, int, str], None] = {}
        self.quantity: dict[tuple[int, float, int, str, str], None] = {}
        self.reference: dict[tuple[int, str, str, int], None] = {}
        self.uri: dict[tuple[int, str, int], None] = {}
        self.begin(0, 0)

    def begin(self, rid: int, compartment: int) -> None:
        """Start the next resource."""
        self.rid = rid
        self.compartment = compartment
        self.token: dict[tuple[int, str, str], None] = {}
        self.date: dict[tuple[int, int, int, int, int, int, int], None] = {}


Writer = Callable[[Json, int, RowBuffer], None]


def normalise(text: str) -> str:
    """Normalise text for string searches: upper case, decomposed, without combining marks.

    Letters that do not decompose stay (``Ł``, ``ß``), as do apostrophes and hyphens.
    """
    return _normalised(text) if len(text) <= _SHORT else _normalised.__wrapped__(text)


@lru_cache(maxsize=4096)
def _normalised(text: str) -> str:
    if text.isascii():
        return text.upper()
    # Character by character, because upper() of the whole text would turn "ß" into "SS".
    upper = "".join(c.upper() if len(c.upper()) == 1 else c for c in unicodedata.normalize("NFD", text))
    return "".join(c for c in unicodedata.normalize("NFD", upper) if not unicodedata.combining(c))


def compartment_key(resource_type: str, id: str) -> int:
    """Return the 63-bit hash that identifies a compartment in index rows; 0 means none."""
    return _compartment_key(resource_type, id) if len(id) <= _SHORT else _compartment_key.__wrapped__(resource_type, id)


@lru_cache(maxsize=65536)
def _compartment_key(resource_type: str, id: str) -> int:
    return int.from_bytes(blake2b(f"{resource_type}/{id}".encode(), digest_size=8).digest(), "big") >> 1


def relative_reference(text: str) -> tuple[str, str] | None:
    """Split a relative reference (``Patient/1``, ``Patient/1/_history/2``) into type and id; None for other texts."""
    return _parts(text) if len(text) <= _SHORT else _parts.__wrapped__(text)


@lru_cache(maxsize=8192)
def _parts(text: str) -> tuple[str, str] | None:
    parts = text.split("/")
    if len(parts) == 2 or (len(parts) == 4 and parts[2] == "_history"):
        kind, ident = parts[0], parts[1]
        if ident and kind[:1].isupper() and kind.isalpha():
            return kind, ident
    return None


def _text(value: Json) -> str:
    return value.strip() if isinstance(value, str) else ""


# tokens


def _display(text: Json, pid: int, rows: RowBuffer) -> None:
    if isinstance(text, str) and text:
        rows.string[pid, normalise(text[:_MAX_STRING]), rows.rid, ""] = None


def _coding(value: Json, pid: int, rows: RowBuffer) -> None:
    if isinstance(value, dict):
        code, system = _text(value.get("code")), _text(value.get("system"))
        if code or system:
            rows.token[pid, code, system] = None
        if "display" in value:
            _display(value["display"], pid, rows)


def _concept(value: Json, pid: int, rows: RowBuffer) -> None:
    if isinstance(value, dict):
        for coding in value.get("coding") or ():
            _coding(coding, pid, rows)
        if "text" in value:
            _display(value["text"], pid, rows)


def _identifier(value: Json, pid: int, rows: RowBuffer) -> None:
    if isinstance(value, dict):
        text, system = _text(value.get("value")), _text(value.get("system"))
        if text or system:
            rows.token[pid, text, system] = None
        kind = value.get("type")
        if isinstance(kind, dict):
            _display(kind.get("text"), pid, rows)


def _contact_point(value: Json, pid: int, rows: RowBuffer) -> None:
    if isinstance(value, dict) and (text := _text(value.get("value"))):
        rows.token[pid, text, _text(value.get("system"))] = None


def _boolean(value: Json, pid: int, rows: RowBuffer) -> None:
    if isinstance(value, bool):
        rows.token[pid, "true" if value else "false", ""] = None


def _plain_token(value: Json, pid: int, rows: RowBuffer) -> None:
    if text := _text(value):
        rows.token[pid, text, ""] = None


# strings


def _string(value: Json, pid: int, rows: RowBuffer) -> None:
    if isinstance(value, str) and (text := value.strip()[:_MAX_STRING]):
        rows.string[pid, normalise(text), rows.rid, text] = None


def _parts_of(*names: str) -> Writer:
    def write(value: Json, pid: int, rows: RowBuffer) -> None:
        if isinstance(value, dict):
            for name in names:
                if name in value:
                    part = value[name]
                    for text in part if isinstance(part, list) else (part,):
                        _string(text, pid, rows)

    return write


# dates


def _span(spanned: Interval | None, pid: int, rows: RowBuffer) -> None:
    if spanned:
        low, high, low_day, high_day = spanned
        rows.date[pid, rows.compartment, low, rows.rid, high, low_day, high_day] = None


def _date(value: Json, pid: int, rows: RowBuffer) -> None:
    if isinstance(value, str):
        _span(interval(value), pid, rows)


def _period(value: Json, pid: int, rows: RowBuffer) -> None:
    if isinstance(value, dict):
        _span(period(_text(value.get("start")), _text(value.get("end"))), pid, rows)


def _timing(value: Json, pid: int, rows: RowBuffer) -> None:
    """Write one row that spans all events of a Timing and the bounds of its `repeat`."""
    if not isinstance(value, dict):
        return
    spans = [interval(e) for e in value.get("event") or () if isinstance(e, str)]
    bounds = as_object(value.get("repeat")).get("boundsPeriod")
    if isinstance(bounds, dict):
        spans.append(period(_text(bounds.get("start")), _text(bounds.get("end"))))
    intervals = [s for s in spans if s]
    if intervals:
        first, last = min(intervals, key=lambda s: s.low), max(intervals, key=lambda s: s.high)
        _span(Interval(first.low, min(last.high, FAR_FUTURE), first.low_day, last.high_day), pid, rows)


# numbers and quantities


def _number(value: Json, pid: int, rows: RowBuffer, code: str = "", system: str = "") -> None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _MAX_NUMBER:
        rows.quantity[pid, float(value), rows.rid, code, system] = None


def _quantity(value: Json, pid: int, rows: RowBuffer) -> None:
    if isinstance(value, dict):
        _number(value.get("value"), pid, rows, _text(value.get("code")), _text(value.get("system")))


def _money(value: Json, pid: int, rows: RowBuffer) -> None:
    if isinstance(value, dict):
        _number(value.get("value"), pid, rows, _text(value.get("currency")), "urn:iso:std:iso:4217")


def _range(value: Json, pid: int, rows: RowBuffer) -> None:
    if isinstance(value, dict):
        for end in ("low", "high"):
            _quantity(value.get(end), pid, rows)


# references and uris


def _reference(value: Json, pid: int, rows: RowBuffer) -> None:
    if (
        isinstance(value, dict)
        and isinstance(text := value.get("reference"), str)
        and (target := relative_reference(text))
    ):
        rows.reference[pid, target[1], target[0], rows.rid] = None


def _canonical(value: Json, pid: int, rows: RowBuffer) -> None:
    """Write a canonical URL as an id without a type."""
    if isinstance(value, str) and value:
        target = relative_reference(value)
        rows.reference[pid, target[1] if target else value, target[0] if target else "", rows.rid] = None


def _uri(value: Json, pid: int, rows: RowBuffer) -> None:
    if isinstance(value, str) and value:
        rows.uri[pid, value, rows.rid] = None


def _table(*groups: tuple[str, str, Writer]) -> Mapping[tuple[str, str], Writer]:
    return MappingProxyType({(kind, t): writer for kind, types, writer in groups for t in types.split()})


WRITERS: Mapping[tuple[str, str], Writer] = _table(
    ("token", "Coding", _coding),
    ("token", "CodeableConcept", _concept),
    ("token", "Identifier", _identifier),
    ("token", "ContactPoint", _contact_point),
    ("token", "boolean", _boolean),
    ("token", "code id string markdown uri url canonical oid uuid", _plain_token),
    ("string", "string markdown code uri url id", _string),
    ("string", "HumanName", _parts_of("family", "given", "prefix", "suffix", "text")),
    ("string", "Address", _parts_of("line", "city", "district", "state", "country", "postalCode", "text")),
    ("date", "date dateTime instant", _date),
    ("date", "Period", _period),
    ("date", "Timing", _timing),
    ("number", "decimal integer positiveInt unsignedInt", _number),
    ("number", "Range", _range),
    ("quantity", "Quantity Age Duration Count Distance SimpleQuantity", _quantity),
    ("quantity", "Money", _money),
    ("quantity", "Range", _range),
    ("reference", "Reference", _reference),
    ("reference", "canonical uri", _canonical),
    ("uri", "uri url canonical oid uuid", _uri),
)
"""Writer by parameter type and FHIR type; other combinations are not indexed."""


def truth(value: Any, pid: int, rows: RowBuffer) -> None:
    """Write true for any value except false (`Patient.deceased`)."""
    rows.token[pid, "true" if value is not False else "false", ""] = None
