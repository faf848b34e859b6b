"""Compare deliberate errors in ActionReasoning tasks with the labels that their diagnoses give (a confusion table).

    python -m benchmarks.reasoning_errors --world cohort-mini --tasks 40

Each lazy agent (`benchmarks.lazy_agents`) makes one error and does everything else right. Prints one JSON line
per agent, then one line with the totals; `Tally` describes the fields.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.lazy_agents import LAZY_AGENTS, CarefulAgent, LazyAgent, ParsedPrompt
from benchmarks.official_agreement import open_data
from fhir_gym import Episode
from fhir_gym.agents import Agent, EpisodeContext
from fhir_gym.fhir import World
from fhir_gym.tasks import Verdict, task_set
from fhir_gym.tasks.core.grader import ANSWER_FORM
from fhir_gym.tasks.packs.action_reasoning import ENV_ID
from fhir_gym.tasks.packs.action_reasoning.steps import FLAG, VALUE

__all__ = ["Tally", "confusion", "main", "play"]

_COUNTS = ("tried", "solved", "lucky", "ambiguous", "accepted")


@dataclass
class Tally:
    """Counts of one agent's episodes.

    Attributes:
        agent: The agent's error.
        trivial: Whether the agent reads only the prompt or takes no care at all.
        tried: Number of episodes in which the error can occur.
        solved: Number of successes among these episodes.
        lucky: Number of episodes in which the affected part was correct by luck; such episodes do not show the error.
        ambiguous: Number of failures that a simpler error would also explain.
        accepted: Number of successes although the affected part was wrong; should be 0.
        labels: Number of the other failures by pair of expected and given label.
    """

    agent: str
    trivial: bool
    tried: int = 0
    solved: int = 0
    lucky: int = 0
    ambiguous: int = 0
    accepted: int = 0
    labels: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def right(self) -> int:
        """Number of failures with the expected label."""
        return sum(count for (expected, given), count in self.labels.items() if expected == given)

    def add(self, other: Tally) -> None:
        """Add another agent's counts."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.labels.update(other.labels)

    def to_json(self) -> dict[str, Any]:
        """The counts as a JSON object."""
        failures = sum(self.labels.values())
        given: dict[str, Counter[str]] = {}
        for (expected, label), count in sorted(self.labels.items()):
            given.setdefault(expected, Counter())[label] += count
        return {
            "agent": self.agent,
            "trivial": self.trivial,
            **{name: getattr(self, name) for name in _COUNTS},
            "failures": failures,
            "right": self.right,
            "share": round(self.right / failures, 4) if failures else None,
            "labels": given,
        }


def play(episode: Episode, agent: Agent) -> Verdict:
    """Play an episode from its start."""
    observation = episode.start()
    variation = episode.variation
    limit = episode.step_limit
    context = EpisodeContext(ENV_ID, variation.task_key, variation.number, episode.world, 0, limit, episode.prompt)
    agent.reset(observation, context)
    while True:
        action = agent.act(observation)
        if not isinstance(action, str):
            raise TypeError(f"{agent.name} gave {type(action).__name__}")
        step = episode.step(action)
        if step.done:
            return episode.verdict()
        observation = step.observation


def confusion(
    world: World,
    *,
    variations: Sequence[int] = (0,),
    agents: Sequence[type[LazyAgent]] = LAZY_AGENTS,
    task_file: str | Path | None = None,
) -> list[Tally]:
    """Play every agent on every task.

    Args:
        world: The world.
        variations: Variations of each task; the tasks of a task file have only variation 0.
        agents: The lazy agents.
        task_file: A task file; None for the pack's own tasks.
    """
    tallies = {agent: Tally(agent.name, agent.trivial) for agent in agents}
    for episode in _episodes(world, variations, task_file):
        prompt = ParsedPrompt.parse(episode.start())
        for agent, tally in tallies.items():
            lazy = agent()
            if lazy.applies(prompt):
                _count(tally, lazy, play(episode, lazy))
    return list(tallies.values())


def _episodes(world: World, variations: Sequence[int], task_file: str | Path | None) -> Iterator[Episode]:
    for key in task_set(ENV_ID, task_file):
        for number in variations:
            with Episode(ENV_ID, task=key, variation=number, world=world, task_file=task_file) as episode:
                if not play(episode, CarefulAgent()).success:
                    raise RuntimeError(f"the careful agent fails in {key}, variation {number}: {episode.prompt}")
                yield episode


def _count(tally: Tally, agent: LazyAgent, verdict: Verdict) -> None:
    lucky = _is_lucky(agent, verdict)
    tally.tried += 1
    tally.solved += verdict.success
    tally.lucky += lucky
    tally.accepted += verdict.success and not lucky
    if verdict.success or lucky:
        return
    tally.ambiguous += agent.ambiguous
    if not agent.ambiguous:
        given = verdict.diagnosis.error if verdict.diagnosis else None
        tally.labels[agent.expected_label, str(given)] += 1


def _is_lucky(agent: LazyAgent, verdict: Verdict) -> bool:
    """Whether the part that the agent's error affects is correct by luck."""
    passed = {check.name: check.passed for check in verdict.checks}
    if agent.affects == "action":
        return verdict.success
    if agent.affects == "evidence":
        return verdict.evidence.sufficient or not passed[FLAG]  # then the failure has another cause: a wrong guess
    return passed[{"value": VALUE, "decision": FLAG, "form": ANSWER_FORM}[agent.affects]]


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.reasoning_errors", description=__doc__.partition("\n")[0])
    parser.add_argument("--world", default="cohort-mini", help="a world, or a folder of NDJSON files to import")
    parser.add_argument("--tasks", type=int, default=40, help="variations of each task")
    parser.add_argument("--quick", action="store_true", help="one variation of each task")
    parser.add_argument("--task-file", help="use the tasks of this file instead of the pack's own")
    args = parser.parse_args(arguments)
    with ExitStack() as stack:
        world = stack.enter_context(open_data(args.world, stack))
        variations = (0,) if args.task_file else range(1 if args.quick else args.tasks)
        tallies = confusion(world, variations=variations, task_file=args.task_file)
    total = Tally("all", False)
    for tally in tallies:
        print(json.dumps(tally.to_json()))
        total.add(tally)
    print(json.dumps(total.to_json()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
