"""Curation of ActionReasoning task files: audit, human review, rewording and parameter sweeps."""

from fhir_gym.art_curation.audit import AuditReport, audit_cases, for_review
from fhir_gym.art_curation.rephrase import Rephraser
from fhir_gym.art_curation.review import apply_verdicts, entries, read_verdicts, review_page, review_sheet

__all__ = [
    "AuditReport",
    "Rephraser",
    "apply_verdicts",
    "audit_cases",
    "entries",
    "for_review",
    "read_verdicts",
    "review_page",
    "review_sheet",
]
