"""Measure what scripted agents of different strength score on Shift-v0: `python -m benchmarks.shift_agents`.

Prints one JSON line per agent and task, and a Markdown table of the means by level. Every agent but the first makes
one systematic mistake; otherwise it works like the reference solution.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any
from urllib.parse import parse_qsl

from fhir_gym import worlds
from fhir_gym.actions import Action, Finish, Get
from fhir_gym.fhir import World
from fhir_gym.soundness.policy_runner import WRITES, Policy, PolicyRun, PolicyRunner, script
from fhir_gym.tasks import Gold, LatestResponse, Variation, get_pack, get_task, task_keys
from fhir_gym.tasks.authoring import parse_instant
from fhir_gym.tasks.packs.shift.kind import Knowledge
from fhir_gym.tasks.packs.shift.outcomes import DONE, letters
from fhir_gym.tasks.packs.shift.static_task import StaticShift
from fhir_gym.types import Json, Resource

__all__ = ["Score", "measure", "policies"]

_PACK = "FHIRAgent/Shift-v0"
_LOST = (AssertionError, LookupError, RuntimeError, TypeError, ValueError)
"""Exceptions of a solution that does not see what it needs."""
_STATUSES = ("status", "clinicalStatus", "verificationStatus", "active")
_BY_STATUS = frozenset({"status", "clinical-status", "verification-status", "active"})

Play = Callable[[LatestResponse], Gold]
Sees = Callable[[Action, Json], Json]
"""What an agent sees of the response to an action."""


@dataclass(frozen=True)
class Score:
    """The result of an agent in one episode.

    Attributes:
        agent: Name of the agent.
        success: Whether the episode succeeded.
        score: The score of the dense reward, 0 to 1.
        requests: Number of requests that the agent sent.
    """

    agent: str
    success: bool
    score: float
    requests: int


def policies(task: StaticShift, variation: Variation, gold: PolicyRun) -> Iterator[tuple[str, Play]]:
    """Yield the agents by name.

    Args:
        task: The task.
        variation: The variation.
        gold: An episode of the reference solution.
    """
    params: Any = variation.params
    kind, count = task.requests, len(params.requests)
    answer, actions = [str(line) for line in gold.end.answer or []], list(gold.actions[:-1])
    everything = list(letters(count))
    yield "reference solution", script(gold.actions)
    yield "one mistake", script(_with_one_mistake(variation.number, actions, answer))
    yield "ignores statuses", _solver(task, variation, sees=_ignoring(_usual(variation.setup)), change=_without_status)
    yield "first hit of each search", _solver(task, variation, sees=_first_hit)
    yield "first half of the requests", _solver(task, variation, most=count // 2)
    declined = [f"{letter}: {kind.codes[0]}" for letter in everything]
    yield "looks, then declines everything", script([*_reads(actions), Finish(declined)])
    done = [f"{letter}: {kind.value or DONE}" for letter in everything]
    yield "looks, then says that everything is done", script([*_reads(actions), Finish(done)])
    yield "nothing", script([Finish([])])


def _reads(actions: Sequence[Action]) -> list[Action]:
    return [action for action in actions if action.kind not in WRITES]


def _with_one_mistake(number: int, actions: list[Action], answer: list[str]) -> list[Action]:
    """Leave out one write; without writes, give the answer of another request to one request."""
    writes = [place for place, action in enumerate(actions) if action.kind in WRITES]
    if writes:
        left_out = writes[number % len(writes)]
        return [*actions[:left_out], *actions[left_out + 1 :], Finish(answer)]
    wrong = number % len(answer)
    letter, _, own = answer[wrong].partition(": ")
    texts = [line.partition(": ")[2] for line in answer]
    other = next(text for text in texts if text != own)
    return [*actions, Finish([*answer[:wrong], f"{letter}: {other}", *answer[wrong + 1 :]])]


def _solver(
    task: StaticShift,
    variation: Variation,
    *,
    sees: Sees = lambda action, response: response,
    change: Callable[[Action], Action] = lambda action: action,
    most: int | None = None,
) -> Play:
    """Build an agent that solves the requests like the reference solution.

    It declines a request for which it does not see what it needs.

    Args:
        task: The task.
        variation: The variation.
        sees: What the agent sees.
        change: How the agent changes its actions.
        most: Number of requests that the agent handles; None for all.
    """
    params: Any = variation.params
    kind = task.requests

    def play(fhir: LatestResponse) -> Gold:
        knowledge = Knowledge(kind.rule_values(params.scene), parse_instant(params.now))
        answer: list[Json] = []
        for letter, request in list(zip(letters(len(params.requests)), params.requests, strict=True))[:most]:
            solution = kind.solve(request.ask, knowledge)
            try:
                action = next(solution)
                while True:
                    sent = change(action)
                    response = yield sent
                    action = solution.send(sees(sent, response))
            except StopIteration as end:
                outcome = str(end.value)
            except _LOST:
                outcome = kind.codes[0]
            answer.append(f"{letter}: {outcome}")
        yield Finish(answer)

    return play


def _first_hit(action: Action, response: Json) -> Json:
    if action.kind != "GET" or not isinstance(response, dict) or "entry" not in response:
        return response
    return {**response, "entry": response["entry"][:1], "link": []}


def _usual(setup: Sequence[Resource]) -> Mapping[tuple[str, str], Json]:
    """Return the most frequent status of each type, by type and element."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for resource in setup:
        for name in _STATUSES:
            if name in resource:
                counts.setdefault((resource["resourceType"], name), Counter())[json.dumps(resource[name])] += 1
    return {key: json.loads(found.most_common(1)[0][0]) for key, found in counts.items()}


def _ignoring(usual: Mapping[tuple[str, str], Json]) -> Sees:
    """Build the view of an agent for which every record has the most frequent status of its type."""

    def seen(resource: Resource) -> Resource:
        kind = resource["resourceType"]
        return {name: usual.get((kind, name), value) for name, value in resource.items()}

    def sees(action: Action, response: Json) -> Json:
        if action.kind != "GET" or not isinstance(response, dict) or "entry" not in response:
            return response
        return {**response, "entry": [{**entry, "resource": seen(entry["resource"])} for entry in response["entry"]]}

    return sees


def _without_status(action: Action) -> Action:
    path, mark, query = action.url.partition("?")
    if action.kind != "GET" or not mark:
        return action
    return Get(path, [(name, value) for name, value in parse_qsl(query) if name not in _BY_STATUS])


def measure(task: StaticShift, world: World, variations: Sequence[int]) -> Iterator[Score]:
    """Let every agent play the variations of a task.

    Args:
        task: The task.
        world: The world.
        variations: The variations.
    """
    for number in variations:
        with PolicyRunner(task, task.variation(number, world), world) as runner:
            gold = runner.gold()
            for name, play in policies(task, runner.variation, gold):
                (run,) = runner.run(Policy("by hand", name, play))
                reward = run.verdict.reward("dense")
                yield Score(name, run.verdict.success, reward, len(run.actions) - 1)


def main() -> None:
    """Print the scores of all agents on the chosen tasks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shift_agents", description=__doc__)
    parser.add_argument("--variations", type=int, default=20, help="variations of each task")
    parser.add_argument("--tasks", nargs="*", default=task_keys(_PACK), help="keys of the tasks; default: all")
    options = parser.parse_args()
    found: dict[int, dict[str, list[Score]]] = {}
    with worlds.load(get_pack(_PACK).world) as world:
        for key in options.tasks:
            task = get_task(_PACK, key)
            if not isinstance(task, StaticShift):
                continue
            by_agent: dict[str, list[Score]] = {}
            for score in measure(task, world, range(options.variations)):
                by_agent.setdefault(score.agent, []).append(score)
                found.setdefault(task.level or 1, {}).setdefault(score.agent, []).append(score)
            for agent, scores in by_agent.items():
                print(json.dumps({"task": key, "agent": agent, **_means(scores)}), flush=True)
    print(_table(found))


def _means(scores: Sequence[Score]) -> dict[str, float]:
    return {
        "n": len(scores),
        "success": round(mean(score.success for score in scores), 3),
        "score": round(mean(score.score for score in scores), 3),
        "requests": round(mean(score.requests for score in scores), 1),
    }


def _table(found: Mapping[int, Mapping[str, Sequence[Score]]]) -> str:
    """Return a Markdown table with success, score and number of requests of each agent at each level."""
    levels = sorted(found)
    columns = [f"level {level}: {what}" for level in levels for what in ("success", "score", "requests")]
    lines = [f"| agent | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for agent in dict.fromkeys(agent for level in levels for agent in found[level]):
        cells: list[str] = []
        for level in levels:
            means = _means(found[level][agent])
            cells += [f"{means['success']:.0%}", f"{means['score']:.2f}", f"{means['requests']:.0f}"]
        lines.append(f"| {agent} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
