"""Measure how agents that never read a record score on MedAgentBench tasks.

    python -m benchmarks.trivial_policies --world FOLDER --task-file test_data_v2.json     the official tasks
    python -m benchmarks.trivial_policies --world cohort-mini --variations 20              our own tasks

Prints one JSON line per policy: successes among queries and among actions, under each grading. `as_reference` counts
the successes in which the agent writes exactly what the reference solution writes: such an agent did the whole task.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.official_agreement import open_data
from fhir_gym import Episode, make_agent, run
from fhir_gym.actions import Finish, Post
from fhir_gym.fhir import World
from fhir_gym.tasks import task_set
from fhir_gym.types import Json, Resource

__all__ = ["PACK", "POLICIES", "Policy", "constant", "measure", "tally"]

PACK = "FHIRAgent/MedAgentBench-v0"
Policy = Callable[[str], Sequence[str]]
"""Maps a prompt to the actions of an agent that sees nothing else."""

_MRN = re.compile(r"\bS\d{7}\b")
_NDC = re.compile(r"\b\d{4,5}-\d{3,4}-\d{2}\b")
_LOINC = re.compile(r"LOINC code[^.]*?(\d{4,5}-\d)\b")
_SNOMED = re.compile(r"SNOMED[^.]*?(\d{15})\b")
_NOW = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:Z|\+00:00)")
_PRESSURE = re.compile(r"\d+/\d+ mmHg")
_QUOTED = re.compile(r'"([^"]{40,})"')
_DOSE = re.compile(r"(\d+) (mEq|g)\b")
_MORNING = re.compile(r"\b8 ?am\b")
_BASE = "http://localhost:8080/fhir"


def constant(*answer: Json) -> Policy:
    """Return a policy that always finishes at once with the same answer."""
    return lambda prompt: [Finish(answer).text()]


def _always_order(prompt: str) -> list[str]:
    """Place the order that the prompt describes, and finish with an empty answer."""
    return [Post(f"{_BASE}/{order['resourceType']}", order).text() for order in _orders(prompt)] + ["FINISH([])"]


def _copy(prompt: str) -> list[str]:
    """Place the order, and answer the first number of the prompt that could be a lab value."""
    numbers = [float(number) for number in re.findall(r"(?<![\d.-])\d\.\d(?![\d.-])", prompt)]
    return [*_always_order(prompt)[:-1], Finish(numbers[:1] or [-1]).text()]


def _orders(prompt: str) -> Iterator[Resource]:
    mrn, now = _first(_MRN, prompt) or "S0000000", _first(_NOW, prompt) or ""
    common: Resource = {"status": "active", "intent": "order", "subject": {"reference": f"Patient/{mrn}"}}
    drug, dose, pressure = _first(_NDC, prompt), _DOSE.search(prompt), _first(_PRESSURE, prompt)
    if drug and dose:
        amount = {"doseQuantity": {"value": int(dose[1]), "unit": dose[2]}}
        if dose[2] == "g":
            amount["rateQuantity"] = {"value": int(dose[1]), "unit": "h"}
        yield {
            "resourceType": "MedicationRequest",
            **common,
            "medicationCodeableConcept": {"coding": [{"system": "http://hl7.org/fhir/sid/ndc", "code": drug}]},
            "authoredOn": now,
            "dosageInstruction": [{"route": {"text": "IV" if dose[2] == "g" else "oral"}, "doseAndRate": [amount]}],
        }
    for system, pattern in (("http://loinc.org", _LOINC), ("http://snomed.info/sct", _SNOMED)):
        code = pattern.search(prompt)
        if code:
            note = _QUOTED.search(prompt)
            due = {"occurrenceDateTime": "2023-11-14T08:00:00+00:00"} if _MORNING.search(prompt) else {}
            yield {
                "resourceType": "ServiceRequest",
                **common,
                "code": {"coding": [{"system": system, "code": code[1]}]},
                "authoredOn": now,
                "priority": "stat",
                **due,
            } | ({"note": {"text": note[1]}} if note else {})
    if pressure:
        category = {
            "system": "http://hl7.org/fhir/observation-category",
            "code": "vital-signs",
            "display": "Vital Signs",
        }
        yield {
            "resourceType": "Observation",
            "status": "final",
            "category": [{"coding": [category]}],
            "code": {"text": "BP"},
            "subject": common["subject"],
            "effectiveDateTime": now,
            "valueString": pressure,
        }


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return match[0] if match else None


POLICIES: Mapping[str, Policy] = {
    "idle: `FINISH([])`": constant(),
    "never orders: `FINISH([-1])`": constant(-1),
    'constant: `FINISH(["Patient not found"])`': constant("Patient not found"),
    "always places the order of the prompt": _always_order,
    "places the order and answers a number of the prompt": _copy,
}


def measure(world: World, policies: Mapping[str, Policy], **choice: Any) -> Iterator[dict[str, Any]]:
    """Play policies, and yield the number of successes of each policy by grading, kind and task.

    Args:
        world: The world.
        policies: The policies by name.
        choice: ``task_file``, or ``variations`` of our own tasks.
    """
    scores: dict[str, dict[str, Any]] = {name: {} for name in policies}
    for played in _played(world, policies, **choice):
        for grading, success in played.gradings.items():
            score = scores[played.policy].setdefault(grading, {"as_reference": 0})
            tally(score, played.kind, played.key, success)
            score["as_reference"] += success and played.as_reference
    for name, by_grading in scores.items():
        yield {"policy": name, **by_grading}


def tally(score: dict[str, Any], kind: str, key: str, success: bool) -> None:
    """Count one episode."""
    for name in (kind, key):
        counted = score.setdefault(name, [0, 0])
        counted[0] += success
        counted[1] += 1


@dataclass(frozen=True)
class _Played:
    """One episode of a policy.

    Attributes:
        policy: Name of the policy.
        kind: ``query`` or ``action``.
        key: Key of the task; for a task file, the task's class.
        gradings: Success under each grading.
        as_reference: Whether the policy writes something, and writes exactly what the reference solution writes.
    """

    policy: str
    kind: str
    key: str
    gradings: Mapping[str, bool]
    as_reference: bool


def _played(
    world: World, policies: Mapping[str, Policy], *, task_file: str | Path | None = None, variations: int = 1
) -> Iterator[_Played]:
    tasks, numbers = task_set(PACK, task_file), range(1 if task_file else variations)
    grading: Any = "official" if task_file else "state"
    for reference in run(PACK, "gold", variations=numbers, world=world, task_file=task_file):
        key, number = reference.task.key, reference.task.variation
        wanted = _writes(turn.action for turn in reference.turns)
        setup = {"task": key, "variation": number, "world": world, "grading": grading, "task_file": task_file}
        with Episode(PACK, **setup) as episode:
            for name, policy in policies.items():
                texts = policy(episode.prompt)
                episode.start()
                for text in texts:
                    episode.step(text)
                same = bool(wanted) and _writes(texts) == wanted
                yield _Played(name, tasks[key].kind, key.partition("_")[0], episode.verdict().gradings, same)


def _writes(texts: Iterable[str]) -> list[Json]:
    """Return the bodies of the POST actions."""
    return [json.loads(text.partition("\n")[2]) for text in texts if text.startswith("POST")]


def _best_constant(world: World, most: int, **choice: Any) -> dict[str, Policy]:
    """Return a constant policy for each of the most frequent right answers; `most` limits their number."""
    counts: dict[str, int] = {}
    number = range(choice.get("variations", 1))
    rollouts = run(PACK, make_agent("gold"), world=world, variations=number, task_file=choice.get("task_file"))
    for rollout in rollouts:
        answer = json.dumps(rollout.verdict.answer if rollout.verdict else None)
        counts[answer] = counts.get(answer, 0) + 1
    usual = sorted(counts, key=lambda answer: -counts[answer])[:most]
    return {f"constant: `FINISH({answer})`": constant(*json.loads(answer)) for answer in usual}


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.trivial_policies", description=__doc__.partition("\n")[0])
    parser.add_argument("--world", required=True, help="a world, or a folder of NDJSON files to import")
    parser.add_argument("--task-file", help="the benchmark's task file (default: our own tasks)")
    parser.add_argument("--variations", type=int, default=20, help="variations of each of our own tasks")
    parser.add_argument("--constants", type=int, default=0, help="also play the N most frequent right answers")
    args = parser.parse_args(arguments)
    choice = {"task_file": args.task_file} if args.task_file else {"variations": args.variations}
    with ExitStack() as stack:
        world = stack.enter_context(open_data(args.world, stack))
        policies = {**POLICIES, **_best_constant(world, args.constants, **choice)} if args.constants else POLICIES
        for row in measure(world, policies, **choice):
            print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
