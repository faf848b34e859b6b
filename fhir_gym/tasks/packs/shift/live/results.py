"""Results of the requests of a live shift."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from fhir_gym.tasks.packs.shift.kind import Judgement
from fhir_gym.tasks.packs.shift.live.plan import WEIGHTS, DeskRequest
from fhir_gym.types import Json

_LATE = 0.5
_HARM = -0.5


@dataclass(frozen=True, slots=True)
class Closing:
    """How the agent closed a Task.

    Attributes:
        request: Position of the closing request on the timeline.
        write: Number of the closing write.
        at: Time of the agent's last update of the Task.
    """

    status: str
    outcome: str
    request: int
    write: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Work:
    """The time in which the agent worked on a request."""

    start: datetime
    end: datetime

    def judgement(self, moment: datetime, before: Judgement, after: Judgement) -> Judgement:
        """Return the judgement that counts if policies came into force at a moment.

        If it was in the middle of the work, the agent may follow the earlier or the later policies.
        """
        if moment > self.end:
            return before
        if moment <= self.start:
            return after
        return after if after.better_than(before) else before


@dataclass(frozen=True, slots=True)
class Decided:
    """The judgement of a request by its kind, and the agent's changes for it.

    Attributes:
        first: Position of the first change on the timeline; None for no change.
        last: Time of the last change; None for no change.
    """

    judgement: Judgement
    first: int | None = None
    last: datetime | None = None


@dataclass(frozen=True, slots=True)
class RequestResult:
    """The result of one request.

    Attributes:
        right: Whether the records and the outcome are right; for a withdrawn request, whether the agent left it alone.
        harmed: Whether a wrong change is left.
        late: Whether the agent changed something for the request, or updated its Task, after the due time.
        withdrawn: Whether the request was withdrawn before the agent worked on it.
        share: The share of the request that is right, from 0 to 1, without regard to time.
        judgement: The judgement of its kind.
        found: The outcome of the agent's actions.
    """

    request: DeskRequest
    right: bool
    harmed: bool
    late: bool
    withdrawn: bool
    share: float
    judgement: Judgement
    found: Json

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong with the request."""
        return self.right and not self.harmed and not self.late

    @property
    def weight(self) -> int:
        """The weight in the score."""
        return 0 if self.withdrawn else WEIGHTS[self.request.priority]

    @property
    def points(self) -> float:
        """The points, which the score multiplies with the weight of the priority."""
        if self.harmed:
            return _HARM
        return 0.0 if self.withdrawn else self.share * (_LATE if self.late else 1.0)
