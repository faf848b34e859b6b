"""Kinds of questions: how questions are drawn and worded, how answers are read, and how they are judged."""

from __future__ import annotations

import random
import re
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from typing import Any, ClassVar, Generic

from typing_extensions import override

from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog
from fhir_gym.tasks.packs.shift.kind import Judgement, RequestJudge, RequestSampler, S
from fhir_gym.tasks.packs.shift.outcomes import DONE
from fhir_gym.tasks.packs.shift.patients import PatientKind, Q, ids_of, names_for, patient_not_found

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


def was_read(log: EpisodeLog, record: str) -> bool:
    """Whether the agent has seen more of a record (``Observation/1``) than its id."""
    return bool(log.seen.get(record, {}).keys() - {"resourceType", "id", "meta"})


class QuestionKind(PatientKind[S, Q]):
    """A kind of questions about patients; the asks have the attribute `measure`.

    Attributes:
        questions: For each measure, the texts of a question. The placeholders are ``{who}``, ``{born}``, and those of
            `text_values`.
    """

    questions: ClassVar[Mapping[str, tuple[str, str, str]]]
    minutes = 4

    @override
    def text(self, ask: Any, wording: int) -> str:
        who = f"{ask.patient.given} {ask.patient.family}"
        values = {"who": who, "born": ask.patient.birth_date, **self.text_values(ask)}
        return self.questions[ask.measure][wording].format(**values)

    @abstractmethod
    def text_values(self, ask: Any) -> Mapping[str, Any]:
        """Return the values of the placeholders in `questions`."""


class ListedQuestionSampler(RequestSampler[S, Q]):
    """Draws questions from a list of all questions that are worth asking.

    Attributes:
        request_type: The class of the questions.
        nothing: The outcome of a question whose answer is that there is nothing.
        detail: The field of the asks with what a question is about, besides the patient and the measure.
    """

    request_type: ClassVar[type[Any]]
    nothing: ClassVar[str]
    detail: ClassVar[str]

    @abstractmethod
    def possible(self) -> Iterable[Q]:
        """Yield the questions about single patients that are worth asking."""

    @abstractmethod
    def details(self) -> Mapping[str, Sequence[str]]:
        """Return the possible details of each measure."""

    @cached_property
    def _possible(self) -> list[Q]:
        return [*self.possible()]

    @override
    def draw(self, outcome: str, *, depends: bool) -> Q | None:
        used = [self._key(question) for question in self.chosen]
        if outcome not in (DONE, self.nothing):
            return self._unanswerable(outcome, used)
        left = [question for question in self._possible if self._key(question) not in used]
        is_nothing = outcome == self.nothing
        return _draw(self.rng, [other for other in left if (other.outcome == self.nothing) == is_nothing])

    def _key(self, question: Q) -> tuple[Any, str]:
        return question.ask.patient, getattr(question.ask, self.detail)

    def _unanswerable(self, outcome: str, used: Collection[tuple[Any, str]]) -> Q | None:
        """Draw a question about a name that no patient has, or several; None if all names are used."""
        people: Any = self.scene
        measures = self.details()
        measure = self.rng.choice([*measures])
        detail = self.rng.choice(measures[measure]) if measures[measure] else ""
        names = names_for(self.rng, people.people, outcome)
        name = next((name for name in names if (name, detail) not in used), None)
        if name is None:
            return None
        ask = {"patient": name, "measure": measure, self.detail: detail}
        question: Q = self.request_type(ask=ask, outcome=outcome, patients=ids_of(name, people.people))
        return question


def _draw(rng: random.Random, possible: Sequence[Q]) -> Q | None:
    """Draw a question about a patient; None if no question is possible.

    All measures are equally likely, then all patients about whom the measure can be asked, and then all outcomes.
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


class QuestionJudge(RequestJudge[S, Q], Generic[S, Q]):
    """Judges answers; nothing belongs to a question, because it changes nothing."""

    @override
    def judge_request(self, number: int) -> Judgement:
        request, answer = self.requests[number], self.answers[number]
        scene: Any = self.scene
        not_found = patient_not_found(request, scene.people, self.log, answer)
        is_same, looked = self.check(request, answer) if not_found is None else (answer == request.outcome, not_found)
        expected = f"{request.outcome}, after looking it up" if is_same and not looked else request.outcome
        return Judgement(right=is_same and looked, harmed=False, expected=expected, found=answer)

    @abstractmethod
    def check(self, request: Q, answer: str) -> tuple[bool, bool]:
        """Return whether an answer about a single patient is right, and whether the agent has read what it rests on."""
