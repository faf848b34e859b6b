"""The index tables of searches, and the rows of a resource in them."""

from fhir_gym.fhir.index.extract import IndexRows, index_rows, index_rows_of, references
from fhir_gym.fhir.index.specs import INSERT, RID_COLUMN, SCHEMA, TABLES, IndexField, IndexSpec, index_spec

__all__ = [
    "INSERT",
    "RID_COLUMN",
    "SCHEMA",
    "TABLES",
    "IndexField",
    "IndexRows",
    "IndexSpec",
    "index_rows",
    "index_rows_of",
    "index_spec",
    "references",
]
