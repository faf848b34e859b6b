"""Prepare the checks of a verdict for pages: expected and found values beside the turns that they are about."""

from __future__ import annotations

import json
from dataclasses import dataclass

from fhir_gym.rollouts import Rollout
from fhir_gym.tasks import Check
from fhir_gym.types import Json
from fhir_gym.web.episode_replay import EpisodeTrace

_MAX_TEXT = 4_000
_MAX_LINE = 200


@dataclass(frozen=True, slots=True)
class CheckView:
    """One check.

    Attributes:
        check: The check.
        expected: The expected value as text; empty for none.
        actual: The found value as text; empty for none.
        turns: Numbers of the turns that the check is about.
        is_idle: Whether an agent passes the check by doing nothing.
    """

    check: Check
    expected: str
    actual: str
    turns: tuple[int, ...] = ()
    is_idle: bool = False


def check_views(rollout: Rollout, trace: EpisodeTrace) -> list[CheckView]:
    """Return the checks of an episode: failed checks first."""
    if rollout.verdict is None:
        return []
    idle = set(rollout.verdict.idle)
    views = [
        CheckView(
            one, value_text(one.expected), value_text(one.actual), tuple(trace.turns_behind(one)), one.name in idle
        )
        for one in rollout.verdict.checks
    ]
    return sorted(views, key=lambda one: one.check.passed)


def step_views(rollout: Rollout) -> list[CheckView]:
    """Return the steps of a verdict's diagnosis, in order."""
    diagnosis = rollout.verdict.diagnosis if rollout.verdict else None
    steps = diagnosis.steps if diagnosis else ()
    return [CheckView(one, value_text(one.expected), value_text(one.actual)) for one in steps]


def value_text(value: Json) -> str:
    """Return the value of a check as text: texts without quotation marks, other values as JSON."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) > _MAX_LINE and not isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False, indent=1)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
