"""Numbers that keep their digits as written (in FHIR, the precision of a decimal is part of its value)."""

from __future__ import annotations

from decimal import Decimal

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
