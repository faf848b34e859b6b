"""What searches look at: index tables, and the rows a resource has in them."""

from fhir_gym.fhir.index.extract import IndexRows, index_rows, index_rows_of, references
from fhir_gym.fhir.index.plans import Field, Plan, plan
from fhir_gym.fhir.index.schema import INSERT, SCHEMA, TABLES

__all__ = [
    "INSERT",
    "SCHEMA",
    "TABLES",
    "Field",
    "IndexRows",
    "Plan",
    "index_rows",
    "index_rows_of",
    "plan",
    "references",
]
