"""The pages on which a person plays a task: the choice of the task, the episode, its verdict and its record."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from secrets import compare_digest
from urllib.parse import parse_qsl, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from fhir_gym import worlds
from fhir_gym.actions import GRAMMAR, Invalid
from fhir_gym.arguments import parse_phrasing
from fhir_gym.episode_config import EpisodeConfig
from fhir_gym.errors import FhirGymError, WorldError
from fhir_gym.fhir import World
from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET
from fhir_gym.http_server import read_body
from fhir_gym.observations import read_response
from fhir_gym.printable import JSON_ESCAPES
from fhir_gym.rollouts import Rollout
from fhir_gym.rollouts.plan import EpisodeSpec
from fhir_gym.tasks import GRADINGS, get_pack, pack_ids, task_set
from fhir_gym.types import BRIEF, PARAPHRASE, Resource
from fhir_gym.web.context import ExportedPage, ViewerContext
from fhir_gym.web.episode_page import ReferenceLinks, episode_side
from fhir_gym.web.episode_replay import play_gold, trace_episode
from fhir_gym.web.plays import Play, PlayError
from fhir_gym.web.resource_view import Target
from fhir_gym.web.turn_view import check_views, step_views, turn_views, value_text

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
"""Methods of the request form."""
_Fields = Mapping[str, str]
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
"""Characters that a file name must not contain."""


def routes(context: ViewerContext) -> list[BaseRoute]:
    """Return the routes of the pages for playing."""

    def choose(request: Request) -> Response:
        return HTMLResponse(render_choice(context, request.query_params))

    def show(request: Request) -> Response:
        play = _find(context, request)
        return HTMLResponse(render_play(context, play, request.query_params))

    def compare(request: Request) -> Response:
        return HTMLResponse(render_gold(context, _find(context, request)))

    def download(request: Request) -> Response:
        record = _find(context, request).record()
        name = _UNSAFE.sub("_", f"{record.task.key}-{record.task.variation}.jsonl")
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(f"{record.line()}\n", media_type="application/jsonl", headers=headers)

    def go_back(request: Request) -> Response:
        """Answer the reload of a page that shows a form again."""
        return RedirectResponse(request.url.path.rpartition("/")[0], 303)

    return [
        Route("/play", choose),
        form_route(context, "/play/start", _starting(context)),
        Route("/play/start", go_back),
        Route("/play/{id}", show),
        form_route(context, "/play/{id}/act", _acting(context)),
        Route("/play/{id}/act", go_back),
        Route("/play/{id}/gold", compare),
        Route("/play/{id}/rollout.jsonl", download),
    ]


def exported(context: ViewerContext) -> Iterator[ExportedPage]:
    """Yield nothing: a task cannot be played without a server."""
    return iter(())


def render_choice(context: ViewerContext, chosen: _Fields, problem: str = "") -> str:
    """Return the page on which a person chooses the pack, then the task and its variation.

    Args:
        context: The viewer.
        chosen: The values of the form so far.
        problem: Why the episode did not start.
    """
    pack = tasks = None
    if env_id := chosen.get("pack"):
        try:
            pack, tasks = get_pack(env_id), task_set(env_id)
        except FhirGymError as error:
            problem = str(error)
    return context.render(
        "play_choice.html.j2",
        packs=pack_ids(),
        pack=pack,
        tasks=tasks or {},
        phrasings=max((len(task.prompts) for task in (tasks or {}).values()), default=0),
        named_phrasings=[
            name for name in (BRIEF, PARAPHRASE) if any(task.has_phrasing(name) for task in (tasks or {}).values())
        ],
        gradings=[grading for grading in GRADINGS if any(grading in task.gradings for task in (tasks or {}).values())],
        worlds=context.worlds.names(),
        chosen=chosen,
        running=[(play, play.record()) for play in context.plays.all()],
        problem=problem,
    )


def render_play(context: ViewerContext, play: Play, form: _Fields, problem: str = "") -> str:
    """Return the page of an episode that a person plays, or played.

    Args:
        context: The viewer.
        play: The play.
        form: Values for the forms. `url` fills in the URL of the next request, `change` a request that replaces the
            resource of the latest answer.
        problem: Why the last form was not an action.
    """
    rollout, world = play.record(), play.world
    # A live shift has hundreds of actions and takes seconds to prepare, so it is replayed only at its end.
    trace = trace_episode(rollout, world if play.over or not play.is_live else "the episode is running")
    turns = turn_views(rollout, trace)
    if turns and not play.over:
        turns[-1] = replace(turns[-1], is_open=True)
    last = turns[-1].answer if turns else None
    resource = _single_resource(rollout)
    return context.render(
        "play.html.j2",
        play=play,
        rollout=rollout,
        trace=trace,
        turns=turns,
        checks=check_views(rollout, trace),
        diagnosis=step_views(rollout),
        answer=value_text(rollout.verdict.answer) if rollout.verdict else "",
        url_of=ReferenceLinks(context, world, trace) if play.over else partial(_next_request, play),
        further_pages=[(name, _fill_in(play, url)) for name, url in (last.links if last else ()) if name != "self"],
        changeable=f"{resource['resourceType']}/{resource['id']}" if resource else "",
        given=_change_of(resource) if resource and "change" in form else form,
        problem=problem,
        methods=_METHODS,
    )


def render_gold(context: ViewerContext, play: Play) -> str:
    """Return the page with a finished play and the reference solution side by side.

    Raises:
        HTTPException: The play is not finished.
    """
    if not play.over:
        raise HTTPException(403, "The reference solution is shown when your episode is over.")
    rollout, world = play.record(), play.world
    solution = play_gold(rollout, world)
    sides = [
        episode_side(title, name, context, shown, trace_episode(shown, world), world)
        for title, name, shown in (("Your episode", "episode", rollout), ("Reference solution", "gold", solution))
    ]
    return context.render(
        "gold.html.j2", rollout=rollout, sides=sides, problem=None, urls={"episode": f"/play/{play.id}"}
    )


def _single_resource(rollout: Rollout) -> Resource | None:
    """Return the resource that the latest answer consists of; None for a Bundle or another answer."""
    response = read_response(rollout.turns[-1].observation) if rollout.turns else None
    try:
        body = response.json() if response else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or not isinstance(body.get("id"), str):
        return None
    return body if str(body.get("resourceType")) in RESOURCE_TYPE_SET - {"Bundle"} else None


def _change_of(resource: Resource) -> _Fields:
    """Return the fields of a request that replaces a resource."""
    body = json.dumps(resource, indent=2, ensure_ascii=False).translate(JSON_ESCAPES)
    return {"method": "PUT", "url": f"{resource['resourceType']}/{resource['id']}", "body": body}


def _next_request(play: Play, target: Target | None) -> str | None:
    """Return the URL of the page with the form filled in to read a resource."""
    return None if target is None else _fill_in(play, target.text)


def _fill_in(play: Play, url: str) -> str:
    return f"/play/{play.id}?{urlencode({'url': url})}#act"


def _find(context: ViewerContext, request: Request) -> Play:
    """Return the play of a request, or answer with the status 404."""
    try:
        return context.plays.get(request.path_params["id"])
    except PlayError as error:
        raise HTTPException(404, f"{error}.") from error


def _starting(context: ViewerContext) -> Callable[[Request, dict[str, str]], Response]:
    def start(_: Request, fields: dict[str, str]) -> Response:
        try:
            play = _start(context, fields)
        except FhirGymError as error:
            return HTMLResponse(render_choice(context, fields, str(error)), 422)
        return RedirectResponse(f"/play/{play.id}", 303)

    return start


def _start(context: ViewerContext, fields: _Fields) -> Play:
    """Start the episode that a form describes.

    Raises:
        FhirGymError: The form describes no episode, or its world is not installed.
    """
    env_id, key = fields.get("pack", ""), fields.get("task", "")
    world = _world(context, fields.get("world") or get_pack(env_id).world)
    phrasing = parse_phrasing(fields["phrasing"]) if fields.get("phrasing") else None
    config = EpisodeConfig.of(env_id, {"phrasing": phrasing, "grading": fields.get("grading") or "state"})
    return context.plays.start(config, EpisodeSpec(key, _number("variation", fields.get("variation", "")), 0), world)


def _world(context: ViewerContext, name: str) -> World:
    """Return a world; the viewer builds none, because a build may take minutes."""
    if name not in context.worlds.names() and any(info.name == name for info in worlds.available()):
        raise WorldError(f"the world {name!r} is not built yet: run fhir-gym worlds build {name}")
    return context.worlds.open(name)


def _number(name: str, text: str) -> int:
    text = text.strip() or "0"
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise FhirGymError(f"the {name} must be a whole number from 0, not {text[:40]!r}")
    return int(text)


def _acting(context: ViewerContext) -> Callable[[Request, dict[str, str]], Response]:
    def act(request: Request, fields: dict[str, str]) -> Response:
        play = _find(context, request)
        if fields.get("form") == "give up":
            play.give_up()
        else:
            action = _action(fields)
            parsed = GRAMMAR.parse(action)
            if isinstance(parsed, Invalid) and fields.get("form") != "text":
                return HTMLResponse(render_play(context, play, fields, parsed.reason), 422)
            play.act(action, _number("step", fields.get("step", "")))
        where = "verdict" if play.over else f"turn-{play.steps}"
        return RedirectResponse(f"/play/{play.id}#{where}", 303)

    return act


def _action(fields: _Fields) -> str:
    """Return the action that a form describes, as an agent would write it."""
    form = fields.get("form")
    if form == "text":
        return fields.get("text", "")
    if form == "answer":
        return f"FINISH({fields.get('answer', '').strip() or '[]'})"
    method, url, body = (fields.get(name, "").strip() for name in ("method", "url", "body"))
    line = f"{method} {url}"
    return f"{line}\n{body}" if body and method not in ("GET", "DELETE") else line


_MAX_BODY = 4 * 1024 * 1024
_MAX_FIELDS = 1_000


def form_route(
    context: ViewerContext, path: str, answer: Callable[[Request, dict[str, str]], Response], name: str | None = None
) -> Route:
    """Return a route for a form that is sent by POST.

    The form must have a hidden field ``token`` with `ViewerContext.form_token`; the macro ``form_token`` writes it.

    Args:
        context: The viewer.
        path: Path of the route.
        answer: Function from the request and the form's fields to the answer. It runs in a thread.
        name: Name of the route.
    """

    async def endpoint(request: Request) -> Response:
        body = await read_body(request, _MAX_BODY)
        if len(body) > _MAX_BODY:
            raise HTTPException(413, "The form is too large.")
        try:
            fields = dict(parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=_MAX_FIELDS))
        except ValueError as error:
            raise HTTPException(400, "The form cannot be read.") from error
        if not compare_digest(fields.pop("token", "").encode(), context.form_token.encode()):
            raise HTTPException(
                403, "This form is from another run of the viewer. Go back, reload the page, try again."
            )
        return await run_in_threadpool(answer, request, fields)

    return Route(path, endpoint, methods=["POST"], name=name)
