"""Types shared by the whole package."""

from __future__ import annotations

from typing import Any, Final, Literal

__all__ = ["BRIEF", "Json", "Phrasing", "Resource"]

Json = Any
"""Any value that `json.loads` can return."""

Resource = dict[str, Any]
"""A FHIR resource as a JSON object."""

BRIEF: Final = "brief"
"""Name of the phrasing that asks for a task in one sentence."""

Phrasing = int | Literal["brief"]
"""A wording of a task's prompt: the index of a numbered wording, or `BRIEF`."""
