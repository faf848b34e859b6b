"""Measure the success rates of agents that do only part of the work.

    python -m benchmarks.hasty_policies --variations 100 --out hasty.json     writes hasty.json and hasty.md

Each policy follows the reference solution but omits a part: one condition of a search, all of its conditions except
one, all pages after the first, or the check of the status. One policy always answers that nothing exists. A policy's
name consists of search and condition, so that the tables of two versions can be compared.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fhir_gym import worlds
from fhir_gym.fhir import World
from fhir_gym.files import write_file
from fhir_gym.soundness import by_world
from fhir_gym.soundness.flawed_policies import careless_policies
from fhir_gym.soundness.policy_runner import Policy, PolicyRunner
from fhir_gym.soundness.recording import GoldRecording
from fhir_gym.tasks import Task

__all__ = ["comparison", "measure", "table"]

Shares = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Success rates by task, group of policies and policy."""


def measure(task: Task[Any], world: World, variations: Iterable[int]) -> dict[str, dict[str, float]]:
    """Return the success rate of each policy on a task, by group and name.

    A policy's rate covers only the variations in which the reference solution makes the search that the policy changes.
    The group `all` adds `gold`, `any` (the share of variations that at least one policy solves) and `mean` (the
    mean over all policies).

    Args:
        task: The task.
        world: The world.
        variations: Numbers of the variations.
    """
    won: dict[tuple[str, str], list[bool]] = {}
    for number in variations:
        with PolicyRunner(task, task.variation(number, world), world) as runner:
            run = runner.gold()
            recording = GoldRecording.of(run, runner.variation.setup)
            here: dict[tuple[str, str], list[bool]] = {}
            for policy in careless_policies(task, runner.variation.params, recording):
                here.setdefault(_name(policy), []).append(runner.run(policy)[0].verdict.success)
        for key, several in here.items():
            won.setdefault(key, []).extend(several)
        won.setdefault(("all", "gold"), []).append(run.verdict.success)
        won.setdefault(("all", "any"), []).append(any(success for several in here.values() for success in several))
        won.setdefault(("all", "mean"), []).extend(success for several in here.values() for success in several)
    shares: dict[str, dict[str, float]] = {}
    for (group, name), several in sorted(won.items()):
        shares.setdefault(group, {})[name] = round(sum(several) / len(several), 4) if several else 0.0
    return shares


def _name(policy: Policy) -> tuple[str, str]:
    return policy.group, policy.name


def table(shares: Shares) -> str:
    """Return a table with the mean of each group and the most successful policy of each task."""
    groups = sorted({group for task in shares.values() for group in task} - {"all"})
    lines = [f"| task | gold | any | {' | '.join(groups)} | most often |", "|---" * (len(groups) + 4) + "|"]
    for name, task in shares.items():
        means = (_percent(sum(of.values()) / len(of)) if (of := task.get(group)) else "" for group in groups)
        best, share = _best(task)
        lines.append(
            f"| {name} | {_percent(task['all']['gold'])} | {_percent(task['all']['any'])} | {' | '.join(means)} | "
            f"{best} {_percent(share)} |"
        )
    return "\n".join(lines) + "\n"


def comparison(before: Shares, after: Shares) -> str:
    """Return a table of policies that succeed more often than before, and a table of the means of each task.

    Args:
        before: Rates of an earlier version.
        after: Rates of this version.
    """
    lines = ["| task | policy | before | after |", "|---|---|---|---|"]
    for name, task in after.items():
        old = before.get(name, {})
        rows = [
            (f"{group}: {policy}", old.get(group, {}).get(policy), share)
            for group, of in task.items()
            for policy, share in of.items()
        ]
        for label, was, share in rows:
            if label.startswith("all: ") or was is None or share > was:
                lines.append(f"| {name} | {label} | {'new' if was is None else _percent(was)} | {_percent(share)} |")
    return "\n".join(lines) + "\n"


def _best(task: Mapping[str, Mapping[str, float]]) -> tuple[str, float]:
    rows = [(share, f"{group}: {name}") for group, of in task.items() if group != "all" for name, share in of.items()]
    share, name = max(rows, default=(0.0, ""))
    return name, share


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a line per task and write the files."""
    parser = argparse.ArgumentParser(prog="benchmarks.hasty_policies", description=__doc__.partition("\n")[0])
    parser.add_argument("env_ids", nargs="*", metavar="ENV_ID", help="environments (default: all)")
    parser.add_argument("--tasks", help="task keys, separated by commas")
    parser.add_argument("--variations", type=int, default=100, help="variations of each task")
    parser.add_argument("--world", help="one world for all (default: each environment's own)")
    parser.add_argument("--out", type=Path, help="write JSON to this file and a table beside it (.md)")
    parser.add_argument("--before", type=Path, help="compare with the JSON of an earlier version (.diff.md)")
    args = parser.parse_args(arguments)
    shares: dict[str, dict[str, dict[str, float]]] = {}
    keys = args.tasks.split(",") if args.tasks else None
    for name, chosen in by_world(args.env_ids or None, tasks=keys, world=args.world).items():
        with worlds.load(name) as world:
            for task in chosen:
                label = f"{task.pack.removeprefix('FHIRAgent/')} {task.key}"
                shares[label] = measure(task, world, range(args.variations))
                print(json.dumps({"task": label, **shares[label]["all"]}), flush=True)
                _write(args, shares)
    return 0


def _write(args: argparse.Namespace, shares: Shares) -> None:
    if args.out:
        write_file(args.out, json.dumps(shares, indent=1) + "\n")
        write_file(args.out.with_suffix(".md"), table(shares))
        if args.before:
            before = json.loads(args.before.read_text(encoding="utf-8"))
            write_file(args.out.with_suffix(".diff.md"), comparison(before, shares))


if __name__ == "__main__":
    sys.exit(main())
