"""How the agent worked: requests by tool and resource type, errors, likeness to the task's tool templates.

Never part of success, except tools a task prohibits.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from fhir_gym.fhir.messages import Request, Response
from fhir_gym.tasks.endstate import LoggedRequest
from fhir_gym.tasks.overlap import Overlap, has_all, in_order, overlap
from fhir_gym.types import Json

__all__ = ["Calls", "Process", "Tool", "measure", "tools_of"]

Tool = Literal["create", "search", "read", "update", "patch", "delete", "history", "other"]

_WRITES: Mapping[str, Tool] = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_TYPE = re.compile(rb'"resourceType"\s*:\s*"([A-Za-z]+)"|"([A-Z][A-Za-z]+)/[^"/ ]+"')


class Calls(BaseModel):
    """Requests of one tool to one resource type.

    Attributes:
        tool: The tool.
        resource_type: The type in the url; empty where it names none (a page of a search, the whole server).
        requests: How many there were.
        errors: How many of them were answered with an error status.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tool: Tool
    resource_type: str
    requests: int
    errors: int


class Process(BaseModel):
    """Measures over an episode's requests; the entries of a batch or transaction count one by one.

    A PATCH counts as an update where templates are compared: the templates' authors offered no patching.

    Attributes:
        requests: Requests by tool.
        errors: Requests by tool that were answered with an error status (400 or more); what else an answer holds, an
            OperationOutcome for one, makes none.
        calls: Both by tool and resource type.
        tools_selected: Whether all tools of one of the templates were used, each as often as there; None without
            templates.
        tools_in_order: Whether one of the templates is a subsequence of the tools used; None without templates.
        untouched: Required resource types that no request and no answer mentions.
        prohibited: Prohibited tools that were used.
        overlap: Likeness to the nearest template; None without templates.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    requests: dict[str, int]
    errors: dict[str, int]
    calls: tuple[Calls, ...] = ()
    tools_selected: bool | None = None
    tools_in_order: bool | None = None
    untouched: tuple[str, ...] = ()
    prohibited: tuple[str, ...] = ()
    overlap: Overlap | None = None


def measure(
    logged: Sequence[LoggedRequest],
    *,
    templates: Sequence[Sequence[str]] = (),
    required: Iterable[str] = (),
    prohibited: Iterable[str] = (),
) -> Process:
    """The measures of an episode.

    Args:
        logged: Its requests.
        templates: Sequences of tools that solve the task.
        required: Resource types it needs.
        prohibited: Tools whose use is a failure.
    """
    calls = list(_calls(logged))
    used, failed = Counter(one.tool for one in calls), Counter(one.tool for one in calls if one.failed)
    pairs = Counter((one.tool, one.resource_type) for one in calls)
    failed_pairs = Counter((one.tool, one.resource_type) for one in calls if one.failed)
    sequence = ["update" if one.tool == "patch" else one.tool for one in calls]
    touched = _touched(logged)
    return Process(
        requests=dict(sorted(used.items())),
        errors=dict(sorted(failed.items())),
        calls=tuple(
            Calls(tool=tool, resource_type=kind, requests=count, errors=failed_pairs[tool, kind])
            for (tool, kind), count in sorted(pairs.items())
        ),
        tools_selected=any(has_all(sequence, one) for one in templates) if templates else None,
        tools_in_order=any(in_order(sequence, one) for one in templates) if templates else None,
        untouched=tuple(kind for kind in required if kind not in touched),
        prohibited=tuple(sorted({*prohibited} & {*used})),
        overlap=overlap(sequence, templates),
    )


@dataclass(frozen=True, slots=True)
class _Call:
    """One use of a tool."""

    tool: Tool
    resource_type: str
    failed: bool


def _touched(logged: Iterable[LoggedRequest]) -> set[str]:
    """Resource types in urls, bodies and answers."""
    found = {one.resource_type for one in _calls(logged)}
    for one in logged:
        for text in (one.request.body, one.response.body):
            found |= {(match[1] or match[2]).decode() for match in _TYPE.finditer(text)}
    return found


def tools_of(logged: Iterable[LoggedRequest]) -> list[Tool]:
    """The tools of an episode in order."""
    return [one.tool for one in _calls(logged)]


def _calls(logged: Iterable[LoggedRequest]) -> Iterator[_Call]:
    """Every use of a tool; the entries of a bundle one by one."""
    for one in logged:
        request, response = one.request, one.response
        if request.method == "POST" and not request.path.strip("/"):
            yield from _bundle_calls(request, response)
        else:
            yield _call(request.method, request.path, request.query, response.status)


def _bundle_calls(request: Request, response: Response) -> Iterator[_Call]:
    entries = _entries(request.body)
    if not entries:
        yield _Call("other", "", response.status >= 400)
        return
    answers = _entries(response.body) if response.status < 300 else []
    for number, entry in enumerate(entries):
        asked = entry.get("request") if isinstance(entry, dict) else None
        method, url = (str(asked.get(name, "")) for name in ("method", "url")) if isinstance(asked, dict) else ("", "")
        path, _, query = url.partition("?")
        yield _call(method, path, query, _entry_status(answers, number, response.status))


def _call(method: str, path: str, query: str, status: int) -> _Call:
    kind = next((part for part in path.split("/") if part[:1].isupper()), "")
    return _Call(_tool(method, path, query), kind, status >= 400)


def _entry_status(answers: list[Json], number: int, otherwise: int) -> int:
    answer = answers[number] if number < len(answers) else None
    outcome = answer.get("response") if isinstance(answer, dict) else None
    status = str(outcome.get("status", "")) if isinstance(outcome, dict) else ""
    return int(status[:3]) if status[:3].isdecimal() else otherwise


def _entries(body: bytes) -> list[Json]:
    try:
        bundle = json.loads(body)
    except (ValueError, RecursionError):
        return []
    entries = bundle.get("entry") if isinstance(bundle, dict) else None
    return entries if isinstance(entries, list) else []


def _tool(method: str, path: str, query: str) -> Tool:
    parts = [part for part in path.split("/") if part]
    if any(part == "_history" for part in parts):
        return "history"
    if method == "GET" or (method == "POST" and parts[-1:] == ["_search"]):
        return _read_tool(parts, query)
    if any(part.startswith("$") for part in parts):
        return "other"
    return _WRITES.get(method, "other")


def _read_tool(parts: list[str], query: str) -> Tool:
    if "_getpages=" in query or parts[-1:] == ["_search"] or (len(parts) == 1 and parts[0] != "metadata"):
        return "search"
    if len(parts) == 2 and not parts[1].startswith("$"):
        return "read"
    return "other"
