"""Tools that a chat agent may call beside the FHIR tools, and the checks of their arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from fhir_gym.actions.model import parse_json, too_deep
from fhir_gym.agents.protocol import EpisodeContext
from fhir_gym.errors import UnknownNameError
from fhir_gym.types import Json

__all__ = [
    "ERROR",
    "ToolSource",
    "check_arguments",
    "decode_arguments",
    "error_text",
    "function_schema",
    "unknown_tool",
]

ERROR = "Error:"
"""Beginning of the result of a call that failed because of the model's arguments."""

_MAX_ARGUMENTS = 100_000
"""Maximum number of characters of a call's arguments as JSON text."""
_MAX_SHOWN = 60
"""Maximum number of characters of a name that an error text shows."""

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


@runtime_checkable
class ToolSource(Protocol):
    """Tools for looking things up. Their calls never reach the episode's FHIR server.

    A source must be picklable, because worker processes get copies of the agent. It may open connections on the first
    call; `aclose` closes them, and the source may then be used again on another event loop.

    Attributes:
        name: Short name for records (``spec``, ``memory``, ``mcp``).
        settings: Plain data for records, such as versions and hashes; it must not contain secrets.
    """

    name: str
    settings: Mapping[str, Json]

    def schemas(self) -> list[dict[str, Any]]:
        """Return the OpenAI function schemas of the tools; see `function_schema`."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any] | str, context: EpisodeContext | None) -> str:
        """Return the result of a call as text for the model.

        Args:
            name: Name of the tool.
            arguments: The arguments as the model wrote them: JSON text or an object, possibly invalid.
            context: The episode, of which a source may use only the prompt; None outside an episode.

        Returns:
            The result. After a mistake of the model, the result is an `error_text`.

        Raises:
            InfraError: The source itself failed, for example because its server is down.
        """
        ...

    async def aclose(self) -> None:
        """Close what the source opened on this event loop."""
        ...


def function_schema(
    name: str, description: str, properties: Mapping[str, Mapping[str, Any]], required: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the OpenAI function schema of a tool.

    Args:
        name: Name of the tool.
        description: What the tool does, for the model.
        properties: JSON schema of each parameter.
        required: Names of the parameters without a default.
    """
    parameters = {
        "type": "object",
        "properties": {key: dict(value) for key, value in properties.items()},
        "required": list(required),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def error_text(reason: str) -> str:
    """Return the result of a call that failed because of a mistake of the model."""
    return f"{ERROR} {' '.join(reason.split())}"


def unknown_tool(name: str, names: list[str]) -> str:
    """Return the result of a call of a tool that does not exist."""
    return error_text(str(UnknownNameError("tool", name, names)))


def decode_arguments(arguments: object) -> dict[str, Any] | str:
    """Return the arguments of a call as a dictionary, or an error text.

    No arguments, null and an empty text are an empty object, because several servers send these for a call without
    arguments.

    Args:
        arguments: The arguments as the model wrote them.
    """
    decoded: Any = {} if arguments is None or arguments == "" else arguments
    if isinstance(decoded, str):
        if len(decoded) > _MAX_ARGUMENTS:
            return error_text(f"the arguments are longer than {_MAX_ARGUMENTS:,} characters")
        try:
            decoded, problem = parse_json(decoded)
        except UnicodeEncodeError:
            problem = "they contain invalid Unicode characters (lone surrogates)"
        if problem:
            return error_text(f"the arguments are not valid JSON: {problem}")
    if not isinstance(decoded, Mapping):
        return error_text("the arguments must be a JSON object")
    problem = too_deep(dict(decoded))
    return error_text(f"the arguments are not valid: {problem}") if problem else dict(decoded)


def check_arguments(schema: Mapping[str, Any], arguments: object) -> dict[str, Any] | str:
    """Return the arguments of a call if they fit the tool's function schema, or an error text.

    Optional arguments with the value null are left out. Only the types and ``enum`` of the parameters are checked.

    Args:
        schema: The tool's function schema; see `function_schema`.
        arguments: The arguments as the model wrote them.
    """
    decoded = decode_arguments(arguments)
    if isinstance(decoded, str):
        return decoded
    parameters = schema["function"]["parameters"]
    properties: Mapping[str, Any] = parameters["properties"]
    for name in decoded:
        if name not in properties:
            return error_text(str(UnknownNameError("argument", name, properties)))
    present = {name: value for name, value in decoded.items() if value is not None}
    for name in parameters["required"]:
        if name not in present:
            return error_text(f"the argument {name!r} is missing")
    problems = (_problem(name, value, properties[name]) for name, value in present.items())
    problem = next((problem for problem in problems if problem), None)
    return present if problem is None else error_text(problem)


def _problem(name: str, value: object, schema: Mapping[str, Any]) -> str | None:
    kind = str(schema.get("type"))
    types = _TYPES.get(kind)
    if types and (not isinstance(value, types) or (isinstance(value, bool) and kind != "boolean")):
        return f"the argument {name!r} must have the type {kind}"
    choices = schema.get("enum")
    if choices is not None and value not in choices:
        return f"the argument {name!r} must be one of {', '.join(map(str, choices))}, not {str(value)[:_MAX_SHOWN]!r}"
    return None
