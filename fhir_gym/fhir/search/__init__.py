"""The search interaction: from a query string to a searchset Bundle."""

from fhir_gym.fhir.search.engine import criteria, match, page, search

__all__ = ["criteria", "match", "page", "search"]
