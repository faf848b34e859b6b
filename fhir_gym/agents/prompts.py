"""The system prompt of model agents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from fhir_gym.agents.chat_messages import ChatProtocol

SYSTEM_PROMPT = (
    "You work with health records on a FHIR R4 server. You are given a task. Perform one action at a time; "
    "you see its result before you choose the next one."
)
TOOLS_NOTE = " Act by calling tools. Where the task says FINISH([...]), call finish with that list as its answer."

_LOOKUPS_BESIDE_TEXT = (
    " You can also call tools to look things up. Write an action as plain text, never as a tool call; "
    "a reply that calls a tool contains no action."
)
_SOURCE_NOTES: Mapping[str, str] = MappingProxyType(
    {
        "spec": (
            " Some tools describe the FHIR R4 specification: resource types and their elements, data types, codes and "
            "search parameters. Look a name up there before you guess it, above all before you write a resource or "
            "use an unusual search parameter, and after the server rejects a request."
        ),
        "memory": (
            " Some tools give lessons that were learned from earlier tasks. Before your first action, ask for advice "
            "on tasks like yours. Before you first search, create or update resources of a type, ask for advice on "
            "that. The lessons are general: take names, ids, dates and codes only from your task and from the server."
        ),
    }
)
_OTHER_SOURCE = " Use your other tools as their descriptions say."


def system_prompt(protocol: ChatProtocol, sources: Iterable[str] = ()) -> str:
    """Return the default system prompt.

    Args:
        protocol: ``text`` or ``tools``.
        sources: Names of the tool sources that the model may use.
    """
    names = list(sources)
    notes = list(dict.fromkeys(_SOURCE_NOTES.get(name, _OTHER_SOURCE) for name in names))
    beside = TOOLS_NOTE if protocol == "tools" else _LOOKUPS_BESIDE_TEXT if names else ""
    return "".join([SYSTEM_PROMPT, beside, *notes])
