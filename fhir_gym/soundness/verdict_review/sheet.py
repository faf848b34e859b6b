"""The sheet of a review: counts per task, disputed checks, each disagreement with its reason and evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from fhir_gym.printable import markdown_text
from fhir_gym.soundness.verdict_review.opinions import DISAGREEMENTS, OPINIONS, VerdictReview

COLUMNS = (
    "env",
    "task",
    "title",
    "reviewed",
    *(name.removeprefix("validator_").replace("_", " ") for name in OPINIONS),
)
"""Columns of `counts`."""
_MAX_TEXT = 1_000


def counts(reviews: Sequence[VerdictReview]) -> list[tuple[str | int, ...]]:
    """Return the rows of a table that counts the opinions on each task, with a total in the last row."""
    rows: list[tuple[str | int, ...]] = []
    for (env_id, task), group in groupby(reviews, key=lambda one: (one.env_id, one.task)):
        found = list(group)
        rows.append((env_id, task, found[0].title, len(found), *_by_opinion(found)))
    return [*rows, ("all", "", "", len(reviews), *_by_opinion(reviews))]


def _by_opinion(reviews: Sequence[VerdictReview]) -> list[int]:
    found = Counter(review.opinion for review in reviews)
    return [found[name] for name in OPINIONS]


def to_markdown(reviews: Sequence[VerdictReview]) -> str:
    """Return the sheet.

    Args:
        reviews: The reviews, in the order of `VerdictReview.place`.
    """
    models = ", ".join(markdown_text(name) for name in sorted({review.model for review in reviews}))
    lines = [
        f"# Review of {len(reviews)} verdicts by {models}",
        "",
        "These are opinions of a model. They are not part of any score; read the record before you change a check.",
        "",
        *_table(COLUMNS, counts(reviews)),
        *_disputed_checks(reviews),
        *_disagreements(reviews),
        *_without_opinion(reviews),
    ]
    return "\n".join(lines) + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str | int]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(markdown_text(str(cell), _MAX_TEXT) for cell in row)} |"


def _disputed_checks(reviews: Sequence[VerdictReview]) -> Iterator[str]:
    found = Counter(
        (review.env_id, review.task, review.check or "(none named)", review.opinion)
        for review in reviews
        if review.opinion in DISAGREEMENTS
    )
    if found:
        rows = [(*key, count) for key, count in sorted(found.items(), key=lambda item: (-item[1], item[0]))]
        yield from ("", "## Disputed checks", "")
        yield from _table(("env", "task", "check", "opinion", "times"), rows)


def _disagreements(reviews: Sequence[VerdictReview]) -> Iterator[str]:
    disputed = [review for review in reviews if review.opinion in DISAGREEMENTS]
    if disputed:
        yield from ("", "## Disagreements")
    for review in disputed:
        yield from ("", f"### {_name(review)}", "")
        verdict = "success" if review.success else "failure"
        found = "in the log" if review.evidence_found else "NOT in the log"
        evidence = f"{markdown_text(review.evidence, _MAX_TEXT)} ({found})" if review.evidence else "none given"
        yield f"- **Verdict**: {verdict}. {markdown_text(review.explanation, _MAX_TEXT)}"
        yield f"- **Opinion**: {markdown_text(review.opinion)}; check: {markdown_text(review.check) or 'none named'}"
        yield f"- **Reason**: {markdown_text(review.reason, _MAX_TEXT) or 'none given'}"
        yield f"- **Evidence**: {evidence}"


def _without_opinion(reviews: Sequence[VerdictReview]) -> Iterator[str]:
    found = [review for review in reviews if review.opinion in ("undecided", "unreadable")]
    if found:
        yield from ("", "## Undecided and unreadable", "")
    for review in found:
        why = markdown_text(review.problem or review.reason, _MAX_TEXT)
        yield f"- {_name(review)}: {markdown_text(review.opinion)}{f': {why}' if why else ''}"


def _name(review: VerdictReview) -> str:
    place = f"{review.env_id} task {review.task}, variation {review.variation}, phrasing {review.phrasing}"
    return markdown_text(f"{place}, repeat {review.repeat}, by {review.agent} (record {review.rollout})")
