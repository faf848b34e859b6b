"""The table of episodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from fhir_gym.web.context import ExportedPage, ViewerContext
from fhir_gym.web.episode_query import PAGE_SIZE, EpisodeQuery, number_of_pages
from fhir_gym.web.episode_row import COLUMNS
from fhir_gym.web.rollout_index import RolloutIndex

_MAX_OPTIONS = 500
"""Number of values of a filter; of more values, the most frequent are shown."""
_MAX_BAD_LINES = 20
_COLUMN_TITLES = (
    ("task", "Task"),
    ("run", "Run"),
    ("result", "Result"),
    ("reward", "Reward"),
    ("stop", "Stop reason"),
    ("steps", "Steps"),
    ("invalid", "Invalid actions"),
    ("tokens", "Tokens"),
    ("seconds", "Time"),
    ("failed", "Failed checks"),
)
_NUMERIC = frozenset({"reward", "steps", "invalid", "tokens", "seconds"})


@dataclass(frozen=True, slots=True)
class Option:
    """A value of a filter.

    Attributes:
        value: The value in the URL.
        label: Its text.
        episodes: Number of episodes; None if it was not counted.
    """

    value: str
    label: str
    episodes: int | None = None


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter of the table.

    Attributes:
        name: Name of the parameter in the URL.
        label: Its text.
        options: The values to choose from.
    """

    name: str
    label: str
    options: tuple[Option, ...]


def routes(context: ViewerContext) -> list[BaseRoute]:
    """Return the routes of the table."""

    def episodes(request: Request) -> Response:
        return HTMLResponse(render(context, EpisodeQuery.of(request.query_params)))

    return [Route("/", episodes, name="episodes")]


def exported(context: ViewerContext) -> Iterator[ExportedPage]:
    """Yield the pages of the whole table, and of each value of each filter."""
    index = context.index
    queries = [EpisodeQuery()]
    for episode_filter in filters(index):
        queries += [EpisodeQuery.of({episode_filter.name: option.value}) for option in episode_filter.options]
    for query in queries:
        where, parameters = query.where(None)
        [(episodes,)] = index.select(f"SELECT count(*) FROM episode WHERE {where}", parameters)
        for page in range(1, number_of_pages(episodes) + 1):
            exported_query = EpisodeQuery.of({name: str(value) for name, value in query.url(page=page).items()})
            name = context.links.episodes(**exported_query.url(page=page))
            if name is not None:
                yield ExportedPage(name, partial(render, context, exported_query))


def render(context: ViewerContext, query: EpisodeQuery) -> str:
    """Return the page with the table."""
    index = context.index
    where, parameters = context.where(query)
    counts = f"SELECT count(*), count(success), coalesce(sum(success), 0) FROM episode WHERE {where}"
    [(episodes, judged, successes)] = index.select(counts, parameters)
    last = number_of_pages(episodes)
    page = min(query.page, last)
    columns = ("id", "file", "line", "run", *COLUMNS)
    sql = f"SELECT {', '.join(columns)} FROM episode WHERE {where} ORDER BY {query.order()} LIMIT ? OFFSET ?"
    page_rows = index.select(sql, [*parameters, PAGE_SIZE, (page - 1) * PAGE_SIZE])
    rows = [dict(zip(columns, row, strict=True)) for row in page_rows]
    runs = {run.id: run.name for run in index.runs()}
    paths = [str(path) for path in index.paths]
    return context.render(
        "episodes.html.j2",
        query=query,
        filters=filters(index),
        titles=_COLUMN_TITLES
        if len(runs) > 1
        else tuple(column_title for column_title in _COLUMN_TITLES if column_title[0] != "run"),
        numeric=_NUMERIC,
        rows=rows,
        checks=_failed_checks(index, [row["id"] for row in rows]),
        runs=runs,
        page=page,
        last_page=last,
        episodes=episodes,
        judged=judged,
        successes=successes,
        state=index.state,
        paths=paths,
        bad_lines=index.select(f"SELECT file, line, problem FROM bad_line LIMIT {_MAX_BAD_LINES}"),
    )


def filters(index: RolloutIndex) -> list[Filter]:
    """Return the filters that distinguish episodes of these files."""
    return index.cached("filters", lambda: _filters(index))


def _filters(index: RolloutIndex) -> list[Filter]:
    paths, runs = index.paths, index.runs()
    titles = {
        task: " ".join([task, title]) for task, title in index.select("SELECT task, max(title) FROM episode GROUP BY 1")
    }
    shown_filters = [
        Filter("file", "File", _options(index, "file", {file: str(path) for file, path in enumerate(paths)})),
        Filter("run", "Run", tuple(Option(str(run.id), run.name, run.episodes) for run in runs[:_MAX_OPTIONS])),
        Filter("pack", "Environment", _options(index, "env_id")),
        Filter("task", "Task", _options(index, "task", titles)),
    ]
    shown_filters = [episode_filter for episode_filter in shown_filters if len(episode_filter.options) > 1]
    results = (("success", "success"), ("failed", "failed"), ("unjudged", "not judged"))
    errors = (("failure", "ended by a failure"), ("invalid", "has invalid actions"), ("none", "neither"))
    checks = "SELECT name, count(*) FROM failed_check GROUP BY name ORDER BY count(*) DESC, name LIMIT ?"
    return [
        *shown_filters,
        Filter("result", "Result", tuple(Option(*result) for result in results)),
        Filter("check", "Failed check", tuple(Option(*row) for row in _named(index.select(checks, [_MAX_OPTIONS])))),
        Filter("stop", "Stop reason", _options(index, "stop_reason")),
        Filter("error", "Error", tuple(Option(*error) for error in errors)),
    ]


def _options(index: RolloutIndex, column: str, labels: dict[Any, str] | None = None) -> tuple[Option, ...]:
    """Return the values of a column; the most frequent if there are too many."""
    sql = f"SELECT {column}, count(*) FROM episode GROUP BY 1 ORDER BY 2 DESC LIMIT ?"
    rows = sorted(index.select(sql, [_MAX_OPTIONS]))
    return tuple(Option(str(value), labels[value] if labels else value, number) for value, number in rows)


def _named(rows: list[tuple[Any, ...]]) -> list[tuple[str, str, int]]:
    return [(name, name, number) for name, number in rows]


def _failed_checks(index: RolloutIndex, episodes: list[int]) -> dict[int, list[str]]:
    """Return the names of the failed checks of some episodes."""
    marks = ", ".join("?" * len(episodes))
    checks: dict[int, list[str]] = {}
    sql = f"SELECT episode, name FROM failed_check WHERE episode IN ({marks}) ORDER BY episode, name"
    for episode, name in index.select(sql, episodes):
        checks.setdefault(episode, []).append(name)
    return checks
