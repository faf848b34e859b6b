"""A model's opinion on a verdict, and how to read it from the model's reply."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict

from fhir_gym.agents import Usage
from fhir_gym.types import Json, Phrasing

Opinion = Literal["agreement", "validator_too_strict", "validator_too_loose", "undecided", "unreadable"]
"""What a model thinks of a verdict; ``unreadable`` if its reply is none of the other opinions."""
OPINIONS: tuple[Opinion, ...] = get_args(Opinion)
"""All opinions."""
DISAGREEMENTS: tuple[Opinion, ...] = ("validator_too_strict", "validator_too_loose")
"""The opinions that dispute a verdict."""

MAX_REASON = 1_000
MAX_EVIDENCE = 500
_MAX_READ = 20_000
"""Number of characters at the end of a reply in which the opinion must be."""
_MAX_OBJECTS = 200
"""Maximum number of opening braces that are tried as the beginning of the opinion."""


class VerdictReview(BaseModel):
    """A model's opinion on one verdict. It does not change the record or any score.

    Attributes:
        schema_version: Version of this format.
        rollout: Digest of the reviewed record, without its timings.
        request: Digest of the request to the model.
        model: Name of the model that gave the opinion.
        env_id: Env id of the reviewed episode.
        task: Key of the task.
        title: Title of the task.
        variation: Number of the variation.
        phrasing: Index of the prompt wording, or ``brief``.
        repeat: Index of the run of the variation.
        agent: Name of the agent, with its model if it has one.
        success: Whether the verdict is a success.
        explanation: The verdict's explanation.
        opinion: The model's opinion.
        check: Name of the check that the model disputes; empty if it names none.
        reason: The model's reason.
        evidence: The passage that the model quotes from the log.
        evidence_found: Whether the log contains this passage.
        problem: Why the reply is unreadable.
        usage: Token counts of the review.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    rollout: str
    request: str
    model: str
    env_id: str
    task: str
    title: str
    variation: int
    phrasing: Phrasing
    repeat: int
    agent: str
    success: bool
    explanation: str
    opinion: Opinion
    check: str = ""
    reason: str = ""
    evidence: str = ""
    evidence_found: bool = False
    problem: str = ""
    usage: Usage | None = None

    @property
    def place(self) -> tuple[str, str, int, str, int, str, str]:
        """Position in a sheet; equal episodes of different agents stand together."""
        return (self.env_id, self.task, self.variation, str(self.phrasing), self.repeat, self.agent, self.rollout)


class ParsedOpinion(BaseModel):
    """The content of a reply; see `VerdictReview`."""

    model_config = ConfigDict(frozen=True)

    opinion: Opinion
    check: str = ""
    reason: str = ""
    evidence: str = ""
    problem: str = ""


def allowed_opinions(success: bool) -> tuple[Opinion, ...]:
    """Return the opinions that are possible on a verdict."""
    return ("agreement", "validator_too_loose" if success else "validator_too_strict", "undecided")


def read_opinion(reply: str, *, success: bool, checks: tuple[str, ...]) -> ParsedOpinion:
    """Read a model's reply, which may be any text.

    The reply should be a JSON object; text around it is ignored, and the last object with an opinion counts.

    Args:
        reply: The reply.
        success: Whether the verdict is a success.
        checks: Names of the verdict's checks.
    """
    if not reply.strip():
        return ParsedOpinion(opinion="unreadable", problem="the reply is empty")
    found = next((one for one in _objects(reply[-_MAX_READ:]) if "opinion" in one), None)
    if found is None:
        return ParsedOpinion(opinion="unreadable", problem="the reply has no JSON object with an opinion")
    given = _opinion(found["opinion"])
    parts = {
        "check": next((name for name in checks if name == found.get("check")), ""),
        "reason": _text(found.get("reason"), MAX_REASON),
        "evidence": _text(found.get("evidence"), MAX_EVIDENCE),
    }
    if given is None:
        return ParsedOpinion(opinion="unreadable", problem="the reply's opinion is unknown", **parts)
    if given not in allowed_opinions(success):
        verdict = "success" if success else "failure"
        return ParsedOpinion(opinion="unreadable", problem=f"{given} is impossible for a {verdict}", **parts)
    return ParsedOpinion(opinion=given, **parts)


def is_quoted(evidence: str, log: str) -> bool:
    """Return whether a log contains a passage; white space and the quotation marks around it do not count."""
    passage = " ".join(evidence.split()).strip("\"'“”… ")
    return bool(passage) and passage in " ".join(log.split())


def _objects(text: str) -> Iterator[Mapping[str, Json]]:
    """Yield the JSON objects in a text, last one first."""
    decoder = json.JSONDecoder(strict=False)  # models write line ends into texts
    starts = [found.start() for found in re.finditer(r"\{", text)]
    for start in reversed(starts[-_MAX_OBJECTS:]):
        try:
            value, _ = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def _opinion(value: Json) -> Opinion | None:
    """Return the opinion that a text names, with or without ``validator_``."""
    if not isinstance(value, str):
        return None
    name = re.sub(r"[\s-]+", "_", value.strip().lower())
    return next((one for one in OPINIONS[:-1] if name in (one, one.removeprefix("validator_"))), None)


def _text(value: Json, length: int) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= length else text[: length - 1] + "…"
