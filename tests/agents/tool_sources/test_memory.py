"""The memory as tools of a chat agent."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest

from fhir_gym.agents.memory import Memory, Reflection
from fhir_gym.agents.tool_sources import ERROR, ToolSource
from fhir_gym.agents.tool_sources.memory import MemoryTools
from fhir_gym.errors import MemoryFileError

TIPS = [Reflection(kind="micro", text=f"Tip {n}.", resource_type="Slot", operation="search") for n in range(3)]
PLAN = Reflection(kind="macro", text="Read the appointment first.", situation="Cancel an appointment of <name>.")


@pytest.fixture
def tools() -> MemoryTools:
    return MemoryTools(Memory([*TIPS, PLAN]), micro_k=2)


def call(tools: MemoryTools, name: str, arguments: Any) -> str:
    return asyncio.run(tools.call(name, arguments, None))


def test_micro_reflections_are_numbered(tools: MemoryTools) -> None:
    for operation in ("search", "searchResources"):
        result = call(tools, "getMicroReflections", {"resourceType": "Slot", "operation": operation})
        assert result == "1. Tip 0.\n2. Tip 1."


def test_macro_reflections_show_their_situation(tools: MemoryTools) -> None:
    result = call(tools, "getMacroReflections", '{"task": "Please cancel the appointment of Mei Lee."}')
    assert result == "1. Similar task: Cancel an appointment of <name>.\n   Advice: Read the appointment first."


def test_an_empty_memory_says_so() -> None:
    tools = MemoryTools(Memory())
    assert call(tools, "getMacroReflections", {"task": "a"}) == "No reflections about tasks are stored."
    result = call(tools, "getMicroReflections", {"resourceType": "Slot", "operation": "get"})
    assert result == "No reflections about read of Slot are stored."


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("getMicroReflection", {}, "did you mean 'getMicroReflections'"),
        ("getMicroReflections", "{", "not valid JSON"),
        ("getMicroReflections", {"resourceType": "Slot"}, "'operation' is missing"),
        ("getMicroReflections", {"resourceType": "Slots", "operation": "search"}, "did you mean 'Slot'"),
        ("getMicroReflections", {"resourceType": "Slot", "operation": "merge"}, "Known: search, read"),
        ("getMacroReflections", {"task": 3}, "type string"),
        ("getMacroReflections", None, "'task' is missing"),
    ],
)
def test_bad_calls_get_an_error_text(tools: MemoryTools, name: str, arguments: object, expected: str) -> None:
    result = call(tools, name, arguments)
    assert result.startswith(ERROR)
    assert expected in result


def test_tools_are_portable_and_identify_the_memory(tools: MemoryTools, tmp_path: Path) -> None:
    assert isinstance(tools, ToolSource)
    path = tmp_path / "memory.jsonl"
    tools.memory.save(path)
    copy = pickle.loads(pickle.dumps(MemoryTools(path, micro_k=2)))
    assert copy.settings == tools.settings
    assert copy.settings["hash"] == tools.memory.hash
    assert call(copy, "getMacroReflections", {"task": "cancel"}) == call(
        tools, "getMacroReflections", {"task": "cancel"}
    )
    assert MemoryTools(Memory(TIPS)).settings != tools.settings


def test_a_file_that_is_no_memory(tmp_path: Path) -> None:
    with pytest.raises(MemoryFileError, match="cannot be read"):
        MemoryTools(tmp_path / "none")
