"""Tools with which a chat agent reads the reflections of a memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from os import PathLike
from typing import Any

from fhir_gym.agents.memory import OPERATIONS, Memory, find_operation
from fhir_gym.agents.protocol import EpisodeContext
from fhir_gym.agents.tool_sources import check_arguments, error_text, function_schema, unknown_tool
from fhir_gym.arguments import require_whole
from fhir_gym.errors import UnknownNameError
from fhir_gym.fhir.definitions import RESOURCE_TYPES
from fhir_gym.types import Json

_MICRO, _MACRO = "getMicroReflections", "getMacroReflections"
_MAX_TASK = 20_000
"""Maximum number of characters of a task that are compared with the memory."""


class MemoryTools:
    """A `ToolSource` that reads a memory.

    Args:
        memory: The memory, or the path of its file.
        micro_k: Maximum number of micro reflections in a result.
        macro_k: Maximum number of macro reflections in a result.

    Raises:
        MemoryFileError: The file cannot be read.
        MissingExtraError: A package of the memory's embedder is not installed.

    Examples:
        >>> [schema["function"]["name"] for schema in MemoryTools(Memory()).schemas()]
        ['getMicroReflections', 'getMacroReflections']
    """

    name = "memory"

    def __init__(self, memory: Memory | str | PathLike[str], micro_k: int = 5, macro_k: int = 3) -> None:
        self.memory = memory if isinstance(memory, Memory) else Memory.load(memory)
        self.memory.open()
        self._micro_k = require_whole("micro_k", micro_k, 1)
        self._macro_k = require_whole("macro_k", macro_k, 1)
        header = self.memory.header
        self.settings: Mapping[str, Json] = {
            "hash": self.memory.hash,
            "embedder": header.embedder.name,
            "specification": header.specification,
            "micro_k": micro_k,
            "macro_k": macro_k,
        }
        self._schemas = {schema["function"]["name"]: schema for schema in _schemas()}

    def schemas(self) -> list[dict[str, Any]]:
        """Return the function schemas of both tools."""
        return list(self._schemas.values())

    async def call(self, name: str, arguments: Mapping[str, Any] | str, context: EpisodeContext | None = None) -> str:
        """Return the reflections as a numbered list, or an error text."""
        if name not in self._schemas:
            return unknown_tool(name, list(self._schemas))
        checked = check_arguments(self._schemas[name], arguments)
        if isinstance(checked, str):
            return checked
        if name == _MICRO:
            return self._micro(checked["resourceType"], checked["operation"])
        # In a thread, because the embedder may load a model or wait for an endpoint.
        reflections = await asyncio.to_thread(self.memory.macro, checked["task"][:_MAX_TASK], self._macro_k)
        texts = [f"Similar task: {reflection.situation}\n   Advice: {reflection.text}" for reflection, _ in reflections]
        return _numbered(texts) if texts else "No reflections about tasks are stored."

    async def aclose(self) -> None:
        """Do nothing, because nothing stays open."""

    def _micro(self, resource_type: str, operation: str) -> str:
        if resource_type not in RESOURCE_TYPES:
            return error_text(str(UnknownNameError("resource type", resource_type, RESOURCE_TYPES)))
        if find_operation(operation) is None:
            return error_text(str(UnknownNameError("operation", operation, OPERATIONS)))
        reflections = self.memory.micro(resource_type, operation, self._micro_k)
        if not reflections:
            return f"No reflections about {find_operation(operation)} of {resource_type} are stored."
        return _numbered([reflection.text for reflection in reflections])


def _numbered(texts: list[str]) -> str:
    return "\n".join(f"{number}. {text}" for number, text in enumerate(texts, start=1))


def _schemas() -> list[dict[str, Any]]:
    micro = {
        "resourceType": {"type": "string", "description": "FHIR R4 resource type, such as Patient."},
        "operation": {"type": "string", "description": f"One of {', '.join(OPERATIONS)}."},
    }
    macro = {"task": {"type": "string", "description": "The request that you have to carry out, in full."}}
    return [
        function_schema(
            _MICRO,
            "Lessons from earlier tasks about one operation on one resource type. Read them before that operation.",
            micro,
            tuple(micro),
        ),
        function_schema(
            _MACRO,
            "Lessons from earlier tasks like yours: planning, the order of tool calls, constraints. "
            "Read them before your first action.",
            macro,
            tuple(macro),
        ),
    ]
