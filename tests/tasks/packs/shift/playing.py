"""Play reference solutions of static shifts, with changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from fhir_gym import Episode, Step, get_task
from fhir_gym.actions import Action, Finish, Get, Post, Put
from fhir_gym.fhir import World
from fhir_gym.observations import read_response
from fhir_gym.tasks import Gold
from fhir_gym.tasks.packs.shift.lookups import Named
from fhir_gym.tasks.packs.shift.outcomes import DONE, letters
from fhir_gym.tasks.packs.shift.static_task import ShiftParams
from fhir_gym.types import Json, Resource

ENV = "FHIRAgent/Shift-v0"
_MOST_VARIATIONS = 60


def opened(world: World, key: str = "Q1-1", variation: int = 0, max_steps: int | None = None) -> Episode:
    episode = Episode(ENV, task=key, variation=variation, world=world, reward="dense", max_steps=max_steps)
    episode.start()
    return episode


def opened_where(
    world: World, key: str, condition: Callable[[ShiftParams], bool], first: int = 0, max_steps: int | None = None
) -> Episode:
    """Open an episode of the first variation from number `first` whose parameters meet a condition."""
    task = get_task(ENV, key)
    for variation in range(first, first + _MOST_VARIATIONS):
        params = task.variation(variation, world).params
        assert isinstance(params, ShiftParams)
        if condition(params):
            return opened(world, key, variation, max_steps)
    raise AssertionError(f"{_MOST_VARIATIONS} variations of {key} do not meet the condition")


def has_outcomes(*outcomes: str) -> Callable[[ShiftParams], bool]:
    """Return the condition that there is one request for each of these outcomes, in any order."""
    return lambda params: sorted(request.outcome for request in params.requests) == sorted(outcomes)


def answer_of(step: Step) -> Json:
    response = read_response(step.observation)
    return response.json() if response and response.body else None


def play(episode: Episode, change: Callable[[Action], list[Action]] = lambda action: [action]) -> Step:
    """Play the reference solution; `change` replaces its actions."""
    return follow(episode, episode.task.gold(episode.variation.params), change)


def follow(episode: Episode, solution: Gold, change: Callable[[Action], list[Action]]) -> Step:
    """Play a solution, which receives the response to the first action that replaces each of its actions."""
    action = next(solution)
    while True:
        sent: Json = None
        for number, replacement in enumerate(change(action)):
            step = episode.step(replacement)
            if step.done:
                return step
            sent = answer_of(step) if number == 0 else sent
        action = solution.send(sent)


def failed(step: Step) -> list[str]:
    return [check["name"] for check in step.info["verdict"]["checks"] if not check["passed"]]


def finish(texts: list[str]) -> Action:
    """Finish with these outcomes, in the order of the letters."""
    return Finish([f"{letter}: {text}" for letter, text in zip(letters(len(texts)), texts, strict=True)])


def names_of_checks(chosen: Iterable[bool]) -> list[str]:
    """Return the names of the checks of the chosen requests."""
    return [f"request {letter}" for letter, failed in zip(letters(26), chosen, strict=False) if failed]


def read_all(episode: Episode, url: str) -> list[Resource]:
    """Search, and return the resources on the first page."""
    bundle: Any = answer_of(episode.step(Get(url)))
    return [entry["resource"] for entry in bundle.get("entry", [])]


def ids_called(episode: Episode, who: Named, exact: bool = True) -> list[str]:
    """Search for the patients with a date of birth, and return the ids of those with the name.

    Args:
        episode: The episode.
        who: The name and the date of birth.
        exact: Whether the given name matters.
    """
    people = read_all(episode, f"/Patient?birthdate={who.birth_date}&_count=100")
    wanted = [person for person in people if person["name"][0]["family"] == who.family]
    return [person["id"] for person in wanted if not exact or " ".join(person["name"][0]["given"]) == who.given]


def after_lookups(episode: Episode, change: Callable[[str], str]) -> Step:
    """Repeat the lookups of the reference solution with changes, and report the right outcomes."""
    urls: list[str] = []

    def record(action: Action) -> list[Action]:
        if action.kind == "GET":
            urls.append(action.url)
        return [action]

    episode.start()
    play(episode, record)
    episode.start()
    for url in urls:
        episode.step(Get(change(url)))
    return episode.step(finish([request.outcome for request in params_of(episode).requests]))


def params_of(episode: Episode) -> ShiftParams:
    params = episode.variation.params
    assert isinstance(params, ShiftParams)
    return params


def checks_of_done_requests(episode: Episode) -> list[str]:
    """Return the names of the checks of the requests that can be done."""
    requests = params_of(episode).requests
    return [
        f"request {letter}" for letter, r in zip(letters(len(requests)), requests, strict=True) if r.outcome == DONE
    ]


def only_reads(action: Action) -> list[Action]:
    """Replace a write by a read of the same type."""
    return [action] if action.kind in ("GET", "FINISH") else [Get("/metadata")]


def edited(type: str, edit: Callable[[Resource], Any], action: Action) -> list[Action]:
    """Edit the body of the first kind of write in an action."""
    body = json.loads(action.body or "null")
    if body is not None and body["resourceType"] == type:
        edit(body)
        return [Post(action.url, body) if action.kind == "POST" else Put(action.url, body)]
    return [action]


def in_transactions(action: Action) -> list[Action]:
    """Send a write as a transaction with one entry."""
    if action.kind not in ("POST", "PUT"):
        return [action]
    entry: list[Json] = [
        {"resource": json.loads(action.body or ""), "request": {"method": action.kind, "url": action.url.lstrip("/")}}
    ]
    return [Post("/", {"resourceType": "Bundle", "type": "transaction", "entry": entry})]
