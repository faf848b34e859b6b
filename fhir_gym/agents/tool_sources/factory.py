"""Make tool sources by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fhir_gym.agents.tool_sources import ToolSource
from fhir_gym.errors import FhirGymError, UnknownNameError

FHIR = "fhir"
"""Name of the five FHIR tools and ``finish``, which are not a `ToolSource`: their calls are the agent's actions."""
TOOL_NAMES = (FHIR, "spec", "memory", "mcp:URL", "mcp:COMMAND")
"""Values of the setting ``tools``."""
_MCP = "mcp:"


def split_tools(tools: str | Sequence[str | ToolSource]) -> list[str | ToolSource]:
    """Return the setting ``tools`` as a list. A text is a list separated by commas."""
    given = tools.split(",") if isinstance(tools, str) else tools
    split = [tool.strip() if isinstance(tool, str) else tool for tool in given]
    return [tool for tool in split if tool]


def make_tool_sources(tools: Sequence[str | ToolSource], memory: str | Path | None = None) -> tuple[ToolSource, ...]:
    """Make the tool sources of the setting ``tools``; ``fhir`` is left out.

    Args:
        tools: Names of tool sources, or tool sources.
        memory: The memory file for ``memory``.

    Raises:
        UnknownNameError: A tool source does not exist.
        FhirGymError: The memory file is missing or superfluous, or a source cannot be opened.
    """
    if memory is not None and "memory" not in tools:
        raise FhirGymError("a memory file is of no use without the tool source memory: add memory to tools")
    return tuple(_make(tool, memory) if isinstance(tool, str) else tool for tool in tools if tool != FHIR)


def _make(name: str, memory: str | Path | None) -> ToolSource:
    if name == "spec":
        from fhir_gym.agents.tool_sources.specification import SpecificationTools

        return SpecificationTools()
    if name == "memory":
        if memory is None:
            raise FhirGymError("the tool source memory needs a memory file: memory=FILE")
        from fhir_gym.agents.tool_sources.memory import MemoryTools

        return MemoryTools(memory)
    if name.startswith(_MCP):
        from fhir_gym.agents.tool_sources.mcp import McpTools

        return McpTools(name.removeprefix(_MCP))
    raise UnknownNameError("tool source", name, TOOL_NAMES)
