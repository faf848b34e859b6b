"""What happens during a live shift: the requests with their times, and the events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from fhir_gym.tasks import Params, SceneParams
from fhir_gym.tasks.packs.shift.kind import StatusUpdate
from fhir_gym.tasks.packs.shift.policies import Library

Priority = Literal["routine", "urgent", "stat"]

WEIGHTS: Mapping[str, int] = {"routine": 1, "urgent": 2, "stat": 3}
"""Weight of a request in the score, by priority."""

WHICH_PATIENT = "which-patient"
IS_AGREED = "is-agreed"
QUESTIONS = (WHICH_PATIENT, IS_AGREED)
"""Codes of the questions that can be asked."""

NOT_GIVEN = "[date of birth not given]"
"""Text in a request that replaces the date of birth."""


TIME_TO_OBJECT = timedelta(minutes=2)
"""Time from a Task's in-progress to the agent's first change, in which the requester may object."""
MESSAGE_IN_TIME = timedelta(minutes=1)
"""A message counts if it was sent at least this long before the agent's first change."""
UPDATE_IN_TIME = timedelta(minutes=2)
"""The same for a colleague's update of a record. It is longer, because reading a chart takes several requests."""


@dataclass(frozen=True, slots=True)
class LiveSize:
    """How large a live shift is.

    Attributes:
        level: The level, 3 or 4.
        kinds: Maximum number of kinds of requests that are no sweeps.
        sweeps: Maximum number of sweeps, each of another kind.
        minutes: Minutes in which requests arrive.
        waiting: Number of requests that wait at the start.
        bookings: Number of bookings by colleagues at each place with slots.
        documents: Number of policy documents.
        amendments: Number of amendments of policies that come into force during the shift.
        events: Factor of the probability that a request is withdrawn, becomes more urgent or gets another description.
        asking: Factor of the probability that a request needs a question.
    """

    level: int
    requests: int
    kinds: int
    sweeps: int
    minutes: int
    waiting: int
    bookings: int
    documents: int
    amendments: int = 0
    events: float = 1.0
    asking: float = 1.0


class RecordUpdate(Params):
    """A colleague updates a record of the patient while the agent works on a request.

    Attributes:
        after: Seconds from the time at which the Task is first in-progress.
        record: The record after it.
        outcome: The outcome of the request after it.
    """

    after: int
    update: StatusUpdate
    record: dict[str, Any]
    outcome: str

    @property
    def url(self) -> str:
        """URL of the record."""
        return f"/{self.record['resourceType']}/{self.record['id']}"


class DeskRequest(Params):
    """One request of a live shift.

    Attributes:
        id: Id of its Task.
        kind: Key of its kind.
        arrives: Time at which the Task is created (instant). This time and `due` are drawn last.
        due: Time until which the request must be handled (instant).
        asks: The question that must be asked first: `WHICH_PATIENT`, `IS_AGREED` or an empty text.
        agreed: Whether the patient agrees; always true unless `asks` is `IS_AGREED`.
        answer_after: Minutes until a question about the request is answered.
        withdrawn: Time at which the request is withdrawn if nobody works on it yet; an empty text for never.
        hurried: Time at which the request becomes `stat` if nobody works on it yet; an empty text for never.
        hurried_due: The due time after that.
        reworded: Time at which the description changes to `text` if nobody works on the request yet; an empty text for
            never.
        changes_at_look: Number of the agent's reads of the Task after which the Task changes early (a withdrawal,
            another description, or more urgency); 0 for never.
        changes_after: Seconds from that read to the change.
        message_after: Seconds from the time at which the Task is first in-progress until its requester sends a
            message; 0 for never.
        message_withdraws: Whether this message withdraws the request. Otherwise it changes the description to `text`.
        record_update: What a colleague updates while the agent works on the request; None for nothing.
        note: What a colleague notes in the Task while the agent works on the request; an empty text for nothing.
        note_after: Seconds from the time at which the Task is first in-progress until the note.
        first: The request until the description changes; None if the description never changes.
        first_text: The description until it changes.
    """

    id: str
    kind: str
    request: Any
    text: str
    priority: Priority
    requester: str
    arrives: str = ""
    due: str = ""
    asks: str = ""
    agreed: bool = True
    answer_after: int = 5
    withdrawn: str = ""
    hurried: str = ""
    hurried_due: str = ""
    reworded: str = ""
    changes_at_look: int = 0
    changes_after: int = 0
    message_after: int = 0
    message_withdraws: bool = False
    record_update: RecordUpdate | None = None
    note: str = ""
    note_after: int = 0
    first: Any = None
    first_text: str = ""


class ColleagueBooking(Params):
    """A colleague books the first slot that is still free.

    Attributes:
        at: Time (instant); an empty text if a Task triggers the booking.
        task: Id of the Task that triggers the booking; an empty text for none.
        after: Seconds from the time at which that Task is first in-progress.
        patient: Id of the patient.
        choices: The slots in the order of the colleague's preference, each with the id of its practitioner.
    """

    patient: str
    choices: tuple[tuple[Any, str], ...]
    at: str = ""
    task: str = ""
    after: int = 0


class LiveParams(SceneParams):
    """Parameters of a live shift. `scene` contains the scenes of the kinds by their keys.

    Attributes:
        now: Start of the shift (instant).
        until: No request arrives after this time (instant).
        desk: Id of the Organization whose worklist it is.
        requests: The requests in the order in which they arrive.
        background: Further resources of the start state.
    """

    now: str
    until: str
    desk: str
    desk_name: str
    library: Library
    requests: tuple[DeskRequest, ...]
    bookings: tuple[ColleagueBooking, ...]
    background: tuple[dict[str, Any], ...]

    def of_kind(self, kind: str) -> list[DeskRequest]:
        """Return the requests of a kind."""
        return [request for request in self.requests if request.kind == kind]
