"""Check primitive values by type, with HAPI's rules and messages.

A check takes the element's JSON name and a JSON scalar, and returns the value to store. For a blank value, which is
dropped, the check returns None. A `Number` keeps its digits, because the precision of a decimal is part of its value.
"""

from __future__ import annotations

import re
from calendar import isleap
from collections.abc import Callable
from decimal import Decimal, InvalidOperation

from fhir_gym.fhir import definitions
from fhir_gym.fhir.outcome import FhirError

# The range of integers that orjson can write.
_INT64 = range(-(2**63), 2**63)
_INT64_TEXT = 20


class Number(float):
    """A float that keeps its JSON text; `serialization.dumps` writes that text."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Number:
        """Parse a JSON number."""
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __getnewargs__(self) -> tuple[str]:  # type: ignore[override]
        return (self.text,)


def integer(text: str) -> int | Number:
    """Parse a JSON integer; an integer that exceeds 64 bits becomes a `Number`."""
    if len(text) > _INT64_TEXT:
        return Number(text)
    value = int(text)
    return value if value in _INT64 else Number(text)


def canonical(text: str) -> str:
    """Format a number as Java's `BigDecimal` does: same digits, normalised exponent, no negative zero."""
    if len(text) < 9 and text[-1] not in "0." and text.lstrip("-")[:1] not in (".", "+") and "e" not in text.lower():
        return text
    value = Decimal(text)
    return str(abs(value)) if not value else str(value)


class ParseError(ValueError):
    """A body or resource that HAPI's parser refuses, with HAPI's message but without its prefix."""


def invalid_value(element: str, value: str, reason: str) -> ParseError:
    """Return the error for an invalid primitive value."""
    return ParseError(f'HAPI-1821: [element="{element}"] Invalid attribute value "{value}": {reason}')


def refusal(error: ParseError) -> FhirError:
    """Return the FHIR error for a request body that cannot be parsed."""
    return FhirError(400, f"HAPI-0450: Failed to parse request body as JSON resource. Error was: {error}")


Scalar = str | int | float | bool
Check = Callable[[str, Scalar], Scalar | None]

# Java's whitespace, which does not include the no-break space.
WHITESPACE = "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2008\u2009\u200a" + (
    "\u2028\u2029\u205f\u3000"
)
_INTEGER = re.compile(r"[+-]?[0-9]+")
_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1
_LONG = 2**63
_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def is_blank(text: str) -> bool:
    """Return whether a text is empty or has only Java's whitespace."""
    return not text.strip(WHITESPACE)


def text_of(value: Scalar) -> str:
    """Convert a JSON scalar to text as HAPI does."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Number):
        return canonical(value.text)
    return canonical(repr(value))


def check_text(name: str, value: Scalar) -> Scalar | None:
    """Check strings, URIs, times, and codes without an enumeration: any scalar becomes text."""
    text = value if type(value) is str else text_of(value)
    return text if text.strip(WHITESPACE) else None


def check_boolean(name: str, value: Scalar) -> Scalar | None:
    """Check booleans, which may be given as text."""
    if value is True or value is False:
        return value
    text = text_of(value)
    trimmed = text.strip(WHITESPACE)
    if trimmed in ("true", "false"):
        return trimmed == "true"
    if not trimmed:
        return None
    raise invalid_value(name, text, f"Invalid boolean string: '{text}'")


def check_integer(name: str, value: Scalar) -> Scalar | None:
    """Check 32-bit integers, which may be given as text; HAPI does not check the sign of positiveInt."""
    text = text_of(value)
    if _INTEGER.fullmatch(text) and len(text) < 20 and _INT_MIN <= int(text) <= _INT_MAX:
        return int(text)
    if is_blank(text):
        return None
    raise invalid_value(name, text, f'java.lang.NumberFormatException: For input string: "{text}"')


def check_decimal(name: str, value: Scalar) -> Scalar | None:
    """Check decimals, which may be given as text; they keep their digits."""
    if type(value) is int and -_LONG < value < _LONG:
        return value
    text = text_of(value)
    try:
        number = Decimal(text) if text.isascii() and "_" not in text else None
    except InvalidOperation:
        number = None
    if number is not None and number.is_finite() and text == text.strip():
        written = canonical(text)
        return int(written) if _INTEGER.fullmatch(written) and len(written) < 19 else Number(written)
    if is_blank(text):
        return None
    raise invalid_value(name, text, _decimal_error(text))


def _decimal_error(text: str) -> str:
    """Return the reason why Java's `BigDecimal` refuses a text."""
    dot = False
    for char in text.removeprefix("-") if text.startswith("-") else text.removeprefix("+"):
        if char == "." and dot:
            return "Character array contains more than one decimal point."
        if char in "eE":
            return "No digits found." if char == text[0] else "No exponent digits"
        if char != "." and not char.isdigit():
            return (
                f'Character {char} is neither a decimal digit number, decimal point, nor "e" notation exponential mark.'
            )
        dot = dot or char == "."
    return "No digits found."


# dates

_DATE = re.compile(
    r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:T(\d\d):(\d\d)(?::(\d\d)(?:\.\d+)?)?(Z|[+-](\d\d):(\d\d))?)?)?)?", re.ASCII
)
_ZONE_FORM = 'Timezone offset must be in the form "Z", "-HH:mm", or "+HH:mm"'


def check_date(name: str, value: Scalar) -> Scalar | None:
    """Check dates, dateTimes and instants of any precision; they are stored as written."""
    text = text_of(value)
    trimmed = text.strip(" ") if text[:1] == " " or text[-1:] == " " else text
    match = _DATE.fullmatch(trimmed)
    if match is not None and _is_possible(match.groups()):
        return text
    if is_blank(text):
        return None
    reason = f'Invalid date/time format: "{trimmed}"'
    detail = _date_detail(trimmed)
    raise invalid_value(name, text, f"{reason}: {detail}" if detail else reason)


def _is_possible(parts: tuple[str | None, ...]) -> bool:
    year, month, day, hour, minute, second, zone, zone_hour, zone_minute = parts
    if month is not None and not 1 <= int(month) <= 12:
        return False
    if month is not None and day is not None:
        last = _DAYS[int(month) - 1] + (month == "02" and isleap(int(year or 0)))
        if not 1 <= int(day) <= last:
            return False
    if hour is None or minute is None:
        return True
    if second is None and zone is None:
        return False
    in_range = int(hour) <= 23 and int(minute) <= 59 and int(second or 0) <= 60
    return in_range and int(zone_hour or 0) <= 23 and int(zone_minute or 0) <= 59


def _date_detail(text: str) -> str | None:
    """Return the detail that HAPI adds to its message for some malformed dates; None for other dates."""
    for length, head, index in ((7, r"\d{4}", 4), (10, r"\d{4}-\d\d", 7)):
        if len(text) <= index or not re.match(head, text, re.ASCII):
            return None
        if text[index] != "-":
            return f"Expected character '-' at index {index} but found {text[index]}"
        if len(text) < length:
            return None
    if not _possible_prefix(text[:7]) or (len(text) > 7 and not _possible_prefix(text[:10])) or len(text) < 17:
        return None
    if text[10] != "T":
        return f"Expected character 'T' at index 10 but found {text[10]}"
    return _time_detail(text)


def _possible_prefix(text: str) -> bool:
    match = _DATE.fullmatch(text)
    return match is not None and _is_possible(match.groups())


def _time_detail(text: str) -> str | None:
    marks = [i for i in (text.find(mark, 16) for mark in "+-Z") if i >= 0]
    if len(marks) > 1:
        return None
    end = marks[0] if marks else len(text)
    zone = text[end:]
    if zone and zone[0] != "Z" and (len(zone) != 6 or zone[3] != ":"):
        return _ZONE_FORM
    if text[13] != ":":
        return f"Expected character ':' at index 13 but found {text[13]}"
    if not re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", text[11:16], re.ASCII):
        return None
    if end > 16 and len(text) >= 19 and text[16] != ":":
        return f"Expected character ':' at index 16 but found {text[16]}"
    if end > 19 and re.fullmatch(r"[0-5]\d|60", text[17:19], re.ASCII) and text[19] != ".":
        return f"Expected character '.' at index 19 but found {text[19]}"
    return None


# elements


def _check_code(binding: str, enum: str) -> Check:
    allowed = definitions.codes(binding)

    def check(name: str, value: Scalar) -> Scalar | None:
        text = value if type(value) is str else text_of(value)
        if text in allowed:
            return text
        if is_blank(text):
            return None
        raise invalid_value(name, text, f"Unknown {enum} code '{text}'")

    return check


_BY_TYPE: dict[str, Check] = {
    "boolean": check_boolean,
    "integer": check_integer,
    "positiveInt": check_integer,
    "unsignedInt": check_integer,
    "decimal": check_decimal,
    "date": check_date,
    "dateTime": check_date,
    "instant": check_date,
    "xhtml": lambda name, value: check_div(text_of(value)),
}


def check_for(element: definitions.Element) -> Check:
    """Return the check of a primitive element."""
    if element.binding is not None and element.type == "code":
        enum = definitions.enum_name(element.binding)
        if enum is not None:
            return _check_code(element.binding, enum)
    return _BY_TYPE.get(element.type, check_text)


_NAMESPACE = ' xmlns="http://www.w3.org/1999/xhtml"'
_NAME = r"[A-Za-z_][\w.:-]*"
_ATTRIBUTES = rf"(?:\s+{_NAME}\s*=\s*(?:\"[^\"<]*\"|'[^'<]*'))*"
_TOKEN = re.compile(
    rf"<!--.*?-->|<!\[CDATA\[.*?\]\]>|<\?.*?\?>|</(?P<close>{_NAME})\s*>|<(?P<open>{_NAME}){_ATTRIBUTES}\s*(?P<empty>/?)>",
    re.DOTALL,
)
_MAX_DEPTH = 500


def check_div(text: str) -> str | None:
    """Return the div to store; None if the div is empty.

    Raises:
        ParseError: The text is not well-formed XHTML with a div as its root.
    """
    text = text.strip()
    if not text:
        return None
    if not text.startswith("<"):
        text = f"<div>{text}</div>"
    opening = re.match(rf"<div(?=[\s/>])({_ATTRIBUTES})", text)
    if opening is not None and " xmlns=" not in opening.group(1):
        text = f"<div{_NAMESPACE}{text[4:]}"
    root = _well_formed(text)
    if root != "div":
        raise ParseError(f"Unable to Parse HTML - starts with '{root}' not 'div'")
    return None if re.fullmatch(r"<div[^>]*(?:/>|>\s*</div>)", text) else text


def _well_formed(text: str) -> str:
    """Return the name of the root element, or raise if the text is not well-formed."""
    open_tags: list[str] = []
    root = ""
    at = 0
    while (start := text.find("<", at)) >= 0:
        match = _TOKEN.match(text, start)
        if match is None:
            raise _malformed(text, "Unexpected character in markup", start)
        if root and not open_tags and (match["open"] or match["close"]):
            raise _malformed(text, "Illegal to have multiple roots (start tag in epilog?).", start)
        if match["close"]:
            if not open_tags or open_tags[-1] != match["close"]:
                expected = f"expected </{open_tags[-1]}>." if open_tags else "no open start element."
                raise _malformed(text, f"Unexpected close tag </{match['close']}>; {expected}", match.end("close") - 1)
            open_tags.pop()
        elif match["open"]:
            root = root or match["open"]
            if not match["empty"]:
                open_tags.append(match["open"])
            if len(open_tags) > _MAX_DEPTH:
                raise _malformed(text, f"Maximum Element Depth limit ({_MAX_DEPTH}) Exceeded", start)
        at = match.end()
    if open_tags:
        message = f"Unexpected EOF; was expecting a close tag for element <{open_tags[-1]}>"
        raise _malformed(text, message, len(text))
    return root


def _malformed(text: str, message: str, at: int) -> ParseError:
    row = text.count("\n", 0, at) + 1
    column = at - (text.rfind("\n", 0, at) + 1) + 1
    return ParseError(
        f'HAPI-1755: String does not appear to be valid XML/XHTML (error is "{message}\n'
        f' at [row,col {{unknown-source}}]: [{row},{column}]"): {text}'
    )
