"""The verdict on an episode: checks, evidence, reward and explanation."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict

from fhir_gym.arguments import require_name
from fhir_gym.tasks.grading.checks import Check, Diagnosis
from fhir_gym.tasks.grading.end_state import LoggedRequest, returned_resources
from fhir_gym.tasks.grading.tool_usage import ToolUsage
from fhir_gym.types import Json


class Evidence(BaseModel):
    """Whether the agent read the records that its answer requires.

    Attributes:
        sufficient: Whether the evidence suffices.
        missing: References to the required records that were never retrieved.
        looked: For an answer that a record is absent, whether the requests would have found such a record; None for
            other answers.
        note: The result in words.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    sufficient: bool
    missing: tuple[str, ...] = ()
    looked: bool | None = None
    note: str

    @classmethod
    def of(cls, missing: Iterable[str], looked: bool | None, when: str = "") -> Evidence:
        """Build the evidence and its note. The note ends with `when`, for example " before the first change"."""
        missing = tuple(missing)
        lines = []
        if missing:
            lines.append(f"never retrieved {', '.join(missing)}{when}")
        if looked is False:
            lines.append(f"no request{when} would have shown the record, had there been one")
        sufficient = not missing and looked is not False
        note = "; ".join(lines) if lines else "every record the answer rests on was looked up"
        return cls(sufficient=sufficient, missing=missing, looked=looked, note=note + ".")


def missing_records(
    logged: Iterable[LoggedRequest], records: Iterable[str], evidence_fields: Mapping[str, Collection[str]]
) -> list[str]:
    """The records that no read or search returned together with the required elements.

    A conditional create that finds an existing record counts as a read of this record.

    Args:
        logged: The agent's requests with their responses.
        records: References to the records.
        evidence_fields: Required elements for each type; see `Task.evidence_fields`.
    """
    logged = list(logged)
    matched = _matched_by_creates(logged)
    sought = [record for record in records if record not in matched]
    returned = returned_resources(logged, sought)
    return [
        record
        for record in sought
        if record not in returned or not {*evidence_fields.get(record.partition("/")[0], ())} <= returned[record].keys()
    ]


def _matched_by_creates(logged: Iterable[LoggedRequest]) -> set[str]:
    return {
        f"{done.resource_type}/{done.id}"
        for request in logged
        for done in request.response.done
        if done.kind == "create" and done.id and not done.effect and done.status < 300
    }


RewardRule = Literal["sparse", "dense"]
"""Name of the rule that turns a verdict into a reward; see `Verdict.reward`."""
REWARD_RULES: tuple[RewardRule, ...] = ("sparse", "dense")
"""All reward rules."""
_SHORT = 160


class Verdict(BaseModel):
    """The verdict on an episode.

    Attributes:
        success: Whether every check passed.
        light: Whether every ``exists`` check passed (FHIR-AgentEval's light validation); None without such checks.
        checks: All checks; the task's own checks come first.
        evidence: Whether the agent read the records that its answer requires.
        process: Tool usage.
        answer: The answer; None if the agent did not finish.
        idle: Names of the checks that an agent passes by answering ``FINISH([])`` at once.
        gradings: For each grading of the task, whether the episode is a success.
        diagnosis: Diagnosis of the failure; None for tasks without diagnosis.
        score: The dense reward by the task's own rule; None for the standard rule.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    success: bool
    light: bool | None
    checks: tuple[Check, ...]
    evidence: Evidence
    process: ToolUsage
    answer: list[Json] | None
    idle: tuple[str, ...]
    explanation: str
    gradings: dict[str, bool] = {}
    diagnosis: Diagnosis | None = None
    score: float | None = None

    def reward(self, rule: RewardRule = "sparse") -> float:
        """The reward of the episode's last step.

        Args:
            rule: ``sparse`` gives 1 for success, else 0. ``dense`` gives the `score`, if the task has one. Otherwise it
                starts with the share of passed checks among the checks that an idle agent fails. It subtracts the share
                of failed checks among the checks that an idle agent passes. The reward is at least 0, and 1 only for
                success.

        Raises:
            UnknownNameError: There is no such rule.
        """
        require_name("reward rule", rule, REWARD_RULES)
        if self.success or rule == "sparse":
            return float(self.success)
        if self.score is not None:
            return self.score
        idle = set(self.idle)
        gained = sum(check.passed for check in self.checks if check.name not in idle)
        broken = sum(not check.passed for check in self.checks if check.name in idle)
        return max(0.0, (gained - broken) / max(1, len(self.checks) - len(idle)))

    def check_rewards(self) -> list[dict[str, Json]]:
        """Return the parts of the dense reward, one for each check, as plain data.

        Each entry has the check's ``name``, ``level`` and ``passed``, ``idle`` (whether an idle agent passes the check)
        and ``reward``: the check's share if it earned it, minus the share if the agent broke a check that an idle agent
        passes, otherwise 0. The dense reward of a failed episode is the sum of the parts, but at least 0.
        """
        idle = set(self.idle)
        share = 1.0 / max(1, len(self.checks) - len(idle))
        return [
            {
                "name": check.name,
                "level": check.level,
                "passed": check.passed,
                "idle": check.name in idle,
                "reward": share * (check.passed - (check.name in idle)),
            }
            for check in self.checks
        ]

    def diagnosed(self, diagnosis: Diagnosis | None) -> Self:
        """Return a copy with a diagnosis, which is added to the explanation too."""
        if diagnosis is None:
            return self
        culprit = diagnosis.culprit
        text = self.explanation
        if culprit is not None:
            mismatch = f"expected {_short(culprit.expected)}, found {_short(culprit.actual)}"
            text += f"\nError: {diagnosis.error}, in the step {culprit.name!r}: {mismatch}."
        return self.model_copy(update={"diagnosis": diagnosis, "explanation": text})

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that did not pass."""
        return tuple(check for check in self.checks if not check.passed)


def explain(checks: tuple[Check, ...], evidence: Evidence) -> str:
    """Explain a verdict: one line for the result, one line per failed check, and one line for the evidence."""
    failed = [check for check in checks if not check.passed]
    if failed:
        lines = [f"Failed: {len(failed)} of {len(checks)} checks did not pass."]
        lines += [f"- {c.name}: expected {_short(c.expected)}, found {_short(c.actual)}" for c in failed]
    else:
        lines = [f"Success: all {len(checks)} checks passed."]
    return "\n".join([*lines, f"Evidence: {evidence.note}"])


def _short(value: Json) -> str:
    if value is None:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHORT else text[: _SHORT - 1] + "…"
