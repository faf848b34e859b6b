"""What searches look at: index tables, and the rows a resource has in them."""

from fhir_gym.fhir.index.extract import index_rows, references
from fhir_gym.fhir.index.plans import Field, Plan, plan
from fhir_gym.fhir.index.schema import INSERT, SCHEMA, TABLES

__all__ = ["INSERT", "SCHEMA", "TABLES", "Field", "Plan", "index_rows", "plan", "references"]
