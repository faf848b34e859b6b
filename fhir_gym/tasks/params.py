"""The values that fill one variation of a task."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Params"]


class Params(BaseModel):
    """Base of every task's parameters: frozen, closed, plain data.

    Parameters hold everything a variation's prompt, start state and expected result are made of, ids included, so that
    those are functions of the parameters alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
