"""The table of episodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from fhir_gym.web.context import ExportedPage, ViewerContext, pack_name
from fhir_gym.web.episode_query import PAGE_SIZE, EpisodeQuery, number_of_pages
from fhir_gym.web.episode_row import COLUMNS
from fhir_gym.web.rollout_index import RolloutIndex

_MAX_OPTIONS = 500
"""Number of values of a filter; of more values, the most frequent are shown."""
_MAX_BAD_LINES = 20
_MAX_CHART_ROWS, _MAX_CHART_RUNS = 60, 4
"""Number of rows and runs of the chart; beyond them, tasks are counted by pack, and runs together."""
_COLUMN_TITLES = (
    ("task", "Task"),
    ("pack", "Pack"),
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


@dataclass(frozen=True, slots=True)
class SuccessBar:
    """Success of several episodes.

    Attributes:
        low: Lower end of the 95 % interval of the share.
        high: Its upper end.
    """

    successes: int
    episodes: int
    share: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class SuccessChart:
    """Success by task and run.

    Attributes:
        rows_are: What a row is: ``task`` or ``pack``.
        runs: Names of the runs; one empty name for all runs together.
        rows: Label of each row, and a bar for each run that has episodes.
    """

    rows_are: str
    runs: tuple[str, ...]
    rows: tuple[tuple[str, tuple[SuccessBar | None, ...]], ...]


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
    packs = [env_id for (env_id,) in index.select("SELECT DISTINCT env_id FROM episode ORDER BY 1")]
    hidden = {name for name, values in (("pack", packs), ("run", runs)) if len(values) < 2}
    return context.render(
        "episodes.html.j2",
        query=query,
        filters=filters(index),
        titles=[title for title in _COLUMN_TITLES if title[0] not in hidden],
        packs=packs,
        chart=success_chart(index, where, parameters),
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


def success_chart(index: RolloutIndex, where: str, parameters: Sequence[str | int]) -> SuccessChart:
    """Return the success of the judged episodes that fit a condition, by task or, of many tasks, by pack."""
    sums_of = "SELECT env_id, task, run, sum(success), count(*) FROM episode"
    counts = index.select(f"{sums_of} WHERE {where} AND success IS NOT NULL GROUP BY 1, 2, 3", parameters)
    tasks = sorted({(env_id, task) for env_id, task, *_ in counts})
    is_by_task = len(tasks) <= _MAX_CHART_ROWS
    several = len({env_id for env_id, _ in tasks}) > 1
    named = {run.id: run.name for run in index.runs()}
    runs = sorted({run for _, _, run, *_ in counts}, key=lambda run: named.get(run, ""))
    is_by_run = len(runs) <= _MAX_CHART_RUNS
    sums: dict[str, dict[int, list[int]]] = {}
    for env_id, task, run, successes, episodes in sorted(counts):
        pack = pack_name(env_id)
        label = (f"{pack} {task}" if several else task) if is_by_task else pack
        total = sums.setdefault(label, {}).setdefault(run if is_by_run else 0, [0, 0])
        total[0] += successes
        total[1] += episodes
    columns = runs if is_by_run else [0]
    return SuccessChart(
        "task" if is_by_task else "pack",
        tuple(named.get(run, "") for run in columns),
        tuple((label, tuple(_bar(totals.get(run)) for run in columns)) for label, totals in sums.items()),
    )


def _bar(total: Sequence[int] | None) -> SuccessBar | None:
    if total is None:
        return None
    from fhir_gym.evaluation import wilson  # its package loads much, which an empty viewer need not wait for

    successes, episodes = total
    return SuccessBar(successes, episodes, successes / episodes, *wilson(successes, episodes))


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
