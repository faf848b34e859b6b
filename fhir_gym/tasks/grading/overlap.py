"""Measure the similarity of two sequences of tools."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import BaseModel, ConfigDict


class Overlap(BaseModel):
    """Similarity of the used tools to the templates, from 0 to 1. Each measure is the maximum over all templates.

    Attributes:
        lcs: Length of the longest common subsequence divided by the length of the longer sequence.
        jaccard: Jaccard index of the multisets of tools.
        f1: Harmonic mean of precision and recall of the used tools against the template.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    lcs: float
    jaccard: float
    f1: float


def has_all(used: Iterable[str], template: Iterable[str]) -> bool:
    """Whether the used tools include every tool of the template, at least as often as the template does."""
    used, template = list(used), list(template)
    return all(used.count(tool) >= template.count(tool) for tool in {*template})


def in_order(used: Iterable[str], template: Sequence[str]) -> bool:
    """Whether the template is a subsequence of the used tools."""
    left = iter(used)
    return all(tool in left for tool in template)


def overlap(used: Sequence[str], templates: Iterable[Sequence[str]]) -> Overlap | None:
    """Return the similarity of the used tools to the templates; None without templates."""
    each = [_with(used, template) for template in templates]
    if not each:
        return None
    return Overlap(
        lcs=max(one.lcs for one in each), jaccard=max(one.jaccard for one in each), f1=max(one.f1 for one in each)
    )


def _with(used: Sequence[str], template: Sequence[str]) -> Overlap:
    common = sum(min(used.count(tool), template.count(tool)) for tool in {*template})
    longer, both = max(len(used), len(template)), len(used) + len(template)
    return Overlap(
        lcs=_lcs(used, template) / longer if longer else 1.0,
        jaccard=common / (both - common) if both else 1.0,
        f1=2 * common / both if both else 1.0,
    )


def _lcs(first: Sequence[str], second: Sequence[str]) -> int:
    lengths = [0] * (len(second) + 1)
    for one in first:
        previous = lengths[:]
        for n, other in enumerate(second, 1):
            lengths[n] = previous[n - 1] + 1 if one == other else max(previous[n], lengths[n - 1])
    return lengths[-1]
