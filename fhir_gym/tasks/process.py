"""How the agent worked: requests by tool, and errors. Never part of success, except tools a task prohibits."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict

from fhir_gym.fhir.messages import Request, Response
from fhir_gym.tasks.endstate import LoggedRequest
from fhir_gym.types import Json

__all__ = ["Process", "Tool", "measure", "tools_of"]

Tool = Literal["create", "search", "read", "update", "patch", "delete", "history", "other"]

_WRITES: Mapping[str, Tool] = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Process(BaseModel):
    """Counts over an episode's requests; the entries of a batch or transaction count one by one.

    Attributes:
        requests: Requests by tool.
        errors: Requests by tool that were answered with an error status.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    requests: dict[str, int]
    errors: dict[str, int]


def measure(logged: Iterable[LoggedRequest]) -> Process:
    """The counts of an episode."""
    used: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    for one in logged:
        for tool, status in _outcomes(one.request, one.response):
            used[tool] += 1
            if status >= 400:
                failed[tool] += 1
    return Process(requests=dict(sorted(used.items())), errors=dict(sorted(failed.items())))


def tools_of(logged: Iterable[LoggedRequest]) -> list[Tool]:
    """The tools of an episode in order."""
    return [tool for one in logged for tool, _ in _outcomes(one.request, one.response)]


def _outcomes(request: Request, response: Response) -> Iterator[tuple[Tool, int]]:
    """Each tool a request stands for, with its status."""
    if request.method == "POST" and not request.path.strip("/"):
        yield from _bundle_outcomes(request, response)
    else:
        yield _tool(request.method, request.path, request.query), response.status


def _bundle_outcomes(request: Request, response: Response) -> Iterator[tuple[Tool, int]]:
    entries = _entries(request.body)
    if not entries:
        yield "other", response.status
        return
    answers = _entries(response.body) if response.status < 300 else []
    for number, entry in enumerate(entries):
        asked = entry.get("request") if isinstance(entry, dict) else None
        method, url = (str(asked.get(name, "")) for name in ("method", "url")) if isinstance(asked, dict) else ("", "")
        path, _, query = url.partition("?")
        yield _tool(method, path, query), _entry_status(answers, number, response.status)


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
