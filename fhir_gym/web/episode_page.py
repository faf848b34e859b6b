"""The page of one episode, and the page that shows the reference solution beside it."""

from __future__ import annotations

import json
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from hashlib import blake2b
from types import MappingProxyType

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from fhir_gym.errors import FhirGymError, RecordError
from fhir_gym.fhir import World
from fhir_gym.rollouts import Rollout
from fhir_gym.rollouts.timeline import TimelineEntry, base_url_of
from fhir_gym.web.context import ExportedPage, ViewerContext
from fhir_gym.web.episode_query import EpisodeQuery, page_number
from fhir_gym.web.episode_replay import EpisodeTrace, play_gold, trace_episode
from fhir_gym.web.episode_row import parse_line
from fhir_gym.web.resource_view import Target, target_of
from fhir_gym.web.turn_view import (
    LongText,
    check_views,
    lookup_views,
    message_text,
    part_of,
    step_views,
    turn_views,
    value_text,
)

_ALL = EpisodeQuery()
_EMPTY: Mapping[int, str | None] = MappingProxyType({})
_MOST_REPLAYED = 2_000
"""Number of turns of the longest episode that is replayed without being asked for; more would take seconds."""
_KEPT = 8
"""Number of replays and of reference solutions that stay in memory."""


def routes(context: ViewerContext) -> list[BaseRoute]:
    """Return the routes of the episodes' pages."""
    pages = EpisodePages(context)

    def episode(request: Request) -> Response:
        query, parameters = EpisodeQuery.of(request.query_params), request.query_params
        part, replay = page_number(parameters.get("part", "")), "replay" in parameters
        return HTMLResponse(pages.render(*_position(request), query, part, replay=replay))

    def gold(request: Request) -> Response:
        return HTMLResponse(pages.render_gold(*_position(request)))

    def record(request: Request) -> Response:
        return PlainTextResponse(pages.record(*_position(request)))

    def pair(request: Request) -> Response:
        other = request.path_params["other_file"], request.path_params["other_line"]
        return HTMLResponse(pages.render_pair(_position(request), other))

    path = "/episodes/{file:int}/{line:int}"
    return [
        Route(path, episode, name="episode"),
        Route(f"{path}/gold", gold, name="gold"),
        Route(f"{path}/record", record, name="record"),
        Route(f"{path}/beside/{{other_file:int}}/{{other_line:int}}", pair, name="pair"),
    ]


def exported(context: ViewerContext) -> Iterator[ExportedPage]:
    """Yield the pages of all episodes, and of their reference solutions if their worlds are installed."""
    pages, worlds, links = EpisodePages(context), set(context.worlds.names()), context.links
    rows = context.index.select("SELECT file, line, world, steps FROM episode ORDER BY file, line")
    for file, line, world, steps in rows:
        for part in range(1, part_of(max(1, steps)) + 1):
            if name := links.episode(file, line, part=part):
                yield ExportedPage(name, partial(pages.render, file, line, part=part))
        if world in worlds and (name := links.gold(file, line)):
            yield ExportedPage(name, partial(pages.render_gold, file, line))


def _position(request: Request) -> tuple[int, int]:
    return request.path_params["file"], request.path_params["line"]


class EpisodePages:
    """Renders the pages of episodes, and keeps the latest replays."""

    def __init__(self, context: ViewerContext) -> None:
        self._context = context
        self._trace = lru_cache(_KEPT)(lambda replay: trace_episode(replay.rollout, replay.world))
        self._play_gold = lru_cache(_KEPT)(lambda replay: play_gold(replay.rollout, replay.world))

    def render(self, file: int, line: int, query: EpisodeQuery = _ALL, part: int = 1, *, replay: bool = False) -> str:
        """Return the page of an episode.

        Args:
            file: Index of the file.
            line: Number of the line, from 1.
            query: The query of the table from which the person comes, whose episodes are the previous and next ones.
            part: Which part of a long episode to show, from 1.
            replay: Whether to replay the episode although that takes long.
        """
        context, links = self._context, self._context.links
        rollout, world, trace = self._read(file, line, most=None if replay else _MOST_REPLAYED)
        parameters = {**query.url(), **({"replay": 1} if replay else {})}
        last_part = part_of(max(1, len(rollout.turns)))
        part = min(part, last_part)
        url_of_part = {number: links.episode(file, line, parameters, number) for number in range(1, last_part + 1)}
        turns = turn_views(rollout, trace, part)
        return context.render(
            "episode.html.j2",
            rollout=rollout,
            trace=trace,
            is_filtered=query.is_filtered,
            turns=turns,
            part=part,
            last_part=last_part,
            url_of_part=url_of_part,
            checks=check_views(rollout, trace),
            steps=step_views(rollout),
            answer=value_text(rollout.verdict.answer) if rollout.verdict else "",
            settings=_settings(rollout),
            opening=_opening(rollout),
            final_lookups=lookup_views(rollout.final_lookups, base_url_of(rollout)),
            timeline=timeline_rows(trace, {turn.number for turn in turns}),
            url_of=ReferenceLinks(context, world, trace, url_of_part=url_of_part, part=part),
            urls=self._urls(file, line, world) | self._urls_around(file, line, query),
            url_of_replay=None
            if replay or links.is_export or len(rollout.turns) <= _MOST_REPLAYED
            else links.episode(file, line, {**query.url(), "replay": 1}),
        )

    def render_gold(self, file: int, line: int) -> str:
        """Return the page with an episode and the reference solution side by side."""
        context = self._context
        rollout, world, trace = self._read(file, line)
        sides = [episode_side("This episode", "episode", context, rollout, trace, world)]
        problem = None
        try:
            gold, gold_trace = self._gold(rollout, world)
        except FhirGymError as error:
            problem = f"The reference solution cannot be played: {error}"
        else:
            sides.append(episode_side("Reference solution", "gold", context, gold, gold_trace, world))
            if gold.task.hash != rollout.task.hash:
                problem = "The reference solution is that of this version of fhir_gym; another recorded the episode"
        return context.render(
            "gold.html.j2", rollout=rollout, sides=sides, problem=problem, urls=self._urls(file, line, world)
        )

    def render_pair(self, *places: tuple[int, int]) -> str:
        """Return the page with two episodes side by side.

        Args:
            places: File and line of each episode.
        """
        context, rollouts, sides = self._context, [], []
        for (file, line), name in zip(places, ("first", "second"), strict=True):
            rollout, world, trace = self._read(file, line)
            title = context.index.run_name(file, line)
            side = episode_side(title, name, context, rollout, trace, world)
            sides.append({**side, "url": context.links.episode(file, line)})
            rollouts.append(rollout)
        prompts = list(dict.fromkeys(rollout.prompt for rollout in rollouts))
        return context.render("pair.html.j2", rollout=rollouts[0], prompts=prompts, sides=sides)

    def record(self, file: int, line: int) -> str:
        """Return an episode's record as indented JSON.

        Raises:
            RecordError: The file has changed since it was read.
        """
        try:
            return json.dumps(parse_line(self._context.index.line(file, line)), indent=2)
        except ValueError as error:
            raise RecordError(f"the file has changed: {error}") from error

    def _read(
        self, file: int, line: int, most: int | None = _MOST_REPLAYED
    ) -> tuple[Rollout, World | str, EpisodeTrace]:
        """Return a record, its world or the reason why it is not replayed, and what the episode did.

        Args:
            file: Index of the file.
            line: Number of the line, from 1.
            most: An episode with more turns is not replayed; None for no limit.
        """
        index = self._context.index
        rollout = index.rollout(file, line)
        world: World | str
        try:
            world = self._context.worlds.of_record(rollout.world)
        except FhirGymError as error:
            world = str(error)
        if most is not None and len(rollout.turns) > most:
            world = f"the episode has {len(rollout.turns):,} turns"
        key = (blake2b(index.line(file, line)).digest(), isinstance(world, World))
        return rollout, world, self._trace(_Replay(key, rollout, world))

    def _gold(self, rollout: Rollout, world: World | str) -> tuple[Rollout, EpisodeTrace]:
        """Return the record of the reference solution, and what it did.

        Raises:
            FhirGymError: The task cannot be played.
        """
        if isinstance(world, str):
            raise FhirGymError(world)
        task = rollout.task
        key = (rollout.env_id, task.key, task.variation, task.phrasing, rollout.world.hash)
        gold = self._play_gold(_Replay(key, rollout, world))
        return gold, self._trace(_Replay(key, gold, world))

    def _urls(self, file: int, line: int, world: World | str) -> dict[str, str | None]:
        """Return the addresses of related pages."""
        links = self._context.links
        return {
            "episode": links.episode(file, line),
            "gold": links.gold(file, line) if isinstance(world, World) else None,
            "record": links.record(file, line),
        }

    def _urls_around(self, file: int, line: int, query: EpisodeQuery) -> dict[str, str | None]:
        """Return the addresses of a table, and of the episodes before and after an episode in the table."""
        context = self._context
        links, index, query_fields = context.links, context.index, query.url()
        if query_fields:
            before, after = index.neighbours_where(file, line, *context.where(query), query.order())
        else:
            before, after = index.neighbours(file, line)
        return {
            "previous": links.episode(*before, query_fields) if before else None,
            "next": links.episode(*after, query_fields) if after else None,
            "table": links.episodes(**query_fields),
        }


class ReferenceLinks:
    """Returns the address that shows a resource.

    This is its page in the world, the first turn that read or wrote it, or its row in the table of the start state.

    Args:
        context: The viewer.
        world: The world of the episode, or the reason why there is none.
        trace: What the episode did.
        prefix: Prefix of the anchors of turns.
        url_of_part: The address of each part of the episode.
        part: The part on the page.
    """

    def __init__(
        self,
        context: ViewerContext,
        world: World | str,
        trace: EpisodeTrace,
        prefix: str = "",
        *,
        url_of_part: Mapping[int, str | None] = _EMPTY,
        part: int = 1,
    ) -> None:
        self._links, self._world, self._trace, self._prefix = context.links, world, trace, prefix
        self._url_of_part, self._part = url_of_part, part
        self._known: dict[Target, str | None] = {}

    def __call__(self, target: Target | None) -> str | None:
        """Return the address; None if no page shows the resource."""
        if target is None:
            return None
        if target not in self._known:
            self._known[target] = self._find(target)
        return self._known[target]

    def turn(self, number: int) -> str:
        """Return the address of a turn, which may be in another part of the episode."""
        page = "" if part_of(number) == self._part else self._url_of_part.get(part_of(number)) or ""
        return f"{page}#{self._prefix}turn-{number}"

    def of_text(self, reference: str) -> str | None:
        """Return the address for a reference such as ``Patient/1``."""
        return self(target_of(reference))

    def _find(self, target: Target) -> str | None:
        world = self._world
        if isinstance(world, World) and world.read(target.resource_type, target.id) is not None:
            url = self._links.resource(world.manifest.name, target.resource_type, target.id)
            if url is not None:
                return url
        turns = self._trace.turns_of([target.text])
        if turns:
            return self.turn(turns[0])
        return f"#record-{target.resource_type}-{target.id}" if self._is_in_start_state(target) else None

    def _is_in_start_state(self, target: Target) -> bool:
        """Whether the page has a table of the start state with a row for the resource."""
        start_state = None if self._prefix else self._trace.start_state
        return start_state is not None and any(
            row[0].target == target for table in start_state.tables for row in table.rows
        )


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """A row of the timeline, with the number of the agent's turn."""

    entry: TimelineEntry
    turn: int | None


def timeline_rows(trace: EpisodeTrace, turns: Collection[int]) -> list[TimelineRow]:
    """Return the timeline of a live task from the first to the last of some turns; an empty list without simulation."""
    if trace.timeline is None or not any(entry.time for entry in trace.timeline.entries):
        return []
    sent = (number for number, turn in enumerate(trace.timeline.turns, start=1) if turn.request is not None)
    rows = [TimelineRow(entry, next(sent, None) if entry.who == "agent" else None) for entry in trace.timeline.entries]
    places = [place for place, row in enumerate(rows) if row.turn in turns]
    return rows[places[0] if min(turns, default=1) > 1 else 0 : places[-1] + 1] if places else rows


def episode_side(
    title: str, name: str, context: ViewerContext, rollout: Rollout, trace: EpisodeTrace, world: World | str
) -> dict[str, object]:
    """Return one column of the page with the reference solution."""
    url_of = ReferenceLinks(context, world, trace, f"{name}-")
    turns = turn_views(rollout, trace)
    return {
        "title": title,
        "name": name,
        "rollout": rollout,
        "trace": trace,
        "turns": turns,
        "url_of": url_of,
        "url": None,
    }


def _settings(rollout: Rollout) -> LongText | None:
    settings = rollout.agent.settings
    return LongText.of(json.dumps(settings, indent=2, ensure_ascii=False)) if settings else None


def _opening(rollout: Rollout) -> list[tuple[str, LongText]]:
    """Return role and text of the messages before the model's first reply."""
    return (
        [(str(message.get("role")), message_text(message)) for message in rollout.opening.messages]
        if rollout.opening
        else []
    )


@dataclass(frozen=True, slots=True)
class _Replay:
    """An episode to replay, as an argument of a cached function. Replays with the same key are equal."""

    key: Hashable
    rollout: Rollout = field(compare=False)
    world: World | str = field(compare=False)
