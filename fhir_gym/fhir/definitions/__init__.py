"""FHIR R4 (4.0.1) as tables: resource types, elements, required codes, search parameters, the patient compartment.

`scripts/derive_definitions.py` derives the tables from HL7's official package. Tables other than the list of types are
read on first use.
"""

from __future__ import annotations

from fhir_gym.fhir.definitions._codes import bound_value_set, codes, enum_name, is_complete, value_set
from fhir_gym.fhir.definitions._elements import Element, children, modifiers
from fhir_gym.fhir.definitions._files import (
    DATA_TYPES,
    PRIMITIVES,
    RESOURCE_TYPE_SET,
    RESOURCE_TYPES,
    patient_parameters,
)
from fhir_gym.fhir.definitions._search import SearchParameter, definition_ids, search_parameters
from fhir_gym.fhir.definitions._validation import (
    Binding,
    CodeSystem,
    Constraint,
    ExtensionDefinition,
    binding,
    code_system,
    constraints,
    extension,
    profiled_type,
    unit_codes,
)

__all__ = [
    "DATA_TYPES",
    "PRIMITIVES",
    "RESOURCE_TYPES",
    "RESOURCE_TYPE_SET",
    "Binding",
    "CodeSystem",
    "Constraint",
    "Element",
    "ExtensionDefinition",
    "SearchParameter",
    "binding",
    "bound_value_set",
    "children",
    "code_system",
    "codes",
    "constraints",
    "definition_ids",
    "enum_name",
    "extension",
    "is_complete",
    "modifiers",
    "patient_parameters",
    "profiled_type",
    "search_parameters",
    "unit_codes",
    "value_set",
]
