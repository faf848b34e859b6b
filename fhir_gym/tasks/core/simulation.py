"""The interface of simulations: time passes with each request of the agent, and other people write."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from fhir_gym.actions import Action
from fhir_gym.fhir.messages import Request, Response
from fhir_gym.tasks.grading.end_state import TimedRequest


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
