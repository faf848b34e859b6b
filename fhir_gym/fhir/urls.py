"""Parse and write URLs and query strings as HAPI does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from operator import itemgetter
from urllib.parse import quote, unquote_to_bytes, urlencode

from fhir_gym.fhir.limits import Limits
from fhir_gym.fhir.outcome import FhirError

Pairs = list[tuple[str, str]]
"""Decoded parameters, in the order of the query string."""

_PLAIN = re.compile(r"[A-Za-z0-9\-_.*]*")
_HEX = frozenset("0123456789abcdefABCDEF")


def decode(text: str, *, plus: bool = False) -> str:
    """Decode percent-encoding; bytes that are not UTF-8 become U+FFFD.

    Args:
        text: A path segment, or the name or value of a query parameter.
        plus: Whether `+` means a space, as in queries.

    Raises:
        FhirError: A `%` is not followed by two hex digits.
    """
    if plus:
        text = text.replace("+", " ")
    if "%" not in text:
        return text
    for piece in text.split("%")[1:]:
        if len(piece) < 2 or piece[0] not in _HEX or piece[1] not in _HEX:
            raise FhirError(400, f"Incomplete or invalid percent-encoding: %{piece[:2]}")
    return unquote_to_bytes(text).decode("utf-8", "replace")


def decode_query(query: str) -> Pairs:
    """Decode the parameters of a query string or form body; parameters without a name are dropped."""
    if not query:
        return []
    pairs = []
    plain = "%" not in query and "+" not in query
    for piece in query.split("&"):
        name, _, value = piece.partition("=")
        if name:
            pairs.append((name, value) if plain else (decode(name, plus=True), decode(value, plus=True)))
    return pairs


def decode_form(content_type: str, body: bytes) -> Pairs:
    """Decode the parameters in the body of a POST; there are none if the body is no form."""
    if content_type.partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        return []
    return decode_query(body.decode("utf-8", "replace"))


def element_names(limits: Limits, values: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct names in all `_elements` parameters.

    Raises:
        FhirError: There are too many names.
    """
    names = tuple(dict.fromkeys(piece for value in values for piece in value.split(",")))
    if len(names) > limits.elements:
        raise FhirError(400, f"_elements with more than {limits.elements} names is not supported by this server")
    return names


def encode(text: str) -> str:
    """Percent-encode a name or value as HAPI does in links: all characters except letters, digits and ``-_.*``."""
    if _PLAIN.fullmatch(text):
        return text
    return quote(text, safe="*").replace("~", "%7E")


def encode_pairs(pairs: Iterable[tuple[str, str]]) -> str:
    """Return a query string, sorted by name, as in a self link; parameters with the same name keep their order."""
    return "&".join([f"{encode(name)}={encode(value)}" for name, value in sorted(pairs, key=itemgetter(0))])


def search_query(params: Mapping[str, object], count: int) -> str:
    """Return the query string of a search from Python arguments.

    An underscore inside a name stands for a hyphen (``address_city="Boston"``), and a list repeats the parameter.
    """
    pairs = [
        (name[0] + name[1:].replace("_", "-"), str(value))
        for name, values in params.items()
        for value in (values if isinstance(values, (list, tuple)) else [values])
    ]
    return urlencode([*pairs, ("_count", count)])
