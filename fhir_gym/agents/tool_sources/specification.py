"""The FHIR R4 specification as tools of a chat agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from typing_extensions import override

from fhir_gym.agents.protocol import EpisodeContext
from fhir_gym.agents.tool_sources import ToolSource, check_arguments, function_schema, unknown_tool
from fhir_gym.specification import Specification
from fhir_gym.types import Json

_RESOURCE_TYPE = {"type": "string", "description": "FHIR R4 resource type, such as Patient."}
_SCHEMAS = {
    schema["function"]["name"]: schema
    for schema in (
        function_schema("listResources", "List the FHIR R4 resource types with a short description.", {}),
        function_schema(
            "getStructureDefinition",
            "Get the elements of a resource type: cardinality, types, reference targets, meaning, codes.",
            {
                "resourceType": _RESOURCE_TYPE,
                "path": {
                    "type": "string",
                    "description": "Element, such as participant.actor, to get only this element in full detail.",
                },
            },
            ("resourceType",),
        ),
        function_schema(
            "getSearchParams",
            "Get the search parameters of a resource type and how to write their values.",
            {"resourceType": _RESOURCE_TYPE},
            ("resourceType",),
        ),
        function_schema(
            "getDataTypeDefinition",
            "Get the elements of a data type, or the format of a primitive type.",
            {"dataType": {"type": "string", "description": "FHIR R4 data type, such as Period or dateTime."}},
            ("dataType",),
        ),
    )
}


class SpecificationTools(ToolSource):
    """Tools that answer from `Specification`: `listResources`, `getStructureDefinition`, `getSearchParams` and more."""

    def __init__(self) -> None:
        self.name = "spec"
        self._specification = Specification()
        self.settings: Mapping[str, Json] = {"version": self._specification.version, "hash": self._specification.hash}

    @override
    def schemas(self) -> list[dict[str, Any]]:
        return list(_SCHEMAS.values())

    @override
    async def call(self, name: str, arguments: Mapping[str, Any] | str, context: EpisodeContext | None = None) -> str:
        if name not in _SCHEMAS:
            return unknown_tool(name, list(_SCHEMAS))
        checked = check_arguments(_SCHEMAS[name], arguments)
        if isinstance(checked, str):
            return checked
        answer: dict[str, Callable[[], str]] = {
            "listResources": self._specification.list_resources,
            "getStructureDefinition": lambda: self._specification.structure_definition(
                checked["resourceType"], checked.get("path", "")
            ),
            "getSearchParams": lambda: self._specification.search_params(checked["resourceType"]),
            "getDataTypeDefinition": lambda: self._specification.data_type_definition(checked["dataType"]),
        }
        return answer[name]()

    @override
    async def aclose(self) -> None:
        return None
