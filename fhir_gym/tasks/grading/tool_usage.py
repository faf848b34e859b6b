"""Measure how an episode used its tools: requests and errors by tool, and similarity to the task's tool templates.

The measures count the interactions that the server reports (`Response.done`), whatever the URLs look like. Only the use
of prohibited tools affects success.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict

from fhir_gym.fhir.messages import Interaction
from fhir_gym.tasks.grading.end_state import LoggedRequest, read_by_verdicts


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
        lcs=max(template_overlap.lcs for template_overlap in each),
        jaccard=max(template_overlap.jaccard for template_overlap in each),
        f1=max(template_overlap.f1 for template_overlap in each),
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
    for tool in first:
        previous = lengths[:]
        for n, other in enumerate(second, 1):
            lengths[n] = previous[n - 1] + 1 if tool == other else max(previous[n], lengths[n - 1])
    return lengths[-1]


Tool = Literal["create", "search", "read", "update", "patch", "delete", "history", "other"]

_TOOLS: Mapping[str, Tool] = {**{tool: tool for tool in get_args(Tool)}, "vread": "history"}
_TYPE = re.compile(rb'"resourceType"\s*:\s*"([A-Za-z]+)"|"([A-Z][A-Za-z]+)/[^"/ ]+"')


class Calls(BaseModel):
    """Number of requests with one tool for one resource type.

    Attributes:
        resource_type: The resource type; empty for requests without a type, such as a search page.
        requests: Number of requests.
        errors: Number of error responses.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tool: Tool
    resource_type: str
    requests: int
    errors: int


class ToolUsage(BaseModel):
    """The tool usage of an episode. Each entry of a batch or transaction counts as a request.

    Operations that write (``$meta-add``) count as updates. Reads of an older version count as history. In comparisons
    with templates, a PATCH counts as an update, because the templates have no patch tool.

    Attributes:
        requests: Number of requests by tool.
        errors: Number of requests with an error status (400 or more), by tool.
        calls: Numbers of requests and errors, by tool and resource type.
        tools_selected: Whether the used tools include every tool of a template, as often as the template does; None
            without templates.
        tools_in_order: Whether a template is a subsequence of the used tools; None without templates.
        untouched: Required resource types that occur in no request and no response.
        prohibited: Prohibited tools that were used.
        overlap: Similarity to the templates; None without templates.
        reference: Number of requests of the reference solution: the length of the shortest template or, if a variation
            decides it, the number of requests in that variation. None if it is not known; see
            `fhir_gym.rollouts.recorder.with_reference`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    requests: dict[str, int]
    errors: dict[str, int]
    calls: tuple[Calls, ...] = ()
    tools_selected: bool | None = None
    tools_in_order: bool | None = None
    untouched: tuple[str, ...] = ()
    prohibited: tuple[str, ...] = ()
    overlap: Overlap | None = None
    reference: int | None = None

    @property
    def total(self) -> int:
        """Number of all requests."""
        return sum(self.requests.values())


def requests_answered(logged: Iterable[LoggedRequest]) -> int:
    """Return the number of requests that the server answered; each entry of a Bundle counts."""
    return sum(1 for _ in _interactions(logged))


def measure(
    logged: Sequence[LoggedRequest],
    *,
    templates: Sequence[Sequence[str]] = (),
    required: Iterable[str] = (),
    prohibited: Iterable[str] = (),
    reference: int | None = None,
) -> ToolUsage:
    """Measure the tool usage of an episode.

    Args:
        logged: The requests.
        templates: Tool sequences that solve the task.
        required: Required resource types.
        prohibited: Prohibited tools.
        reference: See `ToolUsage`.
    """
    calls = [(_tool(interaction), interaction.resource_type) for interaction in _interactions(logged)]
    failures = [
        (_tool(interaction), interaction.resource_type)
        for interaction in _interactions(logged)
        if interaction.status >= 400
    ]
    pairs, failed_pairs = Counter(calls), Counter(failures)
    used, failed = (Counter(tool for tool, _ in some) for some in (calls, failures))
    sequence = ["update" if tool == "patch" else tool for tool, _ in calls]
    return ToolUsage(
        requests=dict(sorted(used.items())),
        errors=dict(sorted(failed.items())),
        calls=tuple(
            Calls(tool=tool, resource_type=kind, requests=count, errors=failed_pairs[tool, kind])
            for (tool, kind), count in sorted(pairs.items())
        ),
        tools_selected=any(has_all(sequence, template) for template in templates) if templates else None,
        tools_in_order=any(in_order(sequence, template) for template in templates) if templates else None,
        untouched=_untouched(logged, required),
        prohibited=prohibited_uses(logged, prohibited),
        overlap=overlap(sequence, templates),
        reference=reference,
    )


def prohibited_uses(logged: Iterable[LoggedRequest], prohibited: Iterable[str]) -> tuple[str, ...]:
    """The sorted prohibited tools that the agent used, including uses that the server refused.

    A PUT that creates a resource counts as create and as update. Deleting a resource that the agent itself created does
    not count.
    """
    created: set[tuple[str, str]] = set()
    used: set[str] = set()
    for interaction in _interactions(logged):
        name = (interaction.resource_type, interaction.id)
        if interaction.effect == "created":
            created.add(name)
            used.add("create")
        if interaction.kind != "delete" or name not in created:
            used.add(_tool(interaction))
    return tuple(sorted({*prohibited} & used))


def _untouched(logged: Sequence[LoggedRequest], required: Iterable[str]) -> tuple[str, ...]:
    """The required types that occur in no URL, body or response."""
    touched = {interaction.resource_type for interaction in _interactions(logged)}
    left = [kind for kind in required if kind not in touched]
    texts = (
        text
        for by_verdict in read_by_verdicts(logged)
        for text in (by_verdict.request.body, by_verdict.response.content)
    )
    while left and (text := next(texts, None)) is not None:
        types = {match[1] or match[2] for match in _TYPE.finditer(text)}
        left = [kind for kind in left if kind.encode() not in types]
    return tuple(left)


def _tool(interaction: Interaction) -> Tool:
    return _TOOLS.get(interaction.kind, "other")


def _interactions(logged: Iterable[LoggedRequest]) -> Iterator[Interaction]:
    """Yield the interactions that the server performed, including each entry of a Bundle."""
    return (interaction for request in logged for interaction in request.response.done)
