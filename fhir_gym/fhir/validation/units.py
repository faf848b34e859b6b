"""Codes of units: the grammar of UCUM over its table of units."""

from __future__ import annotations

import re
from functools import cache, lru_cache

from fhir_gym.fhir.definitions import unit_codes

_ANNOTATION = re.compile(r"\{[ -z|~]*\}")
_FACTOR = re.compile(r"[0-9]+")
_EXPONENT = re.compile(r"[+-]?[0-9]+")
_LONGEST = 200


@lru_cache(maxsize=4_096)
def is_unit(code: str) -> bool:
    """Return whether a code is one of UCUM's (case-sensitive), such as ``mg/dL``, ``10*3/uL`` or ``{beats}/min``."""
    if not code or len(code) > _LONGEST:
        return False
    try:
        return _term(code, 1 if code[0] == "/" else 0) == len(code)
    except ValueError:
        return False


def _term(code: str, at: int) -> int:
    """Return the end of components that are multiplied or divided."""
    at = _component(code, at)
    while code[at : at + 1] in (".", "/"):
        at = _component(code, at + 1)
    return at


def _component(code: str, at: int) -> int:
    """Return the end of a unit, a number, a term in parentheses, or an annotation.

    Raises:
        ValueError: There is none.
    """
    start = at
    if code[at : at + 1] == "(":
        at = _term(code, at + 1 + (code[at + 1 : at + 2] == "/"))
        if code[at : at + 1] != ")":
            raise ValueError(code)
        at += 1
    elif found := _simple_unit().match(code, at):
        at = found.end()
        exponent = _EXPONENT.match(code, at)
        at = exponent.end() if exponent else at
    elif found := _FACTOR.match(code, at):
        at = found.end()
    if annotation := _ANNOTATION.match(code, at):
        at = annotation.end()
    if at == start:
        raise ValueError(code)
    return at


@cache
def _simple_unit() -> re.Pattern[str]:
    """Return the pattern of a unit; one without a prefix goes before, as in ``min`` or ``cd``."""
    prefixes, metric, other = unit_codes()
    names = _either((*metric, *other))
    end = r"(?=[+\-0-9./){]|$)"
    return re.compile(rf"(?:{names}|(?:{_either(prefixes)})(?:{_either(metric)})){end}")


def _either(names: tuple[str, ...]) -> str:
    return "|".join(re.escape(name) for name in sorted(names, key=lambda name: (-len(name), name)))
