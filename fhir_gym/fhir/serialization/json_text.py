"""Parse and write JSON text.

The standard library parses valid JSON. Only `lenient_json` parses a body that the standard library refuses; it accepts
the same deviations from JSON as HAPI, with HAPI's messages.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate
from typing import Any, NoReturn

import orjson

from fhir_gym.fhir.serialization import lenient_json
from fhir_gym.fhir.serialization.primitives import WHITESPACE, Number, ParseError, integer
from fhir_gym.types import Json, Resource

MAX_DEPTH = 200
"""Maximum nesting of objects and arrays; orjson writes at most 254 levels."""

_MAX_ESCAPES = 100_000
"""Maximum number of escapes in invalid JSON, because the lenient parser is slow."""

_CONTENT = "HAPI-1861: Failed to parse JSON encoded FHIR content: "
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BRACKETS = b"{}[]"
_DELETED = bytes(set(range(256)) - set(_BRACKETS))
_STEPS = bytes.maketrans(_BRACKETS, bytes([1, 255, 1, 255]))
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_float=Number, parse_int=integer, parse_constant=_no_constant)


def loads(body: bytes) -> Json:
    """Parse strict JSON; decimals keep their text in `dumps`.

    Raises:
        ValueError: The text is not JSON, or is nested deeper than `MAX_DEPTH`.
    """
    text = body.decode("utf-8").strip(" \t\r\n")
    _check_depth(body)
    value, end = _DECODER.raw_decode(text)
    if end != len(text):
        raise ValueError(f"something follows the JSON value at character {end}")
    return _without_surrogates(value) if _SURROGATE.search(text) else value


def read_object(body: bytes) -> Resource:
    """Parse the JSON object in a request body with HAPI's leniency.

    Raises:
        ParseError: HAPI would refuse the text; the error has HAPI's message.
    """
    text = body.decode("utf-8", "replace").lstrip(WHITESPACE)
    if not text:
        raise ParseError(f"{_CONTENT}HAPI-1857: Did not find any content to parse")
    if text[0] != "{":
        raise ParseError(
            f"{_CONTENT}HAPI-1859: Content does not appear to be FHIR JSON, "
            f"first non-whitespace character was: '{text[0]}' (must be '{{')"
        )
    try:
        _check_depth(body)
        value = _read(text)
    except ValueError as error:
        raise ParseError(f"{_CONTENT}{error}") from None
    return _without_surrogates(value) if _SURROGATE.search(text) else value


def _read(text: str) -> Resource:
    try:
        value, end = _DECODER.raw_decode(text)
    except ValueError as error:
        if text.count("\\") > _MAX_ESCAPES:
            raise ValueError(f"{error}; with more than {_MAX_ESCAPES} escapes it is not looked at further") from None
        return lenient_json.parse(text, MAX_DEPTH)
    if text[end:].strip(" \t\r\n"):
        return lenient_json.parse(text, MAX_DEPTH)
    resource: Resource = value
    return resource


def _check_depth(body: bytes) -> None:
    """Raise for deep nesting before a recursive parser reads the body."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
    steps = memoryview(_STRING.sub(b"", body).translate(_STEPS, _DELETED)).cast("b")
    deepest = max(accumulate(steps), default=0)
    if deepest > MAX_DEPTH:
        raise ValueError(lenient_json.too_deep(deepest, MAX_DEPTH))


def _without_surrogates(value: Any) -> Any:
    """Replace lone surrogates, which UTF-8 cannot encode, with question marks."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_without_surrogates(k): _without_surrogates(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    return value


def _written(value: object) -> orjson.Fragment:
    if isinstance(value, Number):
        return orjson.Fragment(value.text)
    raise TypeError(f"{type(value).__name__} is not JSON")


def dumps(resource: Json) -> bytes:
    """Write compact JSON; numbers keep their digits."""
    return orjson.dumps(resource, default=_written)


# pretty printing

_TEXT = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_MEMBER = re.compile(rb"(%b:)?(%b|[^][{},:\"]+|\{\}|\[\])?([][{},]?)" % (_TEXT, _TEXT), re.DOTALL)
_EMPTY = {b"{}": b"{ }", b"[]": b"[ ]"}


def pretty(body: bytes) -> bytes:
    """Indent compact JSON by two spaces. As in HAPI, the first item of an array follows the bracket on its line."""
    line = b"\n"
    comma = b", "
    outside: list[bytes] = []  # the separators of the objects and arrays around the current one
    parts: list[bytes] = []
    for name, value, mark in _MEMBER.findall(body):
        if name:
            parts += name, b" "
        parts.append(_EMPTY.get(value, value))
        if mark == b",":
            parts.append(comma)
        elif mark == b"{":
            outside.append(comma)
            line += b"  "
            comma = b"," + line
            parts += b"{", line
        elif mark == b"[":
            outside.append(comma)
            comma = b", "
            parts.append(b"[ ")
        elif mark:
            if mark == b"}":
                line = line[:-2]
                parts.append(line)
            parts.append(b"}" if mark == b"}" else b" ]")
            comma = outside.pop()
    return b"".join(parts)
