"""The benchmark's conversation rules as a turn protocol.

Unlike the benchmark, which only acknowledges POSTs, fhir_gym executes valid POSTs.
"""

from __future__ import annotations

from fhir_gym.fhir.messages import Response
from fhir_gym.tasks import ParsedTurn
from fhir_gym.tasks.packs.medagentbench.official.conversation import AgentTurn, OfficialConversation


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
