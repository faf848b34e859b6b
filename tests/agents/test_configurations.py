from __future__ import annotations

from pathlib import Path

import pytest

from fhir_gym.agents import CONFIGURATIONS, Configuration, chat_settings, make_agent
from fhir_gym.agents.memory import Memory
from fhir_gym.agents.prompts import system_prompt
from fhir_gym.errors import FhirGymError, UnknownNameError


def test_the_configurations_of_the_study_come_first() -> None:
    study = {
        name: (configuration.tools, configuration.memory) for name, configuration in list(CONFIGURATIONS.items())[:5]
    }
    assert study == {
        "baseline": (("fhir",), None),
        "spec": (("fhir", "spec"), None),
        "memory": (("fhir", "memory"), "plain"),
        "memory-spec": (("fhir", "memory"), "spec"),
        "memory-spec-runtime": (("fhir", "spec", "memory"), "spec"),
    }
    assert [name for name, configuration in CONFIGURATIONS.items() if configuration.protocol == "text"] == [
        "text",
        "medagentbench",
    ]
    assert all(
        configuration.name == name and configuration.about.endswith(".")
        for name, configuration in CONFIGURATIONS.items()
    )


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_configuration_makes_an_agent(name: str, tmp_path: Path) -> None:
    pytest.importorskip("openai")
    path = tmp_path / "memory.jsonl"
    Memory().save(path)
    configuration = CONFIGURATIONS[name]
    file = path if configuration.memory else None
    agent = make_agent("chat", model="m", base_url="http://localhost:1/v1", **chat_settings(name, file))
    tools = agent.settings.get("tools", {})
    assert isinstance(tools, dict) and ["fhir", *tools][: len(configuration.tools)] == list(configuration.tools)
    assert agent.settings["protocol"] == configuration.protocol
    assert agent.settings.get("system") == configuration.system
    assert str(tmp_path) not in str(agent.settings)  # the memory is known by its hash


def test_wrong_settings(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'memory-spec'"):
        chat_settings("memory_spec")
    with pytest.raises(FhirGymError, match="memory-spec needs a memory file"):
        chat_settings("memory-spec")
    with pytest.raises(FhirGymError, match="text has no memory"):
        chat_settings("text", tmp_path / "m.jsonl")
    own = Configuration("mine", "My own.", "text", ("spec",), system="Be brief.")
    assert chat_settings(own) == {"protocol": "text", "tools": ["spec"], "system": "Be brief."}


def test_system_prompts_name_what_the_model_may_use() -> None:
    both = system_prompt("tools", ["spec", "memory"])
    assert both.startswith(system_prompt("tools")) and "specification" in both and "lessons" in both
    assert system_prompt("text").startswith("You work with health records") and "tool" not in system_prompt("text")
    assert "never as a tool call" in system_prompt("text", ["spec"])
    others = system_prompt("tools", ["mcp:one", "mcp:two"])
    assert others.count("as their descriptions say") == 1
