"""What validation finds, in the form of HAPI's issues."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

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
        spend: Function that is told the work of the validation, in steps of about a tenth of a microsecond, and may
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
