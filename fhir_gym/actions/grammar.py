"""The action grammar: it parses texts and tool calls, and writes the help for prompts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fhir_gym.actions import tools
from fhir_gym.actions.model import (
    CONTROL,
    EXAMPLES,
    KINDS,
    Action,
    Finish,
    Invalid,
    Kind,
    json_problem,
    parse_json,
    url_problem,
)
from fhir_gym.types import Json

MAX_ACTION_LENGTH = 262_144
"""Maximum length of an action in characters."""

_BY_NAME: Mapping[str, Kind] = {kind: kind for kind in KINDS}
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
HEADERS = ("Accept", "Content-Type", "If-Match", "If-Modified-Since", "If-None-Exist", "If-None-Match", "Prefer")
"""The request headers that an action may have."""
_MAX_HEADERS = 32
_HEADER_NAMES = {name.lower(): name for name in HEADERS}

_FENCE_LENGTH = 3
"""Minimum number of backticks or tildes in a code fence."""
# All patterns match in linear time.
_VERB = re.compile(r"[A-Za-z]+")
_HEADER_LINE = re.compile(r"\A([A-Za-z][A-Za-z-]*):[ \t]*(.*)\Z")
_INLINE_BODY = re.compile(r"(?<=[ \t])[{\[]")
_HTTP_VERSION = re.compile(r"(?<=[ \t])HTTP/[0-9](?:\.[0-9])?\Z")


class Grammar:
    """The action grammar: ``VERB url``, optional header lines and a JSON body, or ``FINISH([...])``."""

    def help(self) -> str:
        """Return the action format for a prompt."""
        return (
            "Reply with exactly one action and nothing else:\n"
            "GET url            read or search\n"
            "POST url           create a resource; its JSON follows on the next lines\n"
            "POST /             send a batch or transaction: a Bundle with several requests follows\n"
            "PUT url            replace a resource; its complete JSON follows on the next lines\n"
            "PATCH url          change a resource; a JSON Patch list follows on the next lines\n"
            "DELETE url         delete a resource\n"
            "FINISH([...])      end the task; your answer is a JSON list\n"
            "A url is relative to the FHIR base URL or absolute. References in a body are relative, such as "
            "Patient/12, or in a transaction the urn:uuid of another entry; do not copy the server's fullUrl. "
            "Examples:\n"
            f"{self.example('GET')}\n{self.example('POST')}\n{self.example('FINISH')}"
        )

    def example(self, kind: Kind = "GET") -> str:
        """Return a valid action of a kind as text."""
        return EXAMPLES[kind]

    def examples(self) -> tuple[str, ...]:
        """Return a valid action of every kind."""
        return tuple(EXAMPLES.values())

    def parse(self, text: str) -> Action | Invalid:
        """Parse one action.

        Unambiguous deviations are accepted: code fences, surrounding blank lines, CRLF, a lower-case verb, a body on
        the same line as the verb or in a code fence of its own, spaces in a query, and a trailing ``HTTP/1.1``. An
        action with text around it, or with a second action after it, is invalid.
        """
        if len(text) > MAX_ACTION_LENGTH:
            return Invalid(f"it is longer than {MAX_ACTION_LENGTH:,} characters", EXAMPLES["GET"])
        try:
            text.encode()
        except UnicodeEncodeError:
            return Invalid("it contains invalid Unicode characters (lone surrogates)", EXAMPLES["GET"])
        text = _unwrap(text)
        verb = _VERB.match(text)
        kind = _BY_NAME.get(verb.group().upper()) if verb else None
        if verb is None or kind is None:
            start = text.split("\n", 1)[0][:40]
            kinds = ", ".join(KINDS)
            reason = f"it must start with one of {kinds}, not with {start!r}" if text else "it is empty"
            return Invalid(reason, EXAMPLES["GET"])
        rest = text[verb.end() :]
        return _parse_finish(rest) if kind == "FINISH" else _parse_request(kind, rest)

    def tools(self) -> list[dict[str, Any]]:
        """Return the OpenAI function schemas of the five FHIR tools and of ``finish``."""
        return tools.schemas()

    @property
    def tool_names(self) -> tuple[str, ...]:
        """Names of the five FHIR tools and of ``finish``."""
        return tools.NAMES

    def from_tool_call(
        self, name: str, arguments: Mapping[str, Any] | str, handled: Mapping[str, Json] = MappingProxyType({})
    ) -> Action | Invalid:
        """Return the action of a tool call.

        Args:
            name: Name of the tool.
            arguments: Arguments as an object or as JSON text.
            handled: Further arguments of the tool, such as the id of a session, which the caller has taken out of
                `arguments`. Explanations of an invalid call name them.
        """
        action = tools.to_action(name, arguments, handled)
        if isinstance(action, Invalid):
            return action
        problem = self.parse(action.text())  # a tool call has the same limits as a text
        return Invalid(problem.reason, tools.example(name, handled)) if isinstance(problem, Invalid) else action

    def to_tool_call(self, action: Action) -> tuple[str, dict[str, Any]] | None:
        """Return the tool name and arguments for an action; None if no tool fits (PATCH, Bundles, operations)."""
        return tools.from_action(action)


GRAMMAR = Grammar()
"""The grammar of all environments."""


def parse(text: str) -> Action | Invalid:
    """Parse one action; see `Grammar.parse`."""
    return GRAMMAR.parse(text)


def _unwrap(text: str) -> str:
    """Normalise line ends, and remove surrounding blank lines and code fences."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").strip("\ufeff \t\n")
    fenced = _fenced(text)
    if fenced is not None:
        return fenced.strip(" \t\n")
    if len(text) > 2 and text[0] == text[-1] == "`" and "`" not in text[1:-1]:
        return text[1:-1].strip(" \t\n")
    return text


def _fenced(text: str) -> str | None:
    """Return the text between two code fences, or None.

    As in CommonMark, the second fence must be at least as long as the first.
    """
    mark = text[:1]
    if mark not in ("`", "~"):
        return None
    fence, _, rest = text.partition("\n")
    info = fence.lstrip(mark)
    length = len(fence) - len(info)
    inside = rest.rstrip(mark)
    closed = length >= _FENCE_LENGTH and len(rest) - len(inside) >= length
    return inside if closed and "`" not in info else None


def _parse_finish(rest: str) -> Action | Invalid:
    example = EXAMPLES["FINISH"]
    rest = rest.strip(" \t\n")
    if not rest.startswith("("):
        return Invalid("FINISH needs its answer in parentheses", example)
    if not rest.endswith(")"):
        return Invalid("FINISH has no closing parenthesis, or text follows it", example)
    inner = rest[1:-1].strip()
    if not inner:
        return Invalid("FINISH needs a JSON list; write FINISH([]) for an empty answer", example)
    answer, problem = parse_json(inner)
    if problem:
        hint = "; strings need double quotes" if "'" in inner else ""
        return Invalid(f"the answer of FINISH is not a JSON list: {problem}{hint}", example)
    if not isinstance(answer, list):
        kind = {dict: "an object", str: "a string", bool: "a boolean", type(None): "null"}.get(type(answer), "a number")
        short = f": write FINISH([{inner}])" if len(inner) <= 80 else ""
        return Invalid(f"the answer of FINISH must be a JSON list, not {kind}{short}", example)
    return Finish(answer)


def _parse_request(kind: Kind, rest: str) -> Action | Invalid:
    example = EXAMPLES[kind]
    line, newline, tail = rest.partition("\n")
    if line[:1] not in (" ", "\t") or not line.strip():
        return Invalid(f"{kind} needs a url on the same line", example)
    inline = _INLINE_BODY.search(line) if kind in _WITH_BODY else None
    if inline:
        line, tail = line[: inline.start()], line[inline.start() :] + newline + tail
    url = _HTTP_VERSION.sub("", line.strip()).rstrip()
    problem = url_problem(url)
    if problem:
        return Invalid(problem, example)
    headers, body = _headers(tail)
    if isinstance(headers, str):
        return Invalid(headers, example)
    body = _unwrap(body)
    if not body:
        if kind in ("PUT", "PATCH"):
            return Invalid(f"{kind} needs a JSON body on the lines after the url", example)
        return Action(kind, url, headers=headers)
    problem = _body_problem(kind, url, body)
    return Invalid(problem, example) if problem else Action(kind, url, body, headers=headers)


def _headers(text: str) -> tuple[tuple[tuple[str, str], ...] | str, str]:
    """Return the header lines at the start of a text (or an error message about them) and the rest of the text."""
    headers: list[tuple[str, str]] = []
    lines = text.split("\n")
    for line in lines:
        header = _HEADER_LINE.match(line)
        if header is None:
            break
        name = _HEADER_NAMES.get(header.group(1).lower())
        if name is None:
            return f"header {header.group(1)[:40]!r} is not one of {', '.join(HEADERS)}", ""
        value = header.group(2).strip()
        if CONTROL.search(value):
            return f"header {name} contains control characters", ""
        headers.append((name, value))
        if len(headers) > _MAX_HEADERS:
            return f"it has more than {_MAX_HEADERS} header lines", ""
    return tuple(headers), "\n".join(lines[len(headers) :])


def _body_problem(kind: Kind, url: str, body: str) -> str | None:
    if kind not in _WITH_BODY:
        return f"no text may follow the url of a {kind}; send one action at a time, without other text"
    if url.partition("?")[0].rstrip("/").endswith("/_search"):
        return None  # the body of a POST search is a form
    if body[0] not in "{[":
        return f"the body of {kind} must be JSON only; it starts with {body[:20]!r}"
    problem = json_problem(body)
    return f"the body of {kind} is not valid JSON: {problem}" if problem else None
