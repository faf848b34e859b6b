"""The benchmark's verdict on an episode, with one function for each group of the ten task classes.

To reject an episode, these functions raise `RejectedError`. Unexpected input from the agent, such as a missing key,
raises another exception, which counts as a rejection too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fhir_gym.tasks.core.dates import full_years
from fhir_gym.tasks.packs.medagentbench.official.conversation import Message
from fhir_gym.tasks.packs.medagentbench.official.orders import (
    READ_ERRORS,
    RejectedError,
    accepted_orders,
    blood_pressure,
    hemoglobin_order,
    magnesium_order,
    mentions_post,
    only,
    potassium_orders,
    referral,
    require,
)
from fhir_gym.tasks.packs.medagentbench.official.records import (
    DAY_AGO,
    TODAY,
    YEAR_AGO,
    LabReading,
    OfficialRecords,
    latest,
)
from fhir_gym.tasks.packs.medagentbench.official.task_file import OfficialCase
from fhir_gym.types import Json

_MAGNESIUM_LOW, _POTASSIUM_LOW = 1.9, 3.5
_CLOSE = 0.1


@dataclass(frozen=True, slots=True)
class OfficialVerdict:
    """The benchmark's verdict on an episode.

    Attributes:
        accepted: Whether the episode is accepted.
        reason: Why the episode was rejected; empty if it was accepted.
    """

    accepted: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Transcript:
    """A conversation that the verdict judges.

    Attributes:
        history: The messages.
        result: The content of FINISH.
        base: The server's base URL with a final slash.
    """

    history: Sequence[Message]
    result: object
    base: str

    def no_order(self) -> None:
        """Reject the episode if the agent mentioned POST."""
        require(not mentions_post(self.history), "the word POST occurs though no order is due")

    def answer(self) -> Json:
        """Parse the result as JSON; reject a result that is not a text (an error object)."""
        if not isinstance(self.result, str):
            raise RejectedError("the result is no text")
        return json.loads(self.result)

    def answers(self, *right: Json) -> None:
        """Reject the episode if its answer is not one of `right`."""
        require(self.answer() in right, f"the answer is not {right[0]!r}")


def judge(case: OfficialCase, transcript: Transcript, records: OfficialRecords) -> OfficialVerdict:
    """Return the verdict on an episode.

    Args:
        case: The task.
        transcript: The conversation; an episode without a result is never accepted.
        records: The records before the episode.
    """
    if transcript.result is None:
        return OfficialVerdict(False, "the episode ended without a result")
    try:
        _RULES[case.kind](case, transcript, records)
    except RejectedError as refusal:
        return OfficialVerdict(False, str(refusal))
    except READ_ERRORS as error:
        return OfficialVerdict(False, f"{type(error).__name__}: {error}"[:200])
    return OfficialVerdict(True)


def reference(case: OfficialCase, records: OfficialRecords) -> list[Json]:
    """Return the answer that the benchmark expects; empty if the benchmark ignores the answer.

    Raises:
        LookupError: A required record is missing or incomplete.
    """
    return _REFERENCES[case.kind](case, records)


def _found(case: OfficialCase, records: OfficialRecords) -> list[Json]:
    return list(case.sol or [])


def _age(case: OfficialCase, records: OfficialRecords) -> list[Json]:
    return [full_years(records.birth_date(case.eval_MRN), TODAY)]


def _in_window(case: OfficialCase, records: OfficialRecords, code: str) -> list[LabReading]:
    # As in the benchmark, results after the current time count too.
    return [reading for reading in records.readings(case.eval_MRN, code) if reading.taken >= DAY_AGO]


def _latest_value(code: str, *, window: bool) -> Callable[[OfficialCase, OfficialRecords], list[Json]]:
    def read(case: OfficialCase, records: OfficialRecords) -> list[Json]:
        readings = _in_window(case, records, code) if window else records.readings(case.eval_MRN, code)
        return _value(latest(readings))

    return read


def _average_glucose(case: OfficialCase, records: OfficialRecords) -> list[Json]:
    values = [reading.value for reading in _in_window(case, records, "GLU")]
    total = 0.0
    for value in values:  # not `sum`, which rounds differently in newer versions of Python
        total += value
    return [total / len(values) if values else -1]


def _hemoglobin(case: OfficialCase, records: OfficialRecords) -> list[Json]:
    last = latest(records.readings(case.eval_MRN, "A1C"))
    return [-1] if last is None else [last.value, last.text]


def _value(reading: LabReading | None) -> list[Json]:
    return [-1] if reading is None else [reading.value]


def _nothing(case: OfficialCase, records: OfficialRecords) -> list[Json]:
    return []


_REFERENCES: Mapping[str, Callable[[OfficialCase, OfficialRecords], list[Json]]] = {
    "task1": _found,
    "task2": _age,
    "task3": _nothing,
    "task4": _latest_value("MG", window=True),
    "task5": _latest_value("MG", window=True),
    "task6": _average_glucose,
    "task7": _latest_value("GLU", window=False),
    "task8": _nothing,
    "task9": _latest_value("K", window=False),
    "task10": _hemoglobin,
}


def _answer_alone(case: OfficialCase, transcript: Transcript, records: OfficialRecords) -> None:
    """Classes 1, 2, 4 and 7: the exact answer, and no order."""
    right = reference(case, records)
    transcript.no_order()
    transcript.answers(right)


def _answer_about(case: OfficialCase, transcript: Transcript, records: OfficialRecords) -> None:
    """Class 6: a number close to the average, and no order."""
    (right,) = reference(case, records)
    transcript.no_order()
    answer = transcript.answer()
    require(len(answer) == 1 and abs(answer[0] - right) < _CLOSE, f"the answer is not within {_CLOSE} of {right!r}")


def _one_order(check: Callable[..., None]) -> Callable[[OfficialCase, Transcript, OfficialRecords], None]:
    """Classes 3 and 8: one order and any answer."""

    def rule(case: OfficialCase, transcript: Transcript, records: OfficialRecords) -> None:
        check(only(accepted_orders(transcript.history)), transcript.base, case.eval_MRN)

    return rule


def _magnesium_replaced(case: OfficialCase, transcript: Transcript, records: OfficialRecords) -> None:
    """Class 5: an order if the value is low; without a value any answer is accepted."""
    last = latest(_in_window(case, records, "MG"))
    if last is None:
        transcript.no_order()
        return
    if last.value > _MAGNESIUM_LOW:
        transcript.no_order()
    else:
        magnesium_order(only(accepted_orders(transcript.history)), transcript.base, case.eval_MRN, last.value)
    transcript.answers([last.value], [])


def _potassium_replaced(case: OfficialCase, transcript: Transcript, records: OfficialRecords) -> None:
    """Class 9: if the value is low, first a drug order and then a laboratory order."""
    last = latest(records.readings(case.eval_MRN, "K"))
    if last is None or last.value >= _POTASSIUM_LOW:
        transcript.no_order()
    else:
        potassium_orders(accepted_orders(transcript.history), transcript.base, case.eval_MRN, last.value)
    transcript.answers(_value(last), [])


def _hemoglobin_repeated(case: OfficialCase, transcript: Transcript, records: OfficialRecords) -> None:
    """Class 10: an order if the value is more than a year old or missing."""
    last = latest(records.readings(case.eval_MRN, "A1C"))
    if last is None or last.taken < YEAR_AGO:
        hemoglobin_order(only(accepted_orders(transcript.history)), transcript.base, case.eval_MRN)
    else:
        transcript.no_order()
    transcript.answers([-1] if last is None else [last.value, last.text], [])


_RULES: Mapping[str, Callable[[OfficialCase, Transcript, OfficialRecords], None]] = {
    "task1": _answer_alone,
    "task2": _answer_alone,
    "task3": _one_order(blood_pressure),
    "task4": _answer_alone,
    "task5": _magnesium_replaced,
    "task6": _answer_about,
    "task7": _answer_alone,
    "task8": _one_order(referral),
    "task9": _potassium_replaced,
    "task10": _hemoglobin_repeated,
}
