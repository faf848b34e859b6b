"""Two runs side by side: each episode that both have played, with both results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations
from typing import Any, Self

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from fhir_gym.web.context import ExportedPage, ViewerContext
from fhir_gym.web.episode_query import PAGE_SIZE, number_of_pages, page_number
from fhir_gym.web.rollout_index import RolloutIndex

OUTCOMES = {
    "both": "Both succeeded",
    "first": "Only the first run succeeded",
    "second": "Only the second run succeeded",
    "neither": "Neither succeeded",
    "unjudged": "Not judged in one run",
    "unpaired": "Played in one run only",
}
"""The groups of pairs."""
_MAX_EXPORTED_RUNS = 6
"""Number of runs of which an export compares each with each other."""
_MAX_OPTIONS = 500
"""Number of runs to choose from."""
_SIDE = ("file", "line", "success", "reward", "steps", "tokens", "stop_reason")
_KEY = ("env_id", "world", "task", "variation", "phrasing", "repeat")
# If a run has played an episode several times, the first judged record counts, as in reports.
_PAIRS = f"""
WITH best AS (
    SELECT *, row_number() OVER (
        PARTITION BY run, {", ".join(_KEY)} ORDER BY success IS NULL, CASE WHEN success IS NULL THEN -id ELSE id END
    ) AS rank FROM episode WHERE run IN (:first, :second)
), pair AS (
    SELECT {", ".join(_KEY)}, max(title) AS title,
    {
    ", ".join(
        f"max(CASE WHEN run = :{side} THEN {name} END) AS {side}_{name}"
        for side in ("first", "second")
        for name in _SIDE
    )
}
    FROM best WHERE rank = 1 GROUP BY {", ".join(_KEY)}
), judged AS (
    SELECT *, CASE
        WHEN first_line IS NULL OR second_line IS NULL THEN 'unpaired'
        WHEN first_success IS NULL OR second_success IS NULL THEN 'unjudged'
        WHEN first_success AND second_success THEN 'both'
        WHEN first_success THEN 'first'
        WHEN second_success THEN 'second'
        ELSE 'neither'
    END AS outcome FROM pair
)
"""
_COLUMNS = (*_KEY, "title", "outcome", *(f"{side}_{name}" for side in ("first", "second") for name in _SIDE))


@dataclass(frozen=True)
class ComparisonQuery:
    """What the page shows.

    Attributes:
        first: Number of the first run.
        second: Number of the second run.
        show: A key of `OUTCOMES`; empty for all pairs.
        page: Number of the page of the table, from 1.
    """

    first: int
    second: int
    show: str = ""
    page: int = 1

    @classmethod
    def of(cls, parameters: Mapping[str, str], index: RolloutIndex) -> Self:
        """Return the query of a URL. Without known runs, the page compares the first two."""
        runs = [run.id for run in index.runs()]
        named = {str(run): run for run in runs}
        first = named.get(parameters.get("first", ""), runs[0] if runs else 0)
        others = [run for run in runs if run != first]
        second = named.get(parameters.get("second", ""), others[0] if others else first)
        show = parameters.get("show", "")
        return cls(first, second, show if show in OUTCOMES else "", page_number(parameters.get("page", "")))

    def url(self, **changes: object) -> dict[str, object]:
        """Return the parameters of a URL after changes; without a change of the page, its first page."""
        fields = {**asdict(self), "page": 1, **changes}
        return {name: value for name, value in fields.items() if value != "" and (name, value) != ("page", 1)}


def routes(context: ViewerContext) -> list[BaseRoute]:
    """Return the route of the comparison."""

    def compare(request: Request) -> Response:
        return HTMLResponse(render(context, ComparisonQuery.of(request.query_params, context.index)))

    return [Route("/compare", compare, name="compare")]


def exported(context: ViewerContext) -> Iterator[ExportedPage]:
    """Yield the comparisons of the first runs, whole and by outcome."""
    runs = [run.id for run in context.index.runs()][:_MAX_EXPORTED_RUNS]
    for number, (first, second) in enumerate(combinations(runs, 2)):
        counts = _counts(context.index, ComparisonQuery(first, second))
        for show, pairs in [("", sum(counts.values())), *((outcome, counts.get(outcome, 0)) for outcome in OUTCOMES)]:
            for page in range(1, number_of_pages(pairs) + 1):
                query = ComparisonQuery(first, second, show, page)
                names = [context.links.comparison(**query.url(page=page))]
                if number == 0 and not show and page == 1:
                    names.append(context.links.comparison())
                yield from (ExportedPage(name, partial(render, context, query)) for name in names if name is not None)


def render(context: ViewerContext, query: ComparisonQuery) -> str:
    """Return the page as HTML."""
    index = context.index
    counts = _counts(index, query)
    pairs = counts.get(query.show, 0) if query.show else sum(counts.values())
    last = number_of_pages(pairs)
    page = min(query.page, last)
    rows = index.select(
        f"{_PAIRS} SELECT {', '.join(_COLUMNS)} FROM judged WHERE :show IN ('', outcome)"
        f" ORDER BY {', '.join(_KEY)} LIMIT {PAGE_SIZE} OFFSET :offset",
        {**_parameters(query), "offset": (page - 1) * PAGE_SIZE},
    )
    runs = index.runs()[:_MAX_OPTIONS]
    return context.render(
        "comparison.html.j2",
        query=query,
        runs=runs,
        names={run.id: run.name for run in index.runs()},
        others=list(combinations(runs[:_MAX_EXPORTED_RUNS], 2)),
        outcomes=OUTCOMES,
        counts=counts,
        pairs=pairs,
        rows=[dict(zip(_COLUMNS, row, strict=True)) for row in rows],
        page=page,
        last_page=last,
    )


def _counts(index: RolloutIndex, query: ComparisonQuery) -> dict[str, int]:
    """Return the number of pairs of each outcome."""
    name = f"comparison of {query.first} and {query.second}"
    sql = f"{_PAIRS} SELECT outcome, count(*) FROM judged GROUP BY 1"
    return index.cached(name, lambda: dict(index.select(sql, _parameters(query))))


def _parameters(query: ComparisonQuery) -> dict[str, Any]:
    return {"first": query.first, "second": query.second, "show": query.show}
