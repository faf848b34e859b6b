"""Measure how scripted agents of known strength score on the suites.

    python -m benchmarks.suites --out suites                      all suites; writes suites.json and suites.md
    python -m benchmarks.suites --suite quick-v1 --out quick

All agents except `idle` and `random` know the reference solution, and make one systematic mistake. Where an agent's
mistake is not possible, as when a solution has no search, the agent solves the episode.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fhir_gym import suites
from fhir_gym.actions import Finish
from fhir_gym.agents import Agent, EpisodeContext, make_agent
from fhir_gym.fhir import World
from fhir_gym.files import write_file
from fhir_gym.observations import read_response
from fhir_gym.soundness.flawed_policies import careless_policies, flawed_policies
from fhir_gym.soundness.near_misses import near_misses
from fhir_gym.soundness.policy_groups import Group
from fhir_gym.soundness.policy_runner import Policy, PolicyRunner, script
from fhir_gym.soundness.recording import GoldRecording
from fhir_gym.tasks import Gold, LatestResponse, Params, Task, get_task
from fhir_gym.types import Json

__all__ = ["AGENTS", "FlawedAgent", "HalfAgent", "measure", "table"]

_TRAINING = 0
"""The training variation whose solution an agent has memorised."""


@dataclass(frozen=True)
class _Scene:
    """One episode as a flawed agent knows it.

    Attributes:
        task: The task.
        params: Parameters of the variation.
        gold: The reference episode.
        world: The world.
    """

    task: Task[Any]
    params: Params
    gold: GoldRecording
    world: World


Mistake = Callable[[_Scene], Policy | None]
"""Function that returns the flawed policy of an episode; None if the mistake is not possible."""


class FlawedAgent:
    """An agent that follows the reference solution with one mistake.

    Args:
        name: Name of the agent.
        mistake: The mistake.
    """

    def __init__(self, name: str, mistake: Mistake) -> None:
        self.name = name
        self.settings: Mapping[str, Json] = {}
        self._mistake = mistake

    def reset(self, observation: str, context: EpisodeContext) -> None:
        """Plan the episode."""
        task = context.source or get_task(context.env_id, context.task)
        scene = _scene(task, context.variation, context.world)
        policy = self._mistake(scene)
        self._fhir = LatestResponse()
        self._steps: Gold = task.gold(scene.params) if policy is None else policy.play(self._fhir)
        self._started = False

    def act(self, observation: str) -> str:
        """Return the next action."""
        try:
            if self._started:
                self._fhir.last = read_response(observation)
                return self._steps.send(self._fhir.json()).text()
            self._started = True
            return next(self._steps).text()
        except StopIteration:
            return Finish().text()


class HalfAgent:
    """An agent that solves the episodes with an even seed, and does nothing in the others."""

    name = "half"
    settings: Mapping[str, Json] = {}

    def reset(self, observation: str, context: EpisodeContext) -> None:
        """Choose between the reference solution and doing nothing."""
        self._agent = make_agent("idle" if context.seed % 2 else "gold")
        self._agent.reset(observation, context)

    def act(self, observation: str) -> str:
        """Return the next action."""
        action = self._agent.act(observation)
        if not isinstance(action, str):
            raise TypeError("the agents gold and idle return texts")
        return action


def _scene(task: Task[Any], number: int, world: World) -> _Scene:
    with PolicyRunner(task, task.variation(number, world), world) as runner:
        gold = GoldRecording.of(runner.gold(), runner.variation.setup)
        return _Scene(task, runner.variation.params, gold, world)


def _first(policies: Iterator[Policy], *groups: Group) -> Policy | None:
    return next((policy for policy in policies if policy.group in groups), None)


def _careless(*groups: Group) -> Mistake:
    return lambda scene: _first(careless_policies(scene.task, scene.params, scene.gold), *groups)


def _first_hit(scene: _Scene) -> Policy | None:
    """Keep the first condition of each search and take the first hit."""
    policies = careless_policies(scene.task, scene.params, scene.gold)
    return next((policy for policy in policies if policy.group == "first hit" and policy.name.startswith("by ")), None)


def _hasty(scene: _Scene) -> Policy | None:
    """Leave out the last condition of the last search; parameters such as ``_sort`` are no conditions."""
    policies = [*careless_policies(scene.task, scene.params, scene.gold)]
    return next(
        (policy for policy in reversed(policies) if policy.group == "hasty search" and " _" not in policy.name), None
    )


def _says_none(scene: _Scene) -> Policy | None:
    return _first(flawed_policies(scene.task, scene.params, scene.gold), "says none")


def _memorised(scene: _Scene) -> Policy:
    """Replay the solution of a training variation."""
    known = _scene(scene.task, _TRAINING, scene.world).gold
    return Policy("other variation", "memorised", script([*known.actions, Finish(known.answer)]))


def _wrong_value(scene: _Scene) -> Policy | None:
    """Write a wrong value; where nothing is written, give a wrong answer."""
    policies = list(near_misses(scene.task, scene.gold, requires_evidence=False))
    written = _first(iter(policies), "wrong value", "neighbour's value")
    if written is not None:
        return written
    _, answer = policies[0].answers[0]
    return Policy("wrong answer", "wrong answer", script([*scene.gold.actions, Finish(answer)]))


AGENTS: Mapping[str, tuple[Callable[[], Agent], str]] = {
    "gold": (lambda: make_agent("gold"), "the reference solution"),
    "half": (HalfAgent, "solves a random half of the episodes, and does nothing in the others"),
    "status ignored": (
        lambda: FlawedAgent("status ignored", _careless("status ignored")),
        "treats every record as if it had the right status",
    ),
    "hasty": (lambda: FlawedAgent("hasty", _hasty), "leaves out the last condition of its last search"),
    "first hit": (lambda: FlawedAgent("first hit", _first_hit), "searches by one condition and takes the first hit"),
    "says none": (lambda: FlawedAgent("says none", _says_none), "looks everything up, then says that there is none"),
    "memorised": (lambda: FlawedAgent("memorised", _memorised), "replays the solution of training variation 0"),
    "wrong value": (
        lambda: FlawedAgent("wrong value", _wrong_value),
        "does everything right, except for one written value or the answer",
    ),
    "random": (lambda: make_agent("random"), "random requests and answers"),
    "idle": (lambda: make_agent("idle"), "finishes at once with an empty answer"),
}
"""The agents with their descriptions."""


def measure(names: list[str], agents: list[str], tell: Callable[[str], None] = print) -> dict[str, dict[str, Any]]:
    """Return the results of agents on suites, by agent and suite.

    Args:
        names: Names of suites.
        agents: Names of agents.
        tell: Function that prints a line about each evaluation.
    """
    found: dict[str, dict[str, Any]] = {}
    for agent in agents:
        for name in names:
            with TemporaryDirectory() as folder:
                card = suites.evaluate(name, AGENTS[agent][0](), folder)
            success = card.overall.success
            found.setdefault(agent, {})[name] = {
                **success.model_dump(),
                "hash": card.suite_hash,
                "packs": {pack.env_id: pack.figures.success.share for pack in card.packs},
            }
            tell(f"{agent}, {name}: {success.count} of {success.of}")
    return found


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the results as a Markdown table with success in percent."""
    names = list(dict.fromkeys(name for own in results.values() for name in own))
    lines = [
        f"| agent | what it does | {' | '.join(f'`{name}`' for name in names)} |",
        "|---|---" + "|---" * len(names),
    ]
    for agent, own in results.items():
        cells = [f"{100 * own[name]['share']:.1f}" for name in names]
        lines.append(f"| {agent} | {AGENTS[agent][1]} | {' | '.join(cells)} |")
    return "\n".join([lines[0], f"{lines[1]}|", *lines[2:]]) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Measure, and write the results as JSON and as a Markdown table."""
    shipped = [suite.name for suite in suites.known_suites()]
    parser = argparse.ArgumentParser(prog="benchmarks.suites", description=__doc__.partition("\n")[0])
    parser.add_argument("--suite", action="append", choices=shipped, help="a suite (default: all); may be repeated")
    parser.add_argument("--agent", action="append", choices=list(AGENTS), help="an agent (default: all)")
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.md; by default the table is printed")
    args = parser.parse_args(arguments)
    results = measure(args.suite or shipped, args.agent or list(AGENTS), lambda line: print(line, file=sys.stderr))
    if args.out is None:
        print(table(results), end="")
    else:
        write_file(args.out.with_suffix(".json"), json.dumps(results, indent=1) + "\n")
        write_file(args.out.with_suffix(".md"), table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
