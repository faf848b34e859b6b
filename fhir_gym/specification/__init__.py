"""The FHIR R4 specification as compact text for a model: resource types, elements, search parameters, data types."""

from fhir_gym.specification.specification import VERSION, Specification

__all__ = ["VERSION", "Specification"]
