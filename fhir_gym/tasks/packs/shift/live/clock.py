"""The time that requests take."""

from __future__ import annotations

from datetime import datetime, timedelta

from fhir_gym.actions import Action
from fhir_gym.fhir.messages import Response
from fhir_gym.tasks.packs.shift.lookups import is_refused
from fhir_gym.types import Json

READ = timedelta(seconds=20)
WRITE = timedelta(seconds=60)

RULE = (
    f"Time passes with each of your actions: a read or a search takes {READ.seconds} seconds, a write "
    f"{WRITE.seconds} seconds. A batch or transaction takes the sum of what its entries take. A refused request takes "
    f"{READ.seconds} seconds. A request takes effect as soon as you send it, with all entries of a Bundle; the status "
    "line of its response shows the time after it. To be in time, however, each write in a Bundle counts as sent when "
    "the writes before it have taken their time."
)
"""The rule in words, for prompts."""


def duration(response: Response) -> timedelta:
    """Return the time that a request took, judged by what the server did."""
    if response.status >= 400:
        return READ
    return sum((WRITE if interaction.effect else READ for interaction in response.done), timedelta()) or READ


class Watch:
    """The time that an agent reckons from its own requests, without batches and transactions."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def count(self, action: Action, answer: Json) -> None:
        """Add the time of a request."""
        self.now += READ if action.kind == "GET" or is_refused(answer) else WRITE

    def move_to(self, moment: datetime) -> None:
        """Set the clock to a moment, unless it shows a later moment."""
        self.now = max(self.now, moment)
