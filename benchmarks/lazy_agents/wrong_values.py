"""Lazy agents that answer a wrong value, because of wrong results, a wrong time window or wrong arithmetic."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from statistics import median
from typing import ClassVar

from typing_extensions import override

from benchmarks.lazy_agents.careful import AGGREGATION, LATEST, Actions, FoundResult, LazyAgent
from benchmarks.lazy_agents.prompt import ParsedPrompt
from fhir_gym.tasks.packs.action_reasoning.cases import ErrorLabel
from fhir_gym.types import Json

Fetch = Generator[str, Json, list[FoundResult]]
Criteria = list[tuple[str, str]]


def _mean(results: Sequence[FoundResult]) -> float:
    return sum(result.value for result in results) / len(results)


# Agents that use the wrong results.


class LatestOfAll(LazyAgent):
    """Takes the latest value and ignores the time window."""

    label, families, trivial = "window boundary", LATEST, True

    @override
    def applies(self, prompt: ParsedPrompt) -> bool:
        return super().applies(prompt) and (prompt.hours is not None or prompt.as_of < prompt.now)

    @override
    def date_criteria(self, prompt: ParsedPrompt) -> Criteria:
        return []

    @override
    def in_window(self, prompt: ParsedPrompt, results: list[FoundResult]) -> list[FoundResult]:
        return results


class LatestForMean(LazyAgent):
    """Answers the latest value instead of the mean."""

    label, families, trivial = "incomplete inclusion", AGGREGATION, True

    @override
    def mean(self, prompt: ParsedPrompt, results: list[FoundResult]) -> float:
        return results[-1].value


class MeanOfRecord(LazyAgent):
    """Averages all results of the patient, not only those in the time window."""

    label, families, trivial = "window boundary", AGGREGATION, True
    date_criteria, in_window = LatestOfAll.date_criteria, LatestOfAll.in_window


class FirstPage(LazyAgent):
    """Reads only the first page of an unsorted search."""

    label, trivial = "incorrect value retrieved", True

    @override
    def label_for(self, prompt: ParsedPrompt) -> ErrorLabel:
        return "incomplete inclusion" if prompt.family == "aggregation" else self.label

    @override
    def fetch(self, prompt: ParsedPrompt) -> Fetch:
        return (yield from self.read_pages([("patient", prompt.mrn), ("code", prompt.lab)], max_pages=1))


class Oldest(LazyAgent):
    """Sorts the wrong way and takes the oldest value."""

    label, families = "incorrect value retrieved", LATEST

    @override
    def in_window(self, prompt: ParsedPrompt, results: list[FoundResult]) -> list[FoundResult]:
        return super().in_window(prompt, results)[:1]


class OneBefore(LazyAgent):
    """Takes the result before the latest one."""

    label, families = "incorrect value retrieved", LATEST

    @override
    def in_window(self, prompt: ParsedPrompt, results: list[FoundResult]) -> list[FoundResult]:
        kept = super().in_window(prompt, results)
        return kept[:-1] or kept


class Void(LazyAgent):
    """Uses results that were cancelled or entered in error."""

    label = "incorrect value retrieved"

    @override
    def valid(self, prompt: ParsedPrompt, results: Sequence[FoundResult]) -> list[FoundResult]:
        return super().valid(prompt, [result._replace(status="final") for result in results])


class Uncorrected(LazyAgent):
    """Takes the earlier issued result if two results are for the same time."""

    label, families = "incorrect value retrieved", LATEST

    @override
    def valid(self, prompt: ParsedPrompt, results: Sequence[FoundResult]) -> list[FoundResult]:
        mirrored = [result._replace(issued=prompt.now - (result.issued - prompt.now)) for result in results]
        return super().valid(prompt, mirrored)


class OtherTest(LazyAgent):
    """Looks up another laboratory test."""

    label = "incorrect value retrieved"
    _OTHERS: ClassVar[dict[str, str]] = {"K": "NA", "NA": "K", "CL": "NA", "HGB": "HCT", "HCT": "HGB", "GLU": "K"}

    @override
    def fetch(self, prompt: ParsedPrompt) -> Fetch:
        other = self._OTHERS.get(prompt.lab, "GLU")
        dates = self.date_criteria(prompt)
        return (yield from self.read_pages([("patient", prompt.mrn), ("code", other), *dates, ("_count", "200")]))


class Anybody(LazyAgent):
    """Takes the newest result of any patient."""

    label = "incorrect value retrieved"

    @override
    def fetch(self, prompt: ParsedPrompt) -> Fetch:
        return (yield from self.read_pages([("code", prompt.lab), ("_sort", "-date"), ("_count", "1")], max_pages=1))

    @override
    def in_window(self, prompt: ParsedPrompt, results: list[FoundResult]) -> list[FoundResult]:
        return results


class WrongCode(LazyAgent):
    """Searches by the test's name instead of its code, and finds nothing."""

    label = "missing retrieval"

    @override
    def fetch(self, prompt: ParsedPrompt) -> Fetch:
        return (yield from self.read_pages([("patient", prompt.mrn), ("code", prompt.title.replace(" ", "-"))]))


# Agents that use the wrong time window.


class _OtherWindow(LazyAgent):
    label: ClassVar[ErrorLabel] = "window boundary"
    hours: ClassVar[float]

    @override
    def applies(self, prompt: ParsedPrompt) -> bool:
        return super().applies(prompt) and prompt.hours is not None and prompt.hours != self.hours

    @override
    def actions(self, prompt: ParsedPrompt) -> Actions:
        return super().actions(replace(prompt, hours=self.hours))


class Hours12(_OtherWindow):
    """Looks back 12 hours."""

    hours = 12


class Hours23(_OtherWindow):
    """Looks back 23 hours."""

    hours = 23


class Hours25(_OtherWindow):
    """Looks back 25 hours."""

    hours = 25


class Hours36(_OtherWindow):
    """Looks back 36 hours."""

    hours = 36


class Hours48(_OtherWindow):
    """Looks back 48 hours."""

    hours = 48


class CalendarDay(_OtherWindow):
    """Looks only at the calendar day on which the time window ends."""

    hours = 0

    @override
    def date_criteria(self, prompt: ParsedPrompt) -> Criteria:
        return [("date", prompt.as_of.date().isoformat())]

    @override
    def in_window(self, prompt: ParsedPrompt, results: list[FoundResult]) -> list[FoundResult]:
        return [result for result in results if result.taken <= prompt.as_of]


class EndsExcluded(LazyAgent):
    """Searches without the results exactly at the start or the end of the time window."""

    label = "window boundary"

    @override
    def applies(self, prompt: ParsedPrompt) -> bool:
        return super().applies(prompt) and prompt.hours is not None

    @override
    def date_criteria(self, prompt: ParsedPrompt) -> Criteria:
        return [("date", text.replace("le", "lt").replace("ge", "gt")) for _, text in super().date_criteria(prompt)]


class EndsExcludedByHand(EndsExcluded):
    """Reads all results of the time window, then drops those exactly at its start or end."""

    date_criteria = LazyAgent.date_criteria

    @override
    def in_window(self, prompt: ParsedPrompt, results: list[FoundResult]) -> list[FoundResult]:
        ends = (prompt.as_of, prompt.start)
        return [result for result in super().in_window(prompt, results) if result.taken not in ends]


class LaterToo(LazyAgent):
    """Includes results after the end of the time window."""

    label = "window boundary"

    @override
    def applies(self, prompt: ParsedPrompt) -> bool:
        return super().applies(prompt) and prompt.as_of < prompt.now

    @override
    def date_criteria(self, prompt: ParsedPrompt) -> Criteria:
        return [criterion for criterion in super().date_criteria(prompt) if criterion[1].startswith("ge")]

    @override
    def in_window(self, prompt: ParsedPrompt, results: list[FoundResult]) -> list[FoundResult]:
        return [result for result in results if prompt.start is None or result.taken >= prompt.start]


# Agents that use only some of the results or miscalculate.


class LeavesOneOut(LazyAgent):
    """Leaves out one result."""

    label, families = "incomplete inclusion", AGGREGATION

    @override
    def mean(self, prompt: ParsedPrompt, results: list[FoundResult]) -> float:
        return super().mean(prompt, [*results[:1], *results[2:]])


class CountsOneTwice(LazyAgent):
    """Counts one result twice."""

    label, families = "incomplete inclusion", AGGREGATION

    @override
    def mean(self, prompt: ParsedPrompt, results: list[FoundResult]) -> float:
        return super().mean(prompt, [*results, results[1]])


class CountsReplaced(LazyAgent):
    """Also counts results that were replaced."""

    label, families = "incomplete inclusion", AGGREGATION

    @override
    def valid(self, prompt: ParsedPrompt, results: Sequence[FoundResult]) -> list[FoundResult]:
        return [result for result in sorted(results) if result.status not in ("cancelled", "entered-in-error")]


class Newest2(LazyAgent):
    """Averages only the two newest results."""

    label, families = "incomplete inclusion", AGGREGATION

    @override
    def fetch(self, prompt: ParsedPrompt) -> Fetch:
        query = [("patient", prompt.mrn), ("code", prompt.lab), *self.date_criteria(prompt)]
        return (yield from self.read_pages([*query, ("_sort", "-date"), ("_count", "2")], max_pages=1))


class Sum(LazyAgent):
    """Answers the sum instead of the mean."""

    label, families = "arithmetic", AGGREGATION

    @override
    def mean(self, prompt: ParsedPrompt, results: list[FoundResult]) -> float:
        return round(sum(result.value for result in results), 3)


class Median(LazyAgent):
    """Answers the median instead of the mean."""

    label, families = "arithmetic", AGGREGATION

    @override
    def mean(self, prompt: ParsedPrompt, results: list[FoundResult]) -> float:
        middle = float(round(median(result.value for result in results), 3))
        self.ambiguous = middle == results[-1].value
        return middle


class Truncates(LazyAgent):
    """Truncates the mean instead of rounding it."""

    label, families = "arithmetic", AGGREGATION

    @override
    def mean(self, prompt: ParsedPrompt, results: list[FoundResult]) -> float:
        scale: int = 10**prompt.digits
        truncated = int(_mean(results) * scale + 1e-9)
        return truncated / scale


class RoundsMuch(LazyAgent):
    """Rounds the mean to a whole number."""

    label, families = "arithmetic", AGGREGATION

    @override
    def mean(self, prompt: ParsedPrompt, results: list[FoundResult]) -> float:
        rounded = round(_mean(results))
        self.ambiguous = any(result.value == rounded for result in results)
        return rounded


class MissesByOne(LazyAgent):
    """Divides the sum by the number of results minus one."""

    label, families = "arithmetic", AGGREGATION

    @override
    def mean(self, prompt: ParsedPrompt, results: list[FoundResult]) -> float:
        return round(sum(result.value for result in results) / (len(results) - 1), 3)


class MeanForLatest(LazyAgent):
    """Answers the mean instead of the latest value."""

    label, families = "arithmetic", LATEST

    @override
    def value(self, prompt: ParsedPrompt, results: list[FoundResult]) -> float:
        mean = round(_mean(results), 2) if results else -1
        self.ambiguous = any(result.value == mean for result in results)
        return mean


class Invents(LazyAgent):
    """Looks up the results, then invents a value."""

    label = "hallucinated value"

    @override
    def value(self, prompt: ParsedPrompt, results: list[FoundResult]) -> float:
        return round(max(result.value for result in results) * 1.37 + 0.61, 2) if results else 7.77
