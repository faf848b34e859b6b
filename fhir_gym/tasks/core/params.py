"""The parameters of a variation."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict


class LabelledRequest(NamedTuple):
    """One request of a prompt that contains several.

    Attributes:
        target: As in `SceneParams`.
        qualifying: As in `SceneParams`.
        answer: Class of the right answer.
    """

    target: str
    qualifying: tuple[str, ...]
    answer: str


class Params(BaseModel):
    """Base class of task parameters: frozen plain data without extra fields.

    The prompt, the start state and the expected result of a variation depend only on its parameters. The parameters
    therefore include all ids.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")


class SceneParams(Params):
    """Parameters of a `SceneTask`.

    Attributes:
        scene: The drawn records of the start state; the target is chosen after them. Subclasses declare the type.
        target: The record that the prompt asks about (``Patient/S1234567``), or an empty text.
        qualifying: The records that were equally likely to become the target, including the target.
    """

    scene: Any
    target: str = ""
    qualifying: tuple[str, ...] = ()

    @property
    def labelled_requests(self) -> tuple[LabelledRequest, ...]:
        """The requests of a prompt that contains several; empty for other prompts. Only analyses use them."""
        return ()
