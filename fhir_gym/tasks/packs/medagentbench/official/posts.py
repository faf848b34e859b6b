"""Find an agent's orders as the benchmark does: by the word POST in the agent's messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from fhir_gym.tasks.packs.medagentbench.official.conversation import ACCEPTED, AGENT, Message
from fhir_gym.types import Json

_POST = "POST"


@dataclass(frozen=True, slots=True)
class PostedOrder:
    """An accepted POST.

    Attributes:
        payload: The parsed body, any JSON value.
    """

    url: str
    payload: Json


def mentions_post(history: Sequence[Message]) -> bool:
    """Return whether a message of the agent contains POST; a refused POST and the mere word count too."""
    return any(item.role == AGENT and _POST in item.content for item in history)


def accepted_orders(history: Sequence[Message]) -> list[PostedOrder]:
    """Return the POSTs that the replies accept.

    As in the benchmark, the function parses the original message, although the reply depends on the cleaned message.
    Therefore an accepted POST in a code fence is not an order, and a POST after a space has a wrong URL.

    Raises:
        IndexError: The agent's last message contains POST, and no reply follows.
    """
    orders = []
    for index, item in enumerate(history):
        if item.role != AGENT or _POST not in item.content or ACCEPTED not in history[index + 1].content:
            continue
        line, _, rest = item.content.partition("\n")
        try:
            payload = json.loads(rest)
        except (ValueError, RecursionError):
            continue
        orders.append(PostedOrder(line[len(_POST) :].strip(), payload))
    return orders
