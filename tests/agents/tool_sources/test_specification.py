from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

from fhir_gym.agents.tool_sources import ToolSource
from fhir_gym.agents.tool_sources.specification import SpecificationTools
from fhir_gym.specification import Specification

TOOLS = SpecificationTools()
SPEC = Specification()


def _call(name: str, arguments: Any) -> str:
    return asyncio.run(TOOLS.call(name, arguments, None))


def test_the_tools_answer_from_the_specification() -> None:
    assert _call("listResources", "") == SPEC.list_resources()
    assert _call("getStructureDefinition", {"resourceType": "Slot"}) == SPEC.structure_definition("Slot")
    narrowed = _call("getStructureDefinition", '{"resourceType": "Slot", "path": "status"}')
    assert narrowed == SPEC.structure_definition("Slot", "status")
    assert _call("getSearchParams", {"resourceType": "Slot"}) == SPEC.search_params("Slot")
    assert _call("getDataTypeDefinition", {"dataType": "Period"}) == SPEC.data_type_definition("Period")


def test_it_is_a_tool_source_whose_settings_name_the_version() -> None:
    assert isinstance(TOOLS, ToolSource) and TOOLS.name == "spec"
    assert TOOLS.settings == {"version": "4.0.1", "hash": SPEC.hash}
    names = [schema["function"]["name"] for schema in TOOLS.schemas()]
    assert names == ["listResources", "getStructureDefinition", "getSearchParams", "getDataTypeDefinition"]
    assert pickle.loads(pickle.dumps(TOOLS)).settings == TOOLS.settings


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("getStructureDefinitions", {"resourceType": "Slot"}),
        ("getStructureDefinition", {}),
        ("getStructureDefinition", "{"),
        ("getStructureDefinition", "[1]"),
        ("getStructureDefinition", {"resourceType": ["Slot"]}),
        ("getStructureDefinition", {"resourceType": "Slots"}),
        ("getStructureDefinition", {"resourceType": "Slot", "path": {"a": 1}}),
        ("getStructureDefinition", {"resourceType": "Slot", "path": "nowhere"}),
        ("getStructureDefinition", {"resourceType": "Slot", "x": 1}),
        ("getSearchParams", {"resourceType": "x" * 100_000}),
        ("getDataTypeDefinition", {"dataType": "Slot"}),
    ],
)
def test_mistakes_give_a_short_error_text(name: str, arguments: Any) -> None:
    found = _call(name, arguments)
    assert found.startswith("Error: ") and len(found) < 1_000
