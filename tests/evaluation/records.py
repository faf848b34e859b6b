"""Rollout records written by hand, so that the tests of reports need no world."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

from fhir_gym.agents import ModelReply, Usage
from fhir_gym.rollouts import Rollout, Turn
from fhir_gym.rollouts.record import AgentRecord, TaskRecord, Timings, WorldRecord
from fhir_gym.tasks import Check, Diagnosis, Verdict
from fhir_gym.tasks.grading.tool_usage import Calls, Tool, ToolUsage
from fhir_gym.tasks.grading.verdict import Evidence
from fhir_gym.tasks.packs.action_reasoning.cases import ErrorLabel

TASKS = {
    "01": ("Enter a new patient", "Patient Records", "action", 1),
    "02a": ("Search | a *patient*", "Patient Records", "query", 2),
    "11a": ("Find a slot", "Scheduling", "query", 3),
}


def turn(*, error: str | None = None, finish: str | None = None) -> Turn:
    reply = None
    if finish is not None:
        reply = ModelReply(
            kind="length" if finish == "length" else "action",
            message={"role": "assistant", "content": "GET /Patient"},
            finish_reason=finish,
            usage=Usage(prompt=100, completion=10),
        )
    return Turn(action="GET /Patient", observation="…", status=0 if error else 200, error=error, reply=reply)


def rollout(
    task: str = "01",
    variation: int = 0,
    success: bool | None = True,
    *,
    agent: str = "chat",
    settings: dict[str, Any] | None = None,
    turns: tuple[Turn, ...] = (),
    light: bool | None = None,
    error: str | None = None,
    stop: str | None = None,
    checks: tuple[tuple[str, bool], ...] | None = None,
    env_id: str = "FHIRAgent/Appointment-v0",
    seed: int = 7,
    grading: str = "state",
    label: ErrorLabel | None = None,
    process: ToolUsage | None = None,
    repeat: int = 0,
    usage: Usage | None = None,
) -> Rollout:
    """Make a record; with `success=None`, the episode has no verdict."""
    title, category, kind, difficulty = TASKS[task]
    verdict = None
    if success is not None:
        made = checks if checks is not None else (("answer", success), ("nothing else", True))
        sent = sum(turn.status != 0 for turn in turns)
        verdict = Verdict(
            success=success,
            light=light,
            checks=tuple(Check(name=name, passed=passed) for name, passed in made),
            evidence=Evidence(sufficient=True, note="-"),
            process=process or ToolUsage(requests={"search": sent} if sent else {}, errors={}, calls=()),
            answer=[],
            idle=(),
            explanation="-",
            diagnosis=label and Diagnosis(steps=(Check(name="s", passed=False),), error=label, step="s"),
        )
    done = (*turns, Turn(action="FINISH([])", observation="")) if success is not None else turns
    usages = [turn.reply.usage for turn in turns if turn.reply is not None and turn.reply.usage is not None]
    return Rollout.model_validate(
        {
            "package_version": "0.1.0",
            "env_id": env_id,
            "task": TaskRecord(
                key=task,
                variation=variation,
                split="train",
                phrasing=0,
                hash=f"{task}-{variation}",
                title=title,
                category=category,
                task_kind=kind,
                difficulty=difficulty,
            ),
            "world": WorldRecord(name="hospital-small", hash="0123456789abcdef"),
            "agent": AgentRecord(name=agent, settings=settings or {}),
            "seed": seed,
            "repeat": repeat,
            "grading": grading,
            "reward_rule": "sparse",
            "max_steps": 15,
            "prompt": "…",
            "action_format": "…",
            "turns": done,
            "usage": usage or (sum(usages, Usage()) if usages else None),
            "steps": len(done),
            "stop_reason": stop or ("infra_error" if success is None else "finished"),
            "error": error,
            "success": success,
            "light": light,
            "reward": None if success is None else float(success),
            "verdict": verdict,
            "timings": Timings(prepare=0.1, agent=2.0, server=0.5),
        }
    )


def used(
    *calls: tuple[Tool, str, int, int],
    selected: bool | None = True,
    ordered: bool | None = True,
    untouched: tuple[str, ...] = (),
    prohibited: tuple[str, ...] = (),
) -> ToolUsage:
    """Make the tool usage of an episode from tools, resource types, requests and errors."""
    requests: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    for tool, _, count, failed in calls:
        requests[tool] += count
        errors[tool] += failed
    return ToolUsage(
        requests=dict(requests),
        errors={tool: count for tool, count in errors.items() if count},
        calls=tuple(Calls(tool=t, resource_type=kind, requests=n, errors=failed) for t, kind, n, failed in calls),
        tools_selected=selected,
        tools_in_order=ordered,
        untouched=untouched,
        prohibited=prohibited,
        reference=1,
    )


def study(shift: int = 0) -> list[Rollout]:
    """Two repeats of two variations of two tasks, with tool calls, tokens and several failure modes."""
    search: tuple[Tool, str, int, int] = ("search", "Patient", 2, 0)
    create: tuple[Tool, str, int, int] = ("create", "Patient", 1, 1)
    found = []
    for place, (task, variation, repeat) in enumerate(product(("01", "02a"), (0, 1), (0, 1))):
        success = (place + shift) % 3 != 0
        tokens = Usage(prompt=1000 + 100 * place, completion=50 + shift)
        process = (
            used(search, create) if task == "01" else used(search, selected=success, prohibited=("create",) * shift)
        )
        found.append(
            rollout(
                task,
                variation,
                success,
                agent="study",
                settings={"shift": shift},
                light=success,
                process=process,
                repeat=repeat,
                usage=tokens,
            )
        )
    return found


SMALL = {"model": "small", "temperature": 0.0}
LARGE = {"model": "large", "temperature": 0.5}


def small() -> list[Rollout]:
    """The run of a weak model, with invalid actions, truncated replies and one provider failure."""
    said = "it must start with one of GET, POST, not with 'The patient'"
    other = "it must start with one of GET, POST, not with 'I think that'"
    return [
        rollout("01", 0, False, settings=SMALL, turns=(turn(error=said, finish="stop"),), light=True),
        rollout("01", 1, False, settings=SMALL, turns=(turn(error=other, finish="length"),), light=False),
        rollout("02a", 0, True, settings=SMALL, turns=(turn(finish="stop"),)),
        rollout("02a", 1, False, settings=SMALL, turns=(turn(finish="stop"), turn(finish="stop")), stop="step_limit"),
        rollout("11a", 0, None, settings=SMALL, error="the endpoint answered 503 (request 81234)"),
    ]


def large() -> list[Rollout]:
    """The run of a better model, with one additional task."""
    return [
        rollout("01", 0, True, settings=LARGE, turns=(turn(finish="stop"),), light=True),
        rollout("01", 1, False, settings=LARGE, turns=(turn(finish="stop"),), light=True),
        rollout("02a", 0, True, settings=LARGE, turns=(turn(finish="stop"),)),
        rollout("02a", 1, True, settings=LARGE, turns=(turn(finish="stop"),)),
        rollout("11a", 0, True, settings=LARGE, turns=(turn(finish="stop"),)),
    ]
