"""Types shared by the whole package."""

from __future__ import annotations

from typing import Any, Final, Literal

__all__ = ["BRIEF", "PARAPHRASE", "Json", "Phrasing", "Resource", "Wording"]

Json = Any
"""Any value that `json.loads` can return."""

Resource = dict[str, Any]
"""A FHIR resource as a JSON object."""

BRIEF: Final = "brief"
"""Name of the phrasing that asks for a task in one sentence."""

PARAPHRASE: Final = "paraphrase"
"""Name of the phrasing that gives each variation one of the task's paraphrases."""

Wording = int | Literal["brief"]
"""A wording of a task's prompt: the index of a numbered wording, or `BRIEF`."""

Phrasing = Wording | Literal["paraphrase"]
"""The choice of a wording: a `Wording` for all variations, or `PARAPHRASE`."""
