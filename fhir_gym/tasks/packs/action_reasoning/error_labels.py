"""Labels of the errors that explain failed episodes."""

from __future__ import annotations

from typing import Literal, get_args

ErrorLabel = Literal[
    "format",
    "missing retrieval",
    "incorrect value retrieved",
    "window boundary",
    "incomplete inclusion",
    "arithmetic",
    "hallucinated value",
    "context-insensitive range",
    "boundary misclassification",
    "wrong action",
]
ERRORS: tuple[ErrorLabel, ...] = get_args(ErrorLabel)
