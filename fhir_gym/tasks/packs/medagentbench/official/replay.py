"""Replay recorded episodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fhir_gym.fhir.session import Session
from fhir_gym.tasks.packs.medagentbench.official.conversation import TASK_ERROR, OfficialConversation
from fhir_gym.tasks.packs.medagentbench.official.records import OfficialRecords
from fhir_gym.tasks.packs.medagentbench.official.task_file import OfficialCase
from fhir_gym.tasks.packs.medagentbench.official.verdict import OfficialVerdict, Transcript, judge

_NO_FINISH = "no_finish"


@dataclass(frozen=True, slots=True)
class ReplayedEpisode:
    """The outcome of a replayed episode.

    Attributes:
        status: Status of the conversation.
        result: The content of FINISH.
    """

    status: str
    result: object
    verdict: OfficialVerdict


def replay(
    case: OfficialCase,
    messages: Iterable[object],
    session: Session,
    *,
    stopped: str | None = None,
    error: object = None,
) -> ReplayedEpisode:
    """Replay an agent's messages against a server and judge them.

    Args:
        case: The task.
        messages: The agent's messages.
        session: The server; it receives only the GETs.
        stopped: Recorded status of an episode that ended because of an error (``task error``); otherwise None.
        error: Recorded result of an episode that ended because of an error.
    """
    conversation = OfficialConversation()
    for message in messages:
        if not isinstance(message, str):  # as in the benchmark, a missing text is an error
            stopped, error = TASK_ERROR, {"error": "the agent's message is no text"}
            break
        turn = conversation.take(message)
        if turn.ends:
            break
        request = turn.request(session.base_url) if turn.kind == "GET" else None
        conversation.reply(turn, session.handle(request) if request else None)
        if conversation.over:
            break
    status, result = conversation.status or stopped or _NO_FINISH, conversation.result
    if status == TASK_ERROR:
        result = error
    transcript = Transcript(conversation.history, result, f"{session.base_url}/")
    return ReplayedEpisode(status, result, judge(case, transcript, OfficialRecords(session.handle)))
