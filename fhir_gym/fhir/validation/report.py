"""The issues that validation finds, and their OperationOutcome with the line and column of each in the JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, cast

from fhir_gym.types import Json

Severity = Literal["error", "warning", "information"]
Steps = tuple[str | int, ...]
"""Keys and list positions that lead to a value in the JSON."""

_STEPS_OF_AN_ISSUE = 200


@dataclass(frozen=True, slots=True)
class Issue:
    """One finding.

    Attributes:
        severity: Only an error makes a resource invalid.
        path: The element, as FHIRPath.
        text: The message.
        message: HAPI's id of the message; empty if it has none.
        steps: Where the element is in the JSON.
    """

    severity: Severity
    path: str
    text: str
    message: str = ""
    steps: Steps = ()


class Issues(list[Issue]):
    """The findings of one validation, in order, each once.

    Args:
        spend: Function that receives the work of the validation, in steps of about a tenth of a microsecond, and may
            raise.
    """

    def __init__(self, spend: Callable[[int], None]) -> None:
        super().__init__()
        self.spend = spend
        self._known: set[Issue] = set()

    def add(self, severity: Severity, path: str, text: str, message: str = "", steps: Steps = ()) -> None:
        """Add a finding unless the same is there."""
        issue = Issue(severity, path, text, message, steps)
        if issue not in self._known:
            self.spend(_STEPS_OF_AN_ISSUE)
            self._known.add(issue)
            self.append(issue)

    @property
    def errors(self) -> list[Issue]:
        """The findings that make the resource invalid."""
        return [issue for issue in self if issue.severity == "error"]


_EXTENSION = "http://hl7.org/fhir/StructureDefinition/operationoutcome"
_MESSAGES = "http://hl7.org/fhir/java-core-messageId"
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)


def described(issues: Iterable[Issue], text: bytes) -> list[Json]:
    """Return issues in HAPI's form; those of values that are not found in the text are at its end."""
    listed = list(issues)
    shown = text.decode("utf-8", "replace").rstrip()
    ends = dict(_ends(shown, {issue.steps for issue in listed if issue.steps}))
    return [_described(issue, shown, ends.get(issue.steps, len(shown))) for issue in listed]


def _described(issue: Issue, text: str, end: int) -> Json:
    line, column = text.count("\n", 0, end) + 1, end - text.rfind("\n", 0, end)
    extension = [
        {"url": f"{_EXTENSION}-issue-line", "valueInteger": line},
        {"url": f"{_EXTENSION}-issue-col", "valueInteger": column},
    ]
    details = {}
    if issue.message:
        extension.append({"url": f"{_EXTENSION}-message-id", "valueString": issue.message})
        details = {"details": {"coding": [{"system": _MESSAGES, "code": issue.message}]}}
    return {
        "extension": extension,
        "severity": issue.severity,
        "code": "processing",
        **details,
        "diagnostics": issue.text,
        "location": [issue.path, f"Line[{line}] Col[{column}]"],
        "expression": [issue.path],
    }


def _ends(text: str, places: set[Steps]) -> Iterator[tuple[Steps, int]]:
    """Yield the end of each wanted value; what is not JSON gives wrong places, but no error."""
    path: list[str | int | None] = []  # None where the name of a member comes next
    name = ""
    for token in _TOKEN.finditer(text) if places else ():
        mark = token[0]
        if mark == "{":
            path.append(None)
        elif mark == "[":
            path.append(0)
        elif mark == ":" and path:
            path[-1] = name
        elif mark == "," and path:
            path[-1] = path[-1] + 1 if isinstance(path[-1], int) else None
        elif path and path[-1] is None and mark != "}":
            name = mark[1:-1]
        else:
            if mark in "}]" and path:
                path.pop()
            if tuple(path) in places:
                yield cast(Steps, tuple(path)), token.end()
