"""Opinions of a model on verdicts: the implementation of ``fhir-gym tasks review``."""

from fhir_gym.soundness.verdict_review.opinions import OPINIONS, Opinion, VerdictReview
from fhir_gym.soundness.verdict_review.reviewer import REVIEWS, SHEET, ReviewRun, VerdictReviewer, read_reviews
from fhir_gym.soundness.verdict_review.sheet import COLUMNS, counts, to_markdown

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
