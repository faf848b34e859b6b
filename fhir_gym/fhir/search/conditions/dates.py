"""Date parameters with HAPI's comparisons.

All values of one parameter form one range. If every bound is a day, month or year, the search compares calendar
days as written; otherwise it compares instants. `ge`, `gt`, `le` and `lt` hold if either end of the indexed value
satisfies them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from fhir_gym.fhir.index import IndexField
from fhir_gym.fhir.index.values import Interval, interval, start_of_day
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.search.predicates import ORDERED, RANGE, Condition, RowCondition, Sql, any_of, marks
from fhir_gym.fhir.search.query import split, split_prefix

_DAY = 86_400_000
_LOWER, _UPPER = frozenset({"gt", "ge", "sa"}), frozenset({"lt", "le", "eb"})
_YEAR = re.compile(r"\d{4}", re.ASCII)
_ZONE = re.compile(r"Z|[+-]\d\d:\d\d", re.ASCII)
_SHORT = 40
"""Maximum length of the values in the cache."""
_SLACK = 2 * _DAY  # maximum distance between a calendar day as written and the same day in UTC


class DateBound(NamedTuple):
    """One value of a date parameter.

    `unit` is the value's precision in milliseconds (0 for a day, month or year); `length` is the length of the text of
    the date.
    """

    prefix: str
    span: Interval
    unit: int
    length: int

    @property
    def end(self) -> int:
        """The last millisecond."""
        return self.span.low + self.unit - 1 if self.unit else self.span.high


def _bad(text: str, reason: str = "") -> FhirError:
    code = 1883 if reason else 1882
    return FhirError(400, f'HAPI-{code}: Invalid date/time format: "{text}"{": " if reason else ""}{reason}')


def _expect(text: str, position: int, characters: str) -> None:
    if text[position] != characters:
        raise _bad(text, f"Expected character '{characters}' at index {position} but found {text[position]}")


def _parse(value: str) -> DateBound:
    return _parsed(value) if len(value) <= _SHORT else _parsed.__wrapped__(value)


@lru_cache(maxsize=4096)
def _parsed(value: str) -> DateBound:
    prefix, text = split_prefix(value)
    text = text.replace(" ", "+")  # an unescaped "+" of a time zone arrives as a space
    length = len(text)
    if not _YEAR.match(text):
        raise _bad(text)
    if length > 4:
        _expect(text, 4, "-")
    if length > 7:
        _expect(text, 7, "-")
    if length > 10:
        if length < 17 and text[10] == "T":
            return _minutes(prefix, text)
        _expect(text, 10, "T")
    return _minutes(prefix, text) if length > 10 else _bound(prefix, text, 0)


def _minutes(prefix: str, text: str) -> DateBound:
    time = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d)(:\d\d)?(\.\d+)?", text, re.ASCII)
    if not time:
        raise _bad(text)
    zone = text[time.end() :]
    if zone and not _ZONE.fullmatch(zone):
        if zone[0] in "Z+-":
            raise _bad(text, 'Timezone offset must be in the form "Z", "-HH:mm", or "+HH:mm"')
        if not time[2]:
            raise _bad(text, f"Expected character ':' at index 16 but found {zone[0]}")
        raise _bad(text, f"Expected character '.' at index 19 but found {zone[0]}") if not time[3] else _bad(text)
    hour, minute, second = int(text[11:13]), int(text[14:16]), int(time[2][1:]) if time[2] else 0
    if hour > 23 or minute > 59 or second > 60:
        raise _bad(text)
    return _bound(prefix, text, 1 if time[3] else 1000 if time[2] else 60_000)


def _bound(prefix: str, text: str, unit: int) -> DateBound:
    span = interval(text)
    if span is None:
        raise _bad(text)
    return DateBound(prefix, span, unit, min(len(text), 10))


def parse_bounds(values: list[str]) -> list[DateBound]:
    """Parse the values of one date parameter.

    Raises:
        FhirError: A value is invalid, or the values do not form a range.
    """
    for value in values:
        if len([piece for piece in split(value, ",") if piece]) > 1:
            raise FhirError(400, "HAPI-1930: DateRange parameter does not support OR queries")
    bounds = [_parse(value.strip(",")) for value in values]
    if any(bound.prefix == "ap" for bound in bounds):
        raise FhirError(400, "HAPI-1925: Unknown comparator: APPROXIMATE")
    check_range([bound.prefix for bound in bounds])
    return bounds


def check_range(prefixes: list[str]) -> None:
    """Check that values with these prefixes form a range: one value, or a lower and an upper bound.

    Raises:
        FhirError: They do not form a range.
    """
    lower = upper = False
    same = "Can not have multiple date range parameters for the same param"
    for prefix in prefixes:
        plain = prefix in ("", "eq", "ne")
        if plain and (lower or upper):
            raise FhirError(400, f"HAPI-1922: {same} without a qualifier")
        if prefix in _LOWER and lower:
            raise FhirError(400, f"HAPI-1923: {same} that specify a lower bound")
        if prefix in _UPPER and upper:
            raise FhirError(400, f"HAPI-1924: {same} that specify an upper bound")
        lower = lower or plain or prefix in _LOWER
        upper = upper or plain or prefix in _UPPER


def date_condition(field: IndexField, values: list[str]) -> RowCondition:
    """Return the condition on date rows for all values of one parameter."""
    bounds = parse_bounds(values)
    by_day = all(not bound.unit for bound in bounds)
    parts, arguments = [f"@.pid {marks(field.pids)}"], list(field.pids)
    for bound in bounds:
        text, parameters = (_by_day if by_day else _by_instant)(bound)
        parts.append(text)
        arguments += parameters
    one_sided = len(bounds) == 1 and bounds[0].prefix in ("gt", "ge", "eb")
    low, high = ("@.low_day", "@.high_day") if by_day else ("@.low", "@.high")
    order = ((high, ()),) if one_sided else ((low, ()), (high, ()))
    return RowCondition(
        "date",
        " AND ".join(parts),
        tuple(arguments),
        rank=40,
        order=order,
        precedence=ORDERED if one_sided else RANGE,
        pids=field.pids,
        unique=field.single,
        hint=_hint(bounds, by_day=by_day),
        in_compartment=True,
    )


def dates_of_target(field: IndexField, values: list[str]) -> Condition:
    """Return the condition of alternative dates in a chain or in `_has`, where the values do not form a range."""
    if any(split_prefix(value)[0] == "ap" for value in values):
        raise FhirError(400, "HAPI-1921: Invalid comparator for date parameter: APPROXIMATE")
    return any_of([date_condition(field, [value]) for value in values])


def _hint(bounds: list[DateBound], *, by_day: bool) -> tuple[Sql, Sql]:
    """Return a sufficient and a necessary condition for a match, both on the start of the indexed instant or day."""
    slack = _SLACK if by_day else _DAY
    sure: list[str] = []
    sure_values: list[int] = []
    possible: list[str] = []
    possible_values: list[int] = []
    for bound in bounds:
        if bound.prefix == "ne":
            sure.append("0")
            continue
        if bound.prefix not in _UPPER:
            possible.append("@.at >= ?")
            possible_values.append(bound.span.low - slack)
            sure.append("@.at >= ?" if bound.prefix in _LOWER else "0")
        if bound.prefix not in _LOWER:
            possible.append("@.at <= ?")
            possible_values.append(bound.end + slack)
            sure.append("@.at <= ?" if bound.prefix in ("le", "lt") else "0")
        if sure[-1] != "0":
            sure_values.append(bound.end + slack if bound.prefix in _LOWER else bound.span.low - slack)
    return (" AND ".join(sure), tuple(sure_values)), (" AND ".join(possible) or "1", tuple(possible_values))


def _by_day(bound: DateBound) -> tuple[str, list[int]]:
    first, last = bound.span.low_day, bound.span.high_day
    start, end = bound.span.low, bound.span.high
    match bound.prefix:
        case "" | "eq":
            text = "@.low >= ? AND @.low <= ? AND @.low_day >= ? AND @.high_day <= ?"
            return text, [start - _SLACK, end + _SLACK, first, last]
        case "ne":
            return "(@.low_day < ? OR @.high_day > ?)", [first, last]
        case "ge":
            return "(@.low_day >= ? OR @.high_day >= ?)", [last, last]
        case "gt":
            return "(@.low_day >= ? OR @.high_day >= ?)", [last + 1, last + 1]
        case "sa":
            return "@.low >= ? AND @.low_day >= ?", [start - _SLACK, last + 1]
        case "le":
            return "(@.low_day <= ? OR @.high_day <= ?)", [first, first]
        case "lt":
            return "(@.low_day <= ? OR @.high_day <= ?)", [first - 1, first - 1]
        case _:
            return "@.high_day <= ?", [first - 1]


def _by_instant(bound: DateBound) -> tuple[str, list[int]]:
    start, end = bound.span.low, bound.end
    unit = bound.unit or _DAY
    last = start if bound.unit or bound.length == 10 else start_of_day(*_last_day(bound.span))
    upto = start + unit - 1
    match bound.prefix:
        case "" | "eq":
            return "@.low >= ? AND @.low <= ? AND @.high <= ?", [start, end, end]
        case "ne":
            return "(@.low < ? OR @.high > ?)", [start, end]
        case "ge":
            return "(@.low >= ? OR @.high >= ?)", [last, last]
        case "gt":
            return "(@.low >= ? OR @.high >= ?)", [last + unit, last + unit]
        case "sa":
            return "@.low >= ?", [last + unit]
        case "le":
            return "(@.low <= ? OR @.high <= ?)", [upto, upto]
        case "lt":
            return "(@.low <= ? OR @.high <= ?)", [start - 1, start - 1]
        case _:
            return "@.high <= ?", [start - 1]


def _last_day(span: Interval) -> tuple[int, int, int]:
    return span.high_day // 10000, span.high_day // 100 % 100, span.high_day % 100


def updated_condition(resource_type: str, values: list[str]) -> RowCondition:
    """Return the condition of `_lastUpdated`; as in HAPI, `gt` with a day includes that day."""
    parts, arguments = ["@.type = ?", "@.deleted = 0"], [resource_type]
    parameters: list[int] = []
    for bound in parse_bounds(values):
        start, end = bound.span.low, bound.end
        match bound.prefix:
            case "" | "eq":
                parts.append("@.updated >= ? AND @.updated <= ?")
                parameters += [start, end]
            case "ne":
                parts.append("(@.updated < ? OR @.updated > ?)")
                parameters += [start, end]
            case "ge":
                parts.append("@.updated >= ?")
                parameters.append(start)
            case "gt" | "sa":
                parts.append("@.updated > ?")
                parameters.append(start - 1 if not bound.unit and bound.length == 10 else end)
            case "le":
                parts.append("@.updated <= ?")
                parameters.append(end)
            case _:
                parts.append("@.updated < ?")
                parameters.append(start)
    return RowCondition("resource", " AND ".join(parts), (*arguments, *parameters), rank=70)
