"""Named configurations of the chat agent: those of FHIR-AgentEval's study, and the text protocols."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from fhir_gym.agents.chat_messages import ChatProtocol
from fhir_gym.errors import FhirGymError, UnknownNameError


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a model may use in an episode.

    Attributes:
        name: Name of the configuration.
        about: Description in one line.
        protocol: ``text`` or ``tools``.
        tools: The setting ``tools`` of `ChatAgent`.
        memory: How the memory was trained: ``plain`` (without the FHIR specification) or ``spec`` (with it); None for
            a configuration without memory.
        system: System prompt; None for the default of the protocol and the tools.
    """

    name: str
    about: str
    protocol: ChatProtocol
    tools: tuple[str, ...] = ()
    memory: Literal["plain", "spec"] | None = None
    system: str | None = None


CONFIGURATIONS: Mapping[str, Configuration] = MappingProxyType(
    {
        one.name: one
        for one in (
            Configuration("baseline", "FHIR tools only.", "tools", ("fhir",)),
            Configuration("spec", "FHIR tools, and the FHIR specification.", "tools", ("fhir", "spec")),
            Configuration(
                "memory",
                "FHIR tools, and a memory trained without the FHIR specification.",
                "tools",
                ("fhir", "memory"),
                "plain",
            ),
            Configuration(
                "memory-spec",
                "FHIR tools, and a memory trained with the FHIR specification.",
                "tools",
                ("fhir", "memory"),
                "spec",
            ),
            Configuration(
                "memory-spec-runtime",
                "FHIR tools, a memory trained with the FHIR specification, and the specification itself.",
                "tools",
                ("fhir", "spec", "memory"),
                "spec",
            ),
            Configuration("text", "Actions as text (GET, POST, ..., FINISH) with the default system prompt.", "text"),
            Configuration(
                "medagentbench",
                "Actions as text without a system prompt, as in MedAgentBench; for its rules use grading official.",
                "text",
                system="",
            ),
        )
    }
)
"""All configurations by name. The first five are those of the study."""


def chat_settings(configuration: str | Configuration, memory_file: str | Path | None = None) -> dict[str, Any]:
    """Return the settings of the agent ``chat`` for a configuration, without the model and the endpoint.

    Args:
        configuration: The configuration or its name.
        memory_file: The memory file of a configuration with memory.

    Raises:
        UnknownNameError: The configuration does not exist.
        FhirGymError: The memory file is missing or superfluous.

    Examples:
        >>> chat_settings("spec")
        {'protocol': 'tools', 'tools': ['fhir', 'spec']}
    """
    if isinstance(configuration, str):
        if configuration not in CONFIGURATIONS:
            raise UnknownNameError("configuration", configuration, CONFIGURATIONS)
        configuration = CONFIGURATIONS[configuration]
    name = configuration.name
    if configuration.memory is not None and memory_file is None:
        raise FhirGymError(f"the configuration {name} needs a memory file")
    if configuration.memory is None and memory_file is not None:
        raise FhirGymError(f"the configuration {name} has no memory: leave the memory file out")
    settings: dict[str, Any] = {"protocol": configuration.protocol}
    if set(configuration.tools) - {"fhir"}:  # the protocol alone says whether the FHIR tools are offered
        settings["tools"] = list(configuration.tools)
    if memory_file is not None:
        settings["memory"] = str(memory_file)
    if configuration.system is not None:
        settings["system"] = configuration.system
    return settings
