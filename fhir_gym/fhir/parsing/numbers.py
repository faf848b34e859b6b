"""Numbers that keep the digits they were written with (FHIR: the precision of a decimal is part of its value)."""

from __future__ import annotations

from decimal import Decimal

__all__ = ["Number", "canonical", "integer"]

# Longer integers do not fit 64 bits, which is what a JSON writer takes as an integer.
_SAFE_DIGITS = 18


class Number(float):
    """A float that remembers its JSON text; `parsing.dumps` writes that text."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Number:
        """Read a JSON number."""
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __getnewargs__(self) -> tuple[str]:  # type: ignore[override]
        """Copy and pickle by the text."""
        return (self.text,)


def integer(text: str) -> int | Number:
    """A JSON integer; one too long for 64 bits becomes a `Number`."""
    return int(text) if len(text) <= _SAFE_DIGITS else Number(text)


def canonical(text: str) -> str:
    """How Java's `BigDecimal` writes a number: digits kept, exponents normalised, no negative zero."""
    if len(text) < 9 and text[-1] not in "0." and text.lstrip("-")[:1] not in (".", "+") and "e" not in text.lower():
        return text
    value = Decimal(text)
    return str(abs(value)) if not value else str(value)
