"""Classify failed episodes by FHIR-AgentEval's six failure modes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from fhir_gym.tasks.grading.tool_usage import ToolUsage

if TYPE_CHECKING:
    from collections.abc import Iterable

SELECTION = "incorrect tool selection"
ORDER = "incorrect tool order"
RESOURCE_TYPE = "incorrect resource type"
PROHIBITED = "prohibited tool used"
TOOL_ERRORS = "tool errors"
OTHER = "other"
FAILURE_MODES = (SELECTION, ORDER, RESOURCE_TYPE, PROHIBITED, TOOL_ERRORS, OTHER)
"""All failure modes. Only `OTHER` excludes the others."""


def failure_modes(usage: ToolUsage, *, errors: int) -> tuple[str, ...]:
    """Return the failure modes of a failed episode, in the order of `FAILURE_MODES`.

    Tools are the interactions that the server carried out, so a text action and a tool call with the same effect count
    alike: ``GET /Patient?name=Lee`` is a search, and ``GET /Patient/7`` is a read.

    - Incorrect tool selection: no tool sequence that solves the task is contained in the used tools.
    - Incorrect tool order: all tools of a sequence were used, but no sequence in its order.
    - Incorrect resource type: the tools are correct, but a resource type that the task requires occurs in no request
      and no response.
    - Prohibited tool used: the episode uses a tool that the task prohibits.
    - Tool errors: the server answered a request with an error status, or a tool call was invalid.
    - Other: none of these.

    Selection and order are not decided for tasks without tool sequences (`ToolUsage.tools_selected` is None).

    Args:
        usage: The tool usage in the verdict.
        errors: Number of failed requests and invalid tool calls.
    """
    selected = usage.tools_selected is not False
    flags = {
        SELECTION: not selected,
        ORDER: selected and usage.tools_in_order is False,
        RESOURCE_TYPE: selected and bool(usage.untouched),
        PROHIBITED: bool(usage.prohibited),
        TOOL_ERRORS: errors > 0,
    }
    return tuple(mode for mode in FAILURE_MODES if flags.get(mode)) or (OTHER,)


@dataclass(frozen=True, slots=True)
class FailureModes:
    """The failure modes of several episodes.

    Attributes:
        failed: Number of failed episodes.
        unknown: Number of failed episodes whose tool selection and order are not known, because their task defines no
            tool sequences.
        counts: Number of failed episodes with each mode. An episode may have several modes.
    """

    failed: int
    unknown: int
    counts: Mapping[str, int]

    @classmethod
    def of(cls, failed: Iterable[tuple[tuple[str, ...], bool]]) -> Self:
        """Count the modes of failed episodes.

        Args:
            failed: For each failed episode, its modes, and whether its tool selection is known.
        """
        outcomes = list(failed)
        counts = Counter(mode for modes, _ in outcomes for mode in modes)
        return cls(
            len(outcomes),
            sum(not known_outcome for _, known_outcome in outcomes),
            {mode: counts[mode] for mode in FAILURE_MODES},
        )

    def plain(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {"failed": self.failed, "unknown": self.unknown, "counts": dict(self.counts)}
