"""What the table of episodes shows about a rollout, extracted from its JSON line without full validation."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any

import orjson

from fhir_gym.types import Json

_MAX_TEXT = 300
_MAX_CHECKS = 200
_MAX_NUMBER = 2**53


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """A row of the table of episodes.

    Attributes:
        env_id: Env id of the pack.
        task: Key of the task.
        title: Title of the task.
        variation: Number of the variation.
        phrasing: Index of the prompt wording, or ``brief``.
        repeat: Index of this run of the variation.
        world: Name of the world.
        agent: Name of the agent.
        model: Name of the model; empty without one.
        settings: The agent's settings as JSON text, which distinguishes runs.
        success: Whether the episode succeeded; None without a verdict.
        reward: The reward; None without a verdict.
        stop_reason: Why the episode ended.
        error: The failure that ended the episode; empty without one.
        steps: Number of turns.
        invalid: Number of invalid actions.
        tokens: Number of input and output tokens; None if they were not counted.
        seconds: Wall-clock seconds; None if they were not recorded.
        failed_checks: Names of the failed checks.
    """

    env_id: str
    task: str
    title: str
    variation: int
    phrasing: str
    repeat: int
    world: str
    agent: str
    model: str
    settings: str
    success: bool | None
    reward: float | None
    stop_reason: str
    error: str
    steps: int
    invalid: int
    tokens: int | None
    seconds: float | None
    failed_checks: tuple[str, ...]

    @classmethod
    def of(cls, line: bytes) -> EpisodeRow:
        """Return the row of a line.

        Raises:
            ValueError: The line is not a rollout. The message says what is wrong.
        """
        data = parse_line(line)
        if not isinstance(data, dict) or "schema_version" not in data:
            raise ValueError("not a rollout: it has no schema_version")
        try:
            return _row(data)
        except KeyError as error:
            raise ValueError(f"not a rollout: {error} is missing") from error
        except (TypeError, AttributeError) as error:
            raise ValueError(f"not a rollout: a value has the wrong type: {error}"[:_MAX_TEXT]) from error

    @property
    def run_digest(self) -> bytes:
        """A digest of the agent and its settings."""
        return blake2b(f"{self.agent}\n{self.settings}".encode(), digest_size=16).digest()

    def values(self) -> list[str | float | None]:
        """Return the values of the `COLUMNS`."""
        return [getattr(self, name) for name in COLUMNS]


COLUMNS = tuple(field.name for field in fields(EpisodeRow) if field.name not in ("settings", "failed_checks"))
"""The columns of the index that hold the elements of a row."""


def parse_line(line: bytes) -> Any:
    """Parse a line as JSON.

    Raises:
        ValueError: The line is not JSON.
    """
    try:
        return orjson.loads(line)
    except ValueError:  # orjson refuses lone surrogates and NaN, which records may contain
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not JSON: {error}"[:_MAX_TEXT]) from error


def _row(data: dict[str, Any]) -> EpisodeRow:
    task, agent, verdict, timings = data["task"], data["agent"], data["verdict"], data.get("timings")
    settings, turns, usage = agent["settings"], data["turns"], data.get("usage")
    checks = verdict["checks"] if verdict else []
    return EpisodeRow(
        env_id=_text(data["env_id"]),
        task=_text(task["key"]),
        title=_text(task.get("title", "")),
        variation=_integer(task["variation"]),
        phrasing=_text(task["phrasing"]),
        repeat=_integer(data.get("repeat", 0)),
        world=_text(data["world"]["name"]),
        agent=_text(agent["name"]),
        model=_text(settings.get("model", "")),
        settings=json.dumps(settings, sort_keys=True),
        success=None if data["success"] is None else data["success"] is True,
        reward=None if data["reward"] is None else _float(data["reward"]),
        stop_reason=_text(data["stop_reason"]),
        error=_text(data.get("error") or ""),
        steps=_integer(data["steps"]),
        invalid=sum(turn.get("error") is not None for turn in turns),
        tokens=_integer(usage["prompt"]) + _integer(usage["completion"]) if usage else None,
        seconds=sum(_float(timings[name]) for name in ("prepare", "agent", "server")) if timings else None,
        failed_checks=tuple({_text(check["name"]): None for check in checks if not check["passed"]})[:_MAX_CHECKS],
    )


def _text(value: Json) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    text = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
    return text.encode("utf-8", "backslashreplace").decode()  # SQLite cannot store lone surrogates


def _integer(value: Json) -> int:
    if not isinstance(value, int) or abs(value) > _MAX_NUMBER:
        raise TypeError("a number is missing or too large")
    return int(value)


def _float(value: Json) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError("a number is missing")
    return float(value)
