"""The benchmark's conversation rules: how it parses an agent's messages and what it replies.

The prefix of a message decides: ``GET``, ``POST`` or ``FINISH(``. Any other message ends the episode. Unlike the
benchmark, which only acknowledges POSTs, fhir_gym executes valid POSTs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Literal

from fhir_gym.actions import Action, Get, Invalid, Post, to_request
from fhir_gym.actions.model import parse_json
from fhir_gym.fhir.messages import Request, Response
from fhir_gym.tasks import ParsedTurn
from fhir_gym.types import Json

AGENT, USER = "agent", "user"
MAX_ROUNDS = 8
"""Maximum number of messages that an agent may send."""

ACCEPTED = "POST request accepted"
"""Start of the reply to an accepted POST; the verdict recognises accepted POSTs by this text."""
REFUSED = "Invalid POST request"
_GO_ON = "Send FINISH once everything asked is answered and done."

COMPLETED = "completed"
INVALID = "agent invalid action"
LIMIT = "task limit reached"
TASK_ERROR = "task error"

_FENCES = ("```tool_code", "```")
_GET, _POST, _FINISH = "GET", "POST", "FINISH("


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    Attributes:
        role: ``agent`` or ``user``.
        content: The unchanged text.
    """

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class AgentTurn:
    """A parsed message of the agent.

    Attributes:
        kind: ``GET``, ``POST``, ``FINISH`` or ``INVALID``.
        url: URL of a request.
        body: The text after the first line of a POST; None if it is not JSON.
        result: The text after ``FINISH(`` except the last character, even if that character is not a parenthesis.
    """

    kind: Literal["GET", "POST", "FINISH", "INVALID"]
    url: str = ""
    body: str | None = None
    result: str = ""

    @property
    def ends(self) -> bool:
        """Whether the message ends the conversation."""
        return self.kind in ("FINISH", "INVALID")

    @property
    def action(self) -> Action | None:
        """The action to send; None if the message is not a request or its URL is not absolute."""
        if self.kind == "GET" and "://" in self.url:
            # The benchmark treats localhost and 127.0.0.1 as the same server.
            return Get(self.url.replace("://127.0.0.1", "://localhost", 1))
        return Post(self.url, self.body) if self.kind == "POST" and self.body is not None else None

    @property
    def answer(self) -> list[Json] | None:
        """The answer list of FINISH; None if the answer is not a list or cannot be recorded."""
        answer, problem = parse_json(self.result)
        return answer if problem is None and isinstance(answer, list) else None

    def request(self, base_url: str) -> Request | None:
        """Return the HTTP request; None if the message is not a valid request to this server."""
        action = self.action
        request = None if action is None else to_request(action, base_url)
        return None if isinstance(request, Invalid) else request


@dataclass(slots=True)
class OfficialConversation:
    """One conversation.

    Attributes:
        max_rounds: Number of messages that the agent may send.
        history: All messages so far, of the agent and of the user.
        status: ``completed``, ``agent invalid action`` or ``task limit reached``; None before the end.
        result: The content of FINISH; None if the agent sent no FINISH, in which case the verdict rejects the episode.
    """

    max_rounds: int = MAX_ROUNDS
    history: list[Message] = field(default_factory=list)
    status: str | None = None
    result: object = None
    _rounds: int = 0

    @property
    def over(self) -> bool:
        """Whether the conversation has ended."""
        return self.status is not None

    def take(self, text: str) -> AgentTurn:
        """Parse a message of the agent; if the conversation has not ended, the caller must call `reply` next."""
        self.history.append(Message(AGENT, text))
        self._rounds += 1
        turn = _read(text)
        if turn.kind == "FINISH":
            self.status, self.result = COMPLETED, turn.result
        elif turn.kind == "INVALID":
            self.status = INVALID
        return turn

    def reply(self, turn: AgentTurn, response: Response | None) -> str:
        """Return the reply to the agent.

        Args:
            turn: The agent's message.
            response: The server's response to a GET; None if the URL was invalid. The reply to a POST ignores the
                response.
        """
        text = _reply_to_post(turn) if turn.kind == "POST" else _reply_to_get(response)
        self.told(text)
        return text

    def told(self, reply: str) -> None:
        """Record a reply to the agent."""
        self.history.append(Message(USER, reply))
        if self._rounds >= self.max_rounds:
            self.status = LIMIT


def _read(text: str) -> AgentTurn:
    text = text.strip()
    for fence in _FENCES:
        text = text.replace(fence, "")
    text = text.strip()
    if text.startswith(_GET):
        # As in the benchmark, this makes the path invalid if the URL has no "?".
        return AgentTurn("GET", url=text.removeprefix(_GET).strip() + "&_format=json")
    if text.startswith(_POST):
        line, _, body = text.partition("\n")
        return AgentTurn("POST", url=line.removeprefix(_POST).strip(), body=body if _is_json(body) else None)
    if text.startswith(_FINISH):
        return AgentTurn("FINISH", result=text.removeprefix(_FINISH)[:-1])
    return AgentTurn("INVALID")


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _reply_to_post(turn: AgentTurn) -> str:
    return REFUSED if turn.body is None else f"{ACCEPTED}. {_GO_ON}"


def _reply_to_get(response: Response | None) -> str:
    if response is None:
        return "The GET request failed: its url is not one of this server."
    return f"HTTP {response.status}\n{response.text}"


class OfficialDialogue:
    """A conversation that follows the benchmark's rules."""

    def __init__(self) -> None:
        self._conversation = OfficialConversation()
        self._turn = AgentTurn("INVALID")

    def action_format(self, base_url: str, max_steps: int) -> str:
        """Return the text that states the server's base URL, the step limit and the forms of actions."""
        return (
            f"The FHIR R4 server's base is {base_url}. You have at most {max_steps} actions.\n"
            "Reply with exactly one action and nothing else; any other text ends the task:\n"
            f"GET {base_url}/Type?name=value&name=value\n"
            f"POST {base_url}/Type\n"
            "{the resource as JSON, on the lines after the url}\n"
            "FINISH([answer1, answer2, ...])\n"
            "Urls are absolute. The answer of FINISH is a JSON list; it ends the task."
        )

    def parse(self, text: str) -> ParsedTurn:
        """Parse a message of the agent."""
        self._turn = self._conversation.take(text)
        action = self._turn.action
        if self._turn.kind == "FINISH":
            return ParsedTurn(over=True, answer=self._turn.answer)
        if self._turn.kind == "INVALID":
            return ParsedTurn(over=True, invalid=True)
        return ParsedTurn(action=action, invalid=action is None)

    def reply(self, response: Response | None) -> str:
        """Return the reply to the agent."""
        return self._conversation.reply(self._turn, response)
