"""What validation finds, in the form of HAPI's issues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "information"]
Steps = tuple[str | int, ...]
"""Keys and list positions that lead to a value in the JSON."""


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
    """The findings of one validation, in order, each once."""

    def add(self, severity: Severity, path: str, text: str, message: str = "", steps: Steps = ()) -> None:
        """Add a finding unless the same is there."""
        issue = Issue(severity, path, text, message, steps)
        if issue not in self._known:
            self._known.add(issue)
            self.append(issue)

    def __init__(self) -> None:
        super().__init__()
        self._known: set[Issue] = set()

    @property
    def errors(self) -> list[Issue]:
        """The findings that make the resource invalid."""
        return [issue for issue in self if issue.severity == "error"]
