"""Servers for clients of the Model Context Protocol (MCP): FHIR tools on worlds and tasks, and look-up tools.

The servers need the extra ``mcp``; the tool sets work without it.
"""

from fhir_gym.mcp_servers.fhir_tools import WorldTools
from fhir_gym.mcp_servers.server import make_app, make_server, require_sdk, serve_http, serve_stdio
from fhir_gym.mcp_servers.sessions import SessionError
from fhir_gym.mcp_servers.task_tools import FEEDBACKS, Feedback, TaskTools
from fhir_gym.mcp_servers.toolset import McpClient, SourceTools, ToolResult, ToolSet

__all__ = [
    "FEEDBACKS",
    "Feedback",
    "McpClient",
    "SessionError",
    "SourceTools",
    "TaskTools",
    "ToolResult",
    "ToolSet",
    "WorldTools",
    "make_app",
    "make_server",
    "require_sdk",
    "serve_http",
    "serve_stdio",
]
