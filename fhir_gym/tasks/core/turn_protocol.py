"""The interface of tasks that replace the standard action grammar with their own dialogue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fhir_gym.actions import Action
from fhir_gym.fhir.messages import Response
from fhir_gym.types import Json


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """The parsed content of one text of the agent.

    Attributes:
        action: The request to send; None if the text contains no request.
        over: Whether the text ends the episode.
        answer: The final answer; None if the text contains no answer or the answer is not a list.
        invalid: Whether the text is an invalid action.
    """

    action: Action | None = None
    over: bool = False
    answer: list[Json] | None = None
    invalid: bool = False


class TurnProtocol(Protocol):
    """The dialogue of one episode. The episode calls `parse` and `reply` alternately until the agent finishes."""

    def action_format(self, base_url: str, max_steps: int) -> str:
        """Return the part of the first observation about the server, the step limit and the syntax of actions."""
        ...

    def parse(self, text: str) -> ParsedTurn:
        """Parse a text of the agent."""
        ...

    def reply(self, response: Response | None) -> str:
        """Return the next message for the agent. `response` is None if no request was sent."""
        ...
