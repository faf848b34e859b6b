"""Reports of invented episodes, so that the tests of figures need no world and no model."""

from __future__ import annotations

import random
from collections.abc import Sequence

from fhir_gym.agents import Usage
from fhir_gym.evaluation import AgentRun, EpisodeMetrics, Report
from fhir_gym.evaluation.failure_modes import FAILURE_MODES
from fhir_gym.evaluation.metrics import ToolCalls
from fhir_gym.rollouts.record import TaskRecord

ENV_ID = "FHIRAgent/Appointment-v0"
TASKS = ("01", "02a", "02b", "03a", "04", "05a", "06", "07", "08", "09a", "10", "11a")
CONFIGURATIONS = ("baseline", "spec", "memory", "memory-spec", "memory-spec-runtime")
CALLS = (("search", "Patient"), ("create", "Appointment"), ("update", "Appointment"), ("read", "Slot"))
EXPERIMENTS = ("experiment-1", "experiment-2", "experiment-3", "experiment-4")
HOSTILE = '<script>alert(1)</script> ]]> $x^{ \\frac$ & "q" \x1b[31m\u202e\ud800 日本'


def episode(task: str, variation: int, repeat: int, skill: float, chance: random.Random) -> EpisodeMetrics:
    """Invent an episode; more skill means more success, fewer errors and more tokens."""
    difficulty = 1 + TASKS.index(task) % 3
    success = chance.random() < skill - 0.12 * (difficulty - 2) + 0.1 * ((variation * 7 + TASKS.index(task)) % 3 - 1)
    calls = [
        ToolCalls(tool, kind, made, min(made, int(chance.random() < 0.6 - 0.5 * skill) * chance.randrange(1, 3)))
        for tool, kind in (
            ("search", "Patient"),
            ("create", "Appointment"),
            ("update", "Appointment"),
            ("read", "Slot"),
        )
        for made in [chance.randrange(0, 2 + difficulty)]
        if made
    ]
    modes = () if success else tuple(mode for mode in FAILURE_MODES[:-1] if chance.random() < 0.4) or ("other",)
    tokens = int(900 * difficulty * (1 + skill) * chance.lognormvariate(0, 0.35))
    return EpisodeMetrics(
        agent="chat",
        settings="{}",
        env_id=ENV_ID,
        task=TaskRecord(
            key=task,
            variation=variation,
            split="test",
            phrasing=0,
            hash=f"{task}-{variation}",
            title=f"Task {task}",
            category="Scheduling",
            task_kind="action",
            difficulty=difficulty,
        ),
        key=(ENV_ID, task, variation, f"{task}-{variation}", repeat),
        conditions=(("world", "hospital-small"), ("grading", "state"), ("max_steps", "15")),
        success=success,
        light=success or chance.random() < 0.3 if difficulty > 1 else None,
        reward=float(success),
        steps=sum(call.calls for call in calls) + 1,
        requests=sum(call.calls for call in calls),
        reference=difficulty + 1,
        invalid=(),
        usage=Usage(prompt=tokens, completion=tokens // 8),
        stop="finished",
        replies=("action (stop)",),
        error=None,
        checks=(("answer", success),),
        gradings=(("state", success),),
        label=None,
        tools=tuple(calls),
        failure_modes=modes,
        tools_known=True,
        lookups=(ToolCalls("spec getStructureDefinition", "", 2, 0),) if skill > 0.5 else (),
    )


def report(
    configurations: Sequence[str] = CONFIGURATIONS,
    experiments: Sequence[str] = EXPERIMENTS,
    *,
    variations: int = 3,
    repeats: int = 3,
    model: str = "scripted",
) -> Report:
    """Invent a report: later configurations are better, later experiments harder."""
    runs = []
    for place, experiment in enumerate(experiments):
        for number, configuration in enumerate(configurations):
            chance = random.Random(100 * place + number)
            skill = min(0.95, 0.35 + 0.08 * number - 0.03 * place)
            episodes = tuple(
                episode(task, variation, repeat, skill, chance)
                for repeat in range(repeats)
                for task in TASKS
                for variation in range(variations)
            )
            name = f"{experiment} {configuration}" if len(experiments) > 1 else configuration
            source = f"{experiment or 'rollouts'}/{configuration}.jsonl"
            runs.append(AgentRun(name, source, "chat", {"model": model}, episodes, 0, experiment, configuration))
    return Report(tuple(runs))
