"""Opinions of a model on verdicts: the implementation of ``fhir-gym tasks review``."""

from fhir_gym.soundness.verdict_review.opinions import COLUMNS, OPINIONS, Opinion, VerdictReview, counts, to_markdown
from fhir_gym.soundness.verdict_review.reviewer import REVIEWS, SHEET, ReviewRun, VerdictReviewer, read_reviews

__all__ = [
    "COLUMNS",
    "OPINIONS",
    "REVIEWS",
    "SHEET",
    "Opinion",
    "ReviewRun",
    "VerdictReview",
    "VerdictReviewer",
    "counts",
    "read_reviews",
    "to_markdown",
]
