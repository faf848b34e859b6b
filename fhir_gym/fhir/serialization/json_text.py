"""Parse and write JSON text.

The standard library parses valid JSON. Only `parse_leniently` parses a body that the standard library refuses; it
accepts the same deviations as HAPI (single-quoted strings, numbers with a leading plus …), with Jackson's messages.
Positions in messages are lines and UTF-16 units, counted from 1.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate
from typing import Any, NoReturn

import orjson

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
        return parse_leniently(text)
    if text[end:].strip(" \t\r\n"):
        return parse_leniently(text)
    resource: Resource = value
    return resource


def _check_depth(body: bytes) -> None:
    """Raise for deep nesting before a recursive parser reads the body."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
    steps = memoryview(_STRING.sub(b"", body).translate(_STEPS, _DELETED)).cast("b")
    deepest = max(accumulate(steps), default=0)
    if deepest > MAX_DEPTH:
        raise ValueError(too_deep(deepest, MAX_DEPTH))


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


_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"[+-]?(0|[1-9][0-9]*)")
_WORD = re.compile(r"[\w$]*")
_CHUNK = {'"': re.compile(r'[^"\\\x00-\x1f]*'), "'": re.compile(r"[^'\\\x00-\x1f]*")}
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "/": "/", "'": "'"}
_LITERALS = {"true": True, "false": False, "null": None}
_VALUES = "(JSON String, Number, Array, Object or token 'null', 'true' or 'false')"
_COMMENT = (
    "maybe a (non-standard) comment? (not recognized as one since Feature 'ALLOW_COMMENTS' not enabled for parser)"
)
_MAX_WORD = 256


def too_deep(depth: int, limit: int) -> str:
    """Return the message for a body nested deeper than the limit."""
    return f"Document nesting depth ({depth}) exceeds the maximum allowed ({limit})"


def parse_leniently(text: str) -> Resource:
    """Parse an object; the text starts with the object's brace.

    Raises:
        ValueError: With Jackson's message and position.
    """
    return _Reader(text).read()


class _Reader:
    """A cursor in the text, with the containers that are open there."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        # `open`: the open containers, each with its start. `names`: for each open container, the name of its next
        # value.
        self.open: list[tuple[Any, int]] = []
        self.names: list[str] = []

    def read(self) -> Resource:
        root: Resource = {}
        self.at = 1
        self._enter(root, 0)
        while self.open:
            container, _ = self.open[-1]
            if self._closes():
                self._leave()
                continue
            if container and not self._separated(container):
                continue
            if isinstance(container, dict):
                self.names[-1] = self._name()
            self._value(container)
        self._end()
        return root

    # Structure

    def _enter(self, container: Any, start: int) -> None:
        self.open.append((container, start))
        self.names.append("")
        if len(self.open) > MAX_DEPTH:
            raise ValueError(too_deep(len(self.open), MAX_DEPTH))

    def _leave(self) -> None:
        container, start = self.open[-1]
        char, closing = self.text[self.at], "}" if isinstance(container, dict) else "]"
        self.at += 1
        if char != closing:
            opened = f"(for {_kind(container)} starting at {self._place(start)})"
            self._fail(f"Unexpected close marker '{char}': expected '{closing}' {opened}", self.at)
        self.open.pop()
        self.names.pop()

    def _closes(self) -> bool:
        char = self._peek()
        if not char:
            container, start = self.open[-1]
            marker = f"expected close marker for {_kind(container)} (start marker at {self._place(start)})"
            self._fail(f"Unexpected end-of-input: {marker}", self.at)
        return char in "}]"

    def _separated(self, container: Any) -> bool:
        if self.text[self.at] != ",":
            self._unexpected(f"was expecting comma to separate {_kind(container)} entries")
        self.at += 1
        if not self._peek():
            self._ends_between()
        return True

    def _name(self) -> str:
        quote = self.text[self.at]
        if quote not in "\"'":
            self._unexpected("was expecting double-quote to start field name")
        name = self._string(quote, " in field name")
        if not self._peek():
            self._ends_between()
        if self.text[self.at] != ":":
            self._unexpected("was expecting a colon to separate field name and value")
        self.at += 1
        if not self._peek():
            self._ends_between()
        return name

    def _end(self) -> None:
        """Raise for text after the root object."""
        char = self._peek()
        if not char:
            return
        start = self.at
        if char in "}]":
            kind = "Object" if char == "}" else "Array"
            self._fail(f"Unexpected close marker '{char}': no open {kind} to close", start + 1)
        holder: list[Any] = []
        token = {"{": "START_OBJECT", "[": "START_ARRAY"}.get(char) or self._token_name(holder)
        self._fail(
            f"Trailing token (of type {token}) found after value (bound as `com.fasterxml.jackson.databind.JsonNode`): "
            "not allowed as per `DeserializationFeature.FAIL_ON_TRAILING_TOKENS`",
            start,
        )

    def _token_name(self, holder: list[Any]) -> str:
        self._value(holder)
        value = holder[0]
        if value is None or isinstance(value, bool):
            return f"VALUE_{str(value).upper().replace('NONE', 'NULL')}"
        if isinstance(value, str):
            return "VALUE_STRING"
        return "VALUE_NUMBER_INT" if isinstance(value, int) else "VALUE_NUMBER_FLOAT"

    # Values

    def _value(self, container: Any) -> None:
        char = self.text[self.at]
        start = self.at
        value: Any
        if char in "{[":
            value = {} if char == "{" else []
            self.at += 1
            self._store(container, value)
            self._enter(value, start)
            return
        if char in "\"'":
            value = self._string(char, ": was expecting closing quote for a string value")
        elif char.isdigit() or char in "+-":
            value = self._number()
        else:
            value = self._word(char)
        self._store(container, value)

    def _store(self, container: Any, value: Any) -> None:
        if isinstance(container, dict):
            container[self.names[-1]] = value
        else:
            container.append(value)

    def _word(self, char: str) -> Any:
        start = self.at
        match = _WORD.match(self.text, start)
        word = match[0] if match else ""
        self.at = start + len(word)
        if word in _LITERALS:
            return _LITERALS[word]
        if word in ("NaN", "Infinity", "INF"):
            self._not_a_number(word)
        if not word or not (char.isalpha() or char in "_$"):
            self.at = start
            self._unexpected(f"expected a valid value {_VALUES}")
        shown = word if len(word) < _MAX_WORD else f"{word[:_MAX_WORD]}..."
        self._fail(f"Unrecognized token '{shown}': was expecting {_VALUES}", start + min(len(word), _MAX_WORD))

    def _not_a_number(self, word: str) -> NoReturn:
        self._fail(f"Non-standard token '{word}': enable `JsonReadFeature.ALLOW_NON_NUMERIC_NUMBERS` to allow", self.at)

    def _number(self) -> int | Number:
        start = self.at
        match = _NUMBER.match(self.text, start)
        if match is None:
            self.at += 1
            rest = _WORD.match(self.text, self.at)
            word = self.text[start] + (rest[0] if rest else "")
            if word[1:] in ("INF", "Infinity"):
                self.at = start + len(word)
                self._not_a_number(word)
            sign = "minus" if self.text[start] == "-" else "plus"
            self._bad_number(f"expected digit (0-9) to follow {sign} sign, for valid numeric value", start)
        self.at = match.end()
        if match[1] == "0" and self.text[self.at : self.at + 1].isdigit():
            self._fail("Invalid numeric value: Leading zeroes not allowed", self.at)
        whole = True
        if self._char() == ".":
            whole = False
            self._digits("Decimal point not followed by a digit", start)
        if self._char() in ("e", "E"):
            whole = False
            if self.text[self.at + 1 : self.at + 2] in ("+", "-"):
                self.at += 1
            self._digits("Exponent indicator not followed by a digit", start)
        text = self.text[start : self.at].removeprefix("+")
        return integer(text) if whole else Number(text)

    def _digits(self, complaint: str, number: int) -> None:
        self.at += 1
        start = self.at
        while self._char() and self._char() in "0123456789":
            self.at += 1
        if self.at == start:
            self._bad_number(complaint, number)

    def _bad_number(self, complaint: str, number: int) -> NoReturn:
        """Refuse a number; HAPI reports the place after its first character."""
        if self.at >= len(self.text):
            self._fail("Unexpected end-of-input in numeric value", self.at)
        self._fail(f"Unexpected character ({_described(self.text[self.at])}) in numeric value: {complaint}", number + 1)

    def _string(self, quote: str, place: str) -> str:
        parts: list[str] = []
        self.at += 1
        while True:
            match = _CHUNK[quote].match(self.text, self.at)
            if match is not None:
                parts.append(match[0])
                self.at = match.end()
            char = self._char()
            if not char:
                self._fail(f"Unexpected end-of-input{place}", self.at)
            self.at += 1
            if char == quote:
                # The two escaped halves of a surrogate pair become one character.
                return "".join(parts).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
            if char != "\\":
                what = "name" if "name" in place else "string value"
                escaped = f"has to be escaped using backslash to be included in {what}"
                position = self._place(self.at - 1, 2)  # a line break does not count as one
                raise ValueError(f"Illegal unquoted character ({_described(char)}): {escaped}\n at {position}")
            parts.append(self._escape())

    def _escape(self) -> str:
        char = self._char()
        if not char:
            self._fail("Unexpected end-of-input in character escape sequence", self.at)
        self.at += 1
        if char in _ESCAPES:
            return _ESCAPES[char]
        if char != "u":
            self._fail(f"Unrecognized character escape {_described(char)}", self.at)
        digits = self.text[self.at : self.at + 4]
        if not re.fullmatch(r"[0-9a-fA-F]{4}", digits):
            self.at += len(digits) - len(digits.lstrip("0123456789abcdefABCDEF"))
            if not self._char():
                self._fail("Unexpected end-of-input in character escape sequence", self.at)
            self._unexpected("expected a hex-digit for character escape sequence")
        self.at += 4
        return chr(int(digits, 16))

    # Position and errors

    def _char(self) -> str:
        return self.text[self.at : self.at + 1]

    def _peek(self) -> str:
        """Skip whitespace and return the next character; empty at the end of the text."""
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at
        char = self._char()
        if char and char < " ":
            self._fail(
                f"Illegal character ({_described(char)}): "
                "only regular white space (\\r, \\n, \\t) is allowed between tokens",
                self.at + 1,
            )
        return char

    def _ends_between(self) -> NoReturn:
        kind = _kind(self.open[-1][0])
        self._fail(f"Unexpected end-of-input within/between {kind} entries", self.at)

    def _unexpected(self, expectation: str) -> NoReturn:
        if self.text[self.at] == "/":
            expectation = _COMMENT
        self._fail(f"Unexpected character ({_described(self.text[self.at])}): {expectation}", self.at)

    def _fail(self, message: str, at: int) -> NoReturn:
        raise ValueError(f"{message}\n at {self._place(at)}")

    def _place(self, at: int, first: int = 1) -> str:
        before = self.text[:at].replace("\r\n", "\n").replace("\r", "\n")
        last = before[before.rfind("\n") + 1 :]
        column = len(last.encode("utf-16-le", "surrogatepass")) // 2 + first
        return f"[line: {before.count(chr(10)) + 1}, column: {column}]"


def _described(char: str) -> str:
    code = ord(char)
    if code < 32 or 127 <= code < 160:
        return f"(CTRL-CHAR, code {code})"
    return f"'{char}' (code {code})" if code < 256 else f"'{char}' (code {code} / 0x{code:x})"


def _kind(container: Any) -> str:
    return "Object" if isinstance(container, dict) else "Array"
