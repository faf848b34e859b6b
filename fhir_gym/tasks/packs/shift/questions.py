"""Code that the kinds of questions share: drawing, answers, and judgement."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Sequence
from decimal import Decimal
from typing import TypeVar

from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog
from fhir_gym.tasks.packs.shift.kind import Judgement, Request
from fhir_gym.tasks.packs.shift.patients import PatientRequest

Q = TypeVar("Q", bound=PatientRequest)

_NUMBER = re.compile(r"([+-]?(?:[0-9]{1,3}(?:,[0-9]{3}){1,2}|[0-9]{1,9})(?:\.[0-9]{1,30})?)\s*(\D.*)?\Z")
_DASHES = str.maketrans({"\u2212": "-", "\u2013": "-"})


def number_in(answer: str, units: Collection[str]) -> Decimal | None:
    """Read an answer that is a number, with or without one of some units; None for other answers.

    Args:
        answer: The reported outcome in lower case.
        units: The units that may follow the number, in lower case.
    """
    match = _NUMBER.match(answer.translate(_DASHES))
    if match is None or (match[2] and match[2] not in units):
        return None
    return Decimal(match[1].replace(",", ""))


def items_in(answer: str) -> list[str]:
    """Split an answer at commas, semicolons and the word "and"; the items are in alphabetical order."""
    return sorted(item for item in re.split(r"\s*[,;]\s*(?:and\s+)?|\s+and\s+", answer.strip()) if item)


def draw_question(rng: random.Random, possible: Sequence[Q]) -> Q | None:
    """Draw a question about a patient; None if no question is possible.

    All measures are equally likely, then all patients about whom the measure can be asked, and then all outcomes.

    Args:
        rng: Random generator.
        possible: The questions, each about a single patient; their asks have the attribute `measure`.
    """
    if not possible:
        return None
    measure = rng.choice(sorted({question.ask.measure for question in possible}))
    fitting = [question for question in possible if question.ask.measure == measure]
    qualifying = sorted({question.patients[0] for question in fitting})
    patient = rng.choice(qualifying)
    fitting = [question for question in fitting if question.patients[0] == patient]
    outcome = rng.choice(sorted({question.outcome for question in fitting}))
    drawn = rng.choice([question for question in fitting if question.outcome == outcome])
    target = {"target": f"Patient/{patient}", "qualifying": tuple(f"Patient/{patient_id}" for patient_id in qualifying)}
    return drawn.model_copy(update=target)


def was_read(log: EpisodeLog, record: str) -> bool:
    """Whether the agent has seen more of a record (``Observation/1``) than its id."""
    return bool(log.seen.get(record, {}).keys() - {"resourceType", "id", "meta"})


def judge_answer(request: Request, answer: str, *, same: bool, looked: bool) -> Judgement:
    """Judge the answer to a question; nothing belongs to a question, because it changes nothing.

    Args:
        request: The question.
        answer: The reported outcome.
        same: Whether the answer is right.
        looked: Whether the agent has read what the answer rests on.
    """
    expected = f"{request.outcome}, after looking it up" if same and not looked else request.outcome
    return Judgement(right=same and looked, harmed=False, expected=expected, found=answer)
