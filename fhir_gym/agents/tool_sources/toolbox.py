"""The tools of several tool sources, by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from fhir_gym.actions import GRAMMAR
from fhir_gym.agents.protocol import EpisodeContext
from fhir_gym.agents.tool_sources import ToolSource, unknown_tool
from fhir_gym.errors import ArgumentError, UnknownNameError
from fhir_gym.types import Json

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Tool names that providers accept."""


class Toolbox:
    """The tools of several sources.

    Raises:
        ArgumentError: Two sources or tools have the same name, or providers refuse a name.
    """

    def __init__(self, sources: Sequence[ToolSource]) -> None:
        self.sources = tuple(sources)
        self._schemas: dict[str, dict[str, Any]] = {}
        self._owners: dict[str, ToolSource] = {}
        names = [source.name for source in self.sources]
        for name in names:
            if names.count(name) > 1:
                raise ArgumentError(f"two tool sources have the name {name}: use one of them")
        for source in self.sources:
            for schema in source.schemas():
                self._add(schema, source)

    def _add(self, schema: dict[str, Any], source: ToolSource) -> None:
        name = str(schema["function"]["name"])
        if not _NAME.fullmatch(name):
            raise ArgumentError(
                f"the tool source {source.name} has the tool {name[:80]!r}; providers accept only names of at most 64 "
                "letters, digits, _ and -"
            )
        other = "fhir" if name in GRAMMAR.tool_names else self._owners[name].name if name in self._owners else None
        if other is not None:
            raise ArgumentError(f"the tool sources {other} and {source.name} both have a tool {name}: use one of them")
        self._schemas[name], self._owners[name] = schema, source

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tools."""
        return tuple(self._owners)

    @property
    def schemas(self) -> tuple[dict[str, Any], ...]:
        """OpenAI function schemas of the tools."""
        return tuple(self._schemas.values())

    @property
    def settings(self) -> dict[str, Json]:
        """The settings of each source, for records."""
        return {source.name: dict(source.settings) for source in self.sources}

    def source_of(self, tool: str) -> str:
        """Return the name of a tool's source; an empty text if the tool does not exist."""
        return self._owners[tool].name if tool in self._owners else ""

    async def call(self, tool: str, arguments: Mapping[str, Any] | str, context: EpisodeContext) -> str:
        """Return the result of a call; see `ToolSource.call`."""
        source = self._owners.get(tool)
        if source is None:
            return unknown_tool(tool, list(self.names))
        return await source.call(tool, arguments, context)

    async def aclose(self) -> None:
        """Close all sources."""
        async with AsyncExitStack() as stack:
            for source in self.sources:
                stack.push_async_callback(source.aclose)


FHIR = "fhir"
"""Name of the five FHIR tools and ``finish``, which are not a `ToolSource`: their calls are the agent's actions."""
TOOL_NAMES = (FHIR, "spec", "memory", "mcp:URL", "mcp:COMMAND")
"""Values of the setting ``tools``."""
_MCP = "mcp:"


def split_tools(tools: str | Sequence[str | ToolSource]) -> list[str | ToolSource]:
    """Return the setting ``tools`` as a list. A text is a list separated by commas."""
    names = tools.split(",") if isinstance(tools, str) else tools
    split = [tool.strip() if isinstance(tool, str) else tool for tool in names]
    return [tool for tool in split if tool]


def make_tool_sources(tools: Sequence[str | ToolSource], memory: str | Path | None = None) -> tuple[ToolSource, ...]:
    """Make the tool sources of the setting ``tools``; ``fhir`` is left out.

    Args:
        tools: Names of tool sources, or tool sources.
        memory: The memory file for ``memory``.

    Raises:
        UnknownNameError: A tool source does not exist.
        ArgumentError: The memory file is missing or superfluous, or a source cannot be opened.
    """
    if memory is not None and "memory" not in tools:
        raise ArgumentError("a memory file is of no use without the tool source memory: add memory to tools")
    return tuple(_make(tool, memory) if isinstance(tool, str) else tool for tool in tools if tool != FHIR)


def _make(name: str, memory: str | Path | None) -> ToolSource:
    if name == "spec":
        from fhir_gym.agents.tool_sources.specification import SpecificationTools

        return SpecificationTools()
    if name == "memory":
        if memory is None:
            raise ArgumentError("the tool source memory needs a memory file: memory=FILE")
        from fhir_gym.agents.tool_sources.memory import MemoryTools

        return MemoryTools(memory)
    if name.startswith(_MCP):
        from fhir_gym.agents.tool_sources.mcp import McpTools

        return McpTools(name.removeprefix(_MCP))
    raise UnknownNameError("tool source", name, TOOL_NAMES)
