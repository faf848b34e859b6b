"""The interfaces of tasks with a dialogue of their own, and of tasks that simulate what other people do."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from fhir_gym.actions import Action
from fhir_gym.fhir.messages import Request, Response
from fhir_gym.tasks.grading.end_state import TimedRequest
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


class Simulation(Protocol):
    """What happens during one episode of a live task. It depends only on the variation and the agent's actions."""

    @property
    def now(self) -> datetime:
        """The simulated time."""

    @property
    def timeline(self) -> tuple[TimedRequest, ...]:
        """All requests so far, of the agent and of other people, in order."""

    def answer(self, action: Action, request: Request) -> Response:
        """Answer a request of the agent, and let time pass.

        Args:
            action: The parsed action.
            request: The request to the server.
        """

    def pass_time(self) -> None:
        """Let the time of an invalid action pass."""
