"""The actions of an agent, as texts, HTTP requests and tool calls.

`GRAMMAR` parses texts, writes the help for prompts, gives examples, and describes the actions as functions for
tool-calling models. Invalid agent output raises no exception: the parser returns an `Invalid` with a reason and an
example.

Examples:
    >>> from fhir_gym.actions import Get, parse
    >>> parse("get Patient?family=Lee") == Get("Patient?family=Lee")
    True
"""

from fhir_gym.actions.grammar import GRAMMAR, HEADERS, MAX_ACTION_LENGTH, Grammar, parse
from fhir_gym.actions.model import Action, Delete, Finish, Get, Invalid, Kind, Patch, Post, Put, to_request

__all__ = [
    "GRAMMAR",
    "HEADERS",
    "MAX_ACTION_LENGTH",
    "Action",
    "Delete",
    "Finish",
    "Get",
    "Grammar",
    "Invalid",
    "Kind",
    "Patch",
    "Post",
    "Put",
    "parse",
    "to_request",
]
