"""What an MCP server offers: tools with JSON schemas, and the results of their calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fhir_gym.agents.tool_sources import ERROR, ToolSource
from fhir_gym.types import Json


@dataclass(frozen=True, slots=True)
class McpClient:
    """The program that calls a tool, as it describes itself.

    Attributes:
        name: The name; empty if unknown.
        version: The version; empty if unknown.
    """

    name: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call.

    Attributes:
        text: The result for the model.
        error: Whether the call was refused or failed.
        data: The result as data for programs; None if there is only text.
    """

    text: str
    error: bool = False
    data: Mapping[str, Json] | None = None


class ToolSet(Protocol):
    """The tools of an MCP server.

    Attributes:
        name: Name of the server.
        instructions: What the tools are for; clients show this to their model.
        read_only: Names of the tools that change nothing.
    """

    name: str
    instructions: str
    read_only: frozenset[str]

    def schemas(self) -> list[dict[str, Any]]:
        """Return the OpenAI function schemas of the tools."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any], client: McpClient) -> ToolResult:
        """Call a tool.

        Args:
            name: Name of the tool, possibly unknown.
            arguments: The arguments, possibly invalid.
            client: The caller.

        Raises:
            FhirGymError: The call is refused or failed. The message is meant for the client.
        """
        ...

    def reap(self) -> None:
        """Close what clients opened and no longer use. The server calls this method regularly."""

    async def aclose(self) -> None:
        """Close everything; the server stops."""


class SourceTools:
    """The tools of a `ToolSource`, such as the FHIR specification, for an MCP server.

    Args:
        source: The tools; all of them only look things up.
        instructions: What the tools are for.
    """

    def __init__(self, source: ToolSource, instructions: str) -> None:
        self._source = source
        self.name, self.instructions = f"fhir-gym-{source.name}", instructions
        self.read_only = frozenset(schema["function"]["name"] for schema in source.schemas())

    def schemas(self) -> list[dict[str, Any]]:
        """Return the OpenAI function schemas of the tools."""
        return self._source.schemas()

    async def call(self, name: str, arguments: Mapping[str, Any], client: McpClient) -> ToolResult:
        """Call a tool of the source."""
        text = await self._source.call(name, arguments, None)
        return ToolResult(text, error=text.startswith(ERROR))

    def reap(self) -> None:
        """Do nothing: clients open nothing."""

    async def aclose(self) -> None:
        """Close the source."""
        await self._source.aclose()
