"""Agents that do the tasks of ActionReasoning with one error each, and the label that their failures deserve."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from statistics import median
from typing import ClassVar, Literal

from benchmarks._clerk import Ask, Clerk, Result, Row, Work, posted
from fhir_gym.actions import Finish
from fhir_gym.tasks.bundles import entries
from fhir_gym.tasks.diagnosis import ErrorLabel
from fhir_gym.types import Json, Resource

__all__ = ["LAZY", "Lazy"]

_RETRIEVAL, _AGGREGATION, _CONDITIONAL = ("retrieval",), ("aggregation",), ("conditional",)
_LATEST = (*_RETRIEVAL, *_CONDITIONAL)
_ALL = (*_LATEST, *_AGGREGATION)


class Lazy(Clerk):
    """A clerk with an error.

    Attributes:
        about: What its error spoils. Where that is right all the same, by luck, the episode tells nothing of the error.
        families: Kinds of task it can be made in.
        trivial: Whether it reads nothing but the prompt, or takes no care at all.
        label: What its failures deserve.
        deserved: The same for this episode, where it depends on what was found.
        ambiguous: Whether a plainer error than its own gives the same answer in this episode.
    """

    about: ClassVar[Literal["value", "decision", "evidence", "action", "form"]] = "value"
    families: ClassVar[tuple[str, ...]] = _ALL
    trivial: ClassVar[bool] = False
    label: ClassVar[ErrorLabel]
    deserved: ErrorLabel
    ambiguous: bool = False

    def __init_subclass__(cls) -> None:
        """Take the name from the docstring, so that tables say what the agent does."""
        super().__init_subclass__()
        cls.name = (cls.__doc__ or "").strip().partition("\n")[0].rstrip(".")

    def applies(self, ask: Ask) -> bool:
        """Whether the error can be made in a task."""
        return ask.family in self.families

    def work(self, ask: Ask) -> Work:
        """The usual work; what is deserved may be changed on the way."""
        self.deserved = self.label
        yield from super().work(ask)

    def value(self, ask: Ask, results: list[Result]) -> float:
        """The usual value; whoever finds none though there is one has missed it."""
        found = super().value(ask, results)
        if found == -1 and self.about == "value" and self.label != "window boundary":
            self.deserved = "missing retrieval"
        return found


def _finish(ask: Ask, value: Json, flag: bool = False) -> str:
    return Finish([value, flag] if ask.family == "conditional" else [value]).text()


# Reads nothing but the prompt.


class SaysNone(Lazy):
    """Always says that there is no result."""

    trivial = True
    label: ClassVar[ErrorLabel] = "missing retrieval"

    def work(self, ask: Ask) -> Work:
        """One text."""
        self.deserved = self.label
        yield _finish(ask, -1)


class Constant(SaysNone):
    """Always answers the same number."""

    label = "hallucinated value"

    def work(self, ask: Ask) -> Work:
        """One text."""
        self.deserved = self.label
        yield _finish(ask, 4.1)


class NeverOrders(SaysNone):
    """Answers the middle of the range and never orders."""

    label, families = "hallucinated value", _CONDITIONAL

    def work(self, ask: Ask) -> Work:
        """One text."""
        self.deserved = self.label
        yield _finish(ask, round((ask.rows[0].low + ask.rows[0].high) / 2, 1))


class AlwaysOrders(SaysNone):
    """Answers a value out of range and always orders."""

    label, families = "hallucinated value", _CONDITIONAL

    def work(self, ask: Ask) -> Work:
        """The order the prompt tells of, and a number that fits."""
        self.deserved = self.label
        yield from self.place(ask)
        yield _finish(ask, round(ask.rows[0].low * 0.9, 1), True)


class Empty(SaysNone):
    """Finishes with an empty list."""

    label, about = "format", "form"

    def work(self, ask: Ask) -> Work:
        """One text."""
        self.deserved = self.label
        yield Finish([]).text()


# Takes the wrong results.


class LatestOfAll(Lazy):
    """Takes the latest value regardless of the window."""

    label, families, trivial = "window boundary", _LATEST, True

    def applies(self, ask: Ask) -> bool:
        """Where there is a window, or a moment before the present."""
        return super().applies(ask) and (ask.hours is not None or ask.as_of < ask.now)

    def dates(self, ask: Ask) -> list[tuple[str, str]]:
        """None."""
        return []

    def chosen(self, ask: Ask, results: list[Result]) -> list[Result]:
        """All."""
        return results


class LatestForMean(Lazy):
    """Takes the latest value for the mean."""

    label, families, trivial = "incomplete inclusion", _AGGREGATION, True

    def mean(self, ask: Ask, results: list[Result]) -> float:
        """The latest value."""
        return results[-1].value


class MeanOfRecord(Lazy):
    """Takes the mean of the whole record."""

    label, families, trivial = "window boundary", _AGGREGATION, True
    dates, chosen = LatestOfAll.dates, LatestOfAll.chosen


class FirstPage(Lazy):
    """Reads the first page only, and does not sort."""

    label, trivial = "incorrect value retrieved", True

    def work(self, ask: Ask) -> Work:
        """A mean of what is on the page lacks the rest."""
        yield from self._work_as("incomplete inclusion" if ask.family == "aggregation" else self.label, ask)

    def _work_as(self, label: ErrorLabel, ask: Ask) -> Work:
        work = super().work(ask)
        text = next(work)
        self.deserved = label
        while True:
            try:
                text = work.send((yield text))
            except StopIteration:
                return

    def search(self, ask: Ask) -> Generator[str, Json, list[Result]]:
        """One page in the server's order."""
        return (yield from self.pages(f"/Observation?patient={ask.mrn}&code={ask.lab}", most=1))


class Oldest(Lazy):
    """Sorts the wrong way and takes the oldest value."""

    label, families = "incorrect value retrieved", _LATEST

    def chosen(self, ask: Ask, results: list[Result]) -> list[Result]:
        """The first of the window."""
        return super().chosen(ask, results)[:1]


class OneBefore(Lazy):
    """Takes the result before the latest one."""

    label, families = "incorrect value retrieved", _LATEST

    def chosen(self, ask: Ask, results: list[Result]) -> list[Result]:
        """All but the latest, if there are several."""
        chosen = super().chosen(ask, results)
        return chosen[:-1] or chosen


class Void(Lazy):
    """Ignores that results are withdrawn."""

    label = "incorrect value retrieved"

    def counted(self, ask: Ask, results: Sequence[Result]) -> list[Result]:
        """Whatever its status."""
        return super().counted(ask, [one._replace(status="final") for one in results])


class Uncorrected(Lazy):
    """Takes the first issued of two results of one specimen."""

    label, families = "incorrect value retrieved", _LATEST

    def counted(self, ask: Ask, results: Sequence[Result]) -> list[Result]:
        """Of one instant the one issued first."""
        turned = [one._replace(issued=ask.now - (one.issued - ask.now)) for one in results]
        return super().counted(ask, turned)


class OtherTest(Lazy):
    """Looks at another laboratory test."""

    label = "incorrect value retrieved"
    _OTHERS: ClassVar[dict[str, str]] = {"K": "NA", "NA": "K", "CL": "NA", "HGB": "HCT", "HCT": "HGB", "GLU": "K"}

    def search(self, ask: Ask) -> Generator[str, Json, list[Result]]:
        """The other test's results."""
        other = self._OTHERS.get(ask.lab, "GLU")
        asked = "&".join(f"{name}={value}" for name, value in self.dates(ask))
        return (yield from self.pages(f"/Observation?patient={ask.mrn}&code={other}&{asked}&_count=200"))


class Anybody(Lazy):
    """Takes the first hit of anybody."""

    label = "incorrect value retrieved"

    def search(self, ask: Ask) -> Generator[str, Json, list[Result]]:
        """The newest result of the test, whoever has it."""
        return (yield from self.pages(f"/Observation?code={ask.lab}&_sort=-date&_count=1", most=1))

    def chosen(self, ask: Ask, results: list[Result]) -> list[Result]:
        """All."""
        return results


class WrongCode(Lazy):
    """Searches by the test's name in words, and finds nothing."""

    label = "missing retrieval"

    def search(self, ask: Ask) -> Generator[str, Json, list[Result]]:
        """By a code that no result has."""
        return (yield from self.pages(f"/Observation?patient={ask.mrn}&code={ask.title.replace(' ', '-')}"))


# Takes another window.


class _Window(Lazy):
    label: ClassVar[ErrorLabel] = "window boundary"
    hours: ClassVar[float]

    def applies(self, ask: Ask) -> bool:
        """Where there is a window."""
        return super().applies(ask) and ask.hours is not None and ask.hours != self.hours

    def work(self, ask: Ask) -> Work:
        """As if the window were asked for."""
        return super().work(_with_hours(ask, self.hours))


def _with_hours(ask: Ask, hours: float) -> Ask:
    values = {name: getattr(ask, name) for name in ask.__dataclass_fields__}
    return Ask(**{**values, "hours": hours})


class Hours12(_Window):
    """Looks back 12 hours."""

    hours = 12


class Hours23(_Window):
    """Looks back 23 hours."""

    hours = 23


class Hours25(_Window):
    """Looks back 25 hours."""

    hours = 25


class Hours36(_Window):
    """Looks back 36 hours."""

    hours = 36


class Hours48(_Window):
    """Looks back 48 hours."""

    hours = 48


class CalendarDay(_Window):
    """Looks at the calendar day only."""

    hours = 0

    def dates(self, ask: Ask) -> list[tuple[str, str]]:
        """The day of the moment."""
        return [("date", ask.as_of.date().isoformat())]

    def chosen(self, ask: Ask, results: list[Result]) -> list[Result]:
        """Up to the moment."""
        return [one for one in results if one.taken <= ask.as_of]


class EndsExcluded(Lazy):
    """Leaves out what lies on an end of the window."""

    label = "window boundary"

    def applies(self, ask: Ask) -> bool:
        """Where there is a window."""
        return super().applies(ask) and ask.hours is not None

    def dates(self, ask: Ask) -> list[tuple[str, str]]:
        """Strictly between the ends."""
        return [("date", text.replace("le", "lt").replace("ge", "gt")) for _, text in super().dates(ask)]


class EndsExcludedByHand(EndsExcluded):
    """Leaves out what lies on an end of the window, having read all of it."""

    dates = Lazy.dates

    def chosen(self, ask: Ask, results: list[Result]) -> list[Result]:
        """Strictly between the ends."""
        return [one for one in super().chosen(ask, results) if one.taken not in (ask.as_of, ask.start)]


class LaterToo(Lazy):
    """Does not stop at the moment that is asked about."""

    label = "window boundary"

    def applies(self, ask: Ask) -> bool:
        """Where that is not the present."""
        return super().applies(ask) and ask.as_of < ask.now

    def dates(self, ask: Ask) -> list[tuple[str, str]]:
        """No upper limit."""
        return [one for one in super().dates(ask) if one[1].startswith("ge")]

    def chosen(self, ask: Ask, results: list[Result]) -> list[Result]:
        """From the window's beginning on."""
        return [one for one in results if ask.start is None or one.taken >= ask.start]


# Takes a part, or miscalculates.


class LeavesOneOut(Lazy):
    """Leaves one result out."""

    label, families = "incomplete inclusion", _AGGREGATION

    def mean(self, ask: Ask, results: list[Result]) -> float:
        """Without the second one."""
        return super().mean(ask, [*results[:1], *results[2:]])


class CountsOneTwice(Lazy):
    """Counts one result twice."""

    label, families = "incomplete inclusion", _AGGREGATION

    def mean(self, ask: Ask, results: list[Result]) -> float:
        """The second one twice."""
        return super().mean(ask, [*results, results[1]])


class CountsReplaced(Lazy):
    """Counts results that were replaced, too."""

    label, families = "incomplete inclusion", _AGGREGATION

    def counted(self, ask: Ask, results: Sequence[Result]) -> list[Result]:
        """All that are not withdrawn."""
        return [one for one in sorted(results) if one.status not in ("cancelled", "entered-in-error")]


class Newest2(Lazy):
    """Takes the two newest results only."""

    label, families = "incomplete inclusion", _AGGREGATION

    def search(self, ask: Ask) -> Generator[str, Json, list[Result]]:
        """A page of two."""
        asked = "&".join(f"{name}={value}" for name, value in self.dates(ask))
        url = f"/Observation?patient={ask.mrn}&code={ask.lab}&{asked}&_sort=-date&_count=2"
        return (yield from self.pages(url, most=1))


class Sum(Lazy):
    """Answers the sum for the mean."""

    label, families = "arithmetic", _AGGREGATION

    def mean(self, ask: Ask, results: list[Result]) -> float:
        """The sum."""
        return round(sum(one.value for one in results), 3)


class Median(Lazy):
    """Answers the median for the mean."""

    label, families = "arithmetic", _AGGREGATION

    def mean(self, ask: Ask, results: list[Result]) -> float:
        """The median."""
        middle = float(round(median(one.value for one in results), 3))
        self.ambiguous = middle == results[-1].value
        return middle


class Truncates(Lazy):
    """Cuts decimals off instead of rounding."""

    label, families = "arithmetic", _AGGREGATION

    def mean(self, ask: Ask, results: list[Result]) -> float:
        """Cut off."""
        scale: int = 10**ask.digits
        cut_off = int(sum(one.value for one in results) / len(results) * scale + 1e-9)
        return cut_off / scale


class RoundsMuch(Lazy):
    """Rounds a mean to a whole number."""

    label, families = "arithmetic", _AGGREGATION

    def mean(self, ask: Ask, results: list[Result]) -> float:
        """No decimals."""
        rounded = round(sum(one.value for one in results) / len(results))
        self.ambiguous = any(one.value == rounded for one in results)
        return rounded


class MissesByOne(Lazy):
    """Divides the sum by one too few."""

    label, families = "arithmetic", _AGGREGATION

    def mean(self, ask: Ask, results: list[Result]) -> float:
        """Wrongly divided."""
        return round(sum(one.value for one in results) / (len(results) - 1), 3)


class MeanForLatest(Lazy):
    """Averages where one value is asked for."""

    label, families = "arithmetic", _LATEST

    def value(self, ask: Ask, results: list[Result]) -> float:
        """The mean."""
        mean = round(sum(one.value for one in results) / len(results), 2) if results else -1
        self.ambiguous = any(one.value == mean for one in results)
        return mean


class Invents(Lazy):
    """Looks, and invents a value."""

    label = "hallucinated value"

    def value(self, ask: Ask, results: list[Result]) -> float:
        """A number above all that was seen."""
        return round(max(one.value for one in results) * 1.37 + 0.61, 2) if results else 7.77


# Judges wrongly.


class OtherSex(Lazy):
    """Takes the range of the other sex."""

    label, families, about, trivial = "context-insensitive range", _CONDITIONAL, "decision", True

    def applies(self, ask: Ask) -> bool:
        """Where sex decides."""
        return ask.demographic

    def row(self, ask: Ask, patient: Resource) -> Row:
        """As if the patient were of the other sex."""
        return super().row(ask, {**patient, "gender": "male" if patient["gender"] == "female" else "female"})


class OtherAge(OtherSex):
    """Takes the range of another age."""

    def row(self, ask: Ask, patient: Resource) -> Row:
        """The next row of the same sex."""
        right = Clerk.row(self, ask, patient)
        own = [one for one in ask.rows if one.sex in (None, patient["gender"])]
        return own[own.index(right) - 1]


class MenOnly(OtherSex):
    """Takes everybody for a man of 40, and does not look the patient up."""

    def work(self, ask: Ask) -> Work:
        """Without the patient."""
        self.deserved = self.label
        row = next(one for one in ask.rows if one.holds_for("male", 40))
        value = self.value(ask, self.chosen(ask, self.counted(ask, (yield from self.search(ask)))))
        due = value != -1 and self.due(ask, row, value)
        if due:
            yield from self.place(ask)
        yield from self.answer(ask, [value, due])


class NeverSawPatient(Lazy):
    """Guesses the range right and does not look the patient up."""

    label, families, about = "missing retrieval", _CONDITIONAL, "evidence"

    def applies(self, ask: Ask) -> bool:
        """Where sex decides."""
        return ask.demographic

    def work(self, ask: Ask) -> Work:
        """What most of the rows say."""
        self.deserved = self.label
        value = self.value(ask, self.chosen(ask, self.counted(ask, (yield from self.search(ask)))))
        decisions = [value != -1 and self.due(ask, row, value) for row in ask.rows]
        due = decisions.count(True) > len(decisions) / 2
        if due:
            yield from self.place(ask)
        yield from self.answer(ask, [value, due])


class LimitIsOutside(Lazy):
    """Takes borderline values for values out of range."""

    label, families, about = "boundary misclassification", _CONDITIONAL, "decision"

    def applies(self, ask: Ask) -> bool:
        """Where one range holds for everybody."""
        return super().applies(ask) and not ask.demographic

    def due(self, ask: Ask, row: Row, value: float) -> bool:
        """By limits that are a little narrower."""
        step = 0.1 * (row.high - row.low)
        return super().due(ask, row._replace(low=row.low + step, high=row.high - step), value)


class JustOutsideIsInside(LimitIsOutside):
    """Takes values just out of range for borderline ones."""

    def due(self, ask: Ask, row: Row, value: float) -> bool:
        """By limits that are a little wider."""
        step = 0.1 * (row.high - row.low)
        return Clerk.due(self, ask, row._replace(low=row.low - step, high=row.high + step), value)


# Does the wrong thing.


class OrdersNothing(Lazy):
    """Says that an order is due, and places none."""

    label, families, about = "wrong action", _CONDITIONAL, "action"

    def place(self, ask: Ask) -> Work:
        """Nothing."""
        yield from ()


class OrdersTwice(OrdersNothing):
    """Places the order twice."""

    def place(self, ask: Ask) -> Work:
        """Two."""
        yield posted(ask.order or {})
        yield posted(ask.order or {})


class OrdersForAnother(OrdersNothing):
    """Places the order for another patient."""

    def place(self, ask: Ask) -> Work:
        """For the first other patient on file."""
        patients = list(entries((yield "GET /Patient?_count=2")))
        other = next(one["id"] for one in patients if one["id"] != ask.mrn)
        yield posted({**(ask.order or {}), "subject": {"reference": f"Patient/{other}"}})


class OrdersDraft(OrdersNothing):
    """Places the order as a draft."""

    def place(self, ask: Ask) -> Work:
        """Not active."""
        yield posted({**(ask.order or {}), "status": "draft"})


class OrdersUnasked(OrdersNothing):
    """Orders although it says that nothing is due."""

    def answer(self, ask: Ask, answer: list[Json]) -> Work:
        """The order all the same."""
        if answer[1] is False:
            yield posted(ask.order or {})
        yield from super().answer(ask, answer)


class WritesElsewhere(Lazy):
    """Files what it found as a new Observation."""

    label, about = "wrong action", "action"

    def answer(self, ask: Ask, answer: list[Json]) -> Work:
        """A note that nobody asked for."""
        code, subject = {"text": f"{ask.lab} reviewed"}, {"reference": f"Patient/{ask.mrn}"}
        yield posted({"resourceType": "Observation", "status": "final", "code": code, "subject": subject})
        yield from super().answer(ask, answer)


# Says it wrongly.


class InWords(Lazy):
    """Answers in words."""

    label, about = "format", "form"

    def answer(self, ask: Ask, answer: list[Json]) -> Work:
        """A sentence."""
        yield Finish([f"The {ask.title} is {answer[0]}; no further action is needed."]).text()


class WithUnit(InWords):
    """Answers the value with its unit, as text."""

    def answer(self, ask: Ask, answer: list[Json]) -> Work:
        """A text."""
        yield Finish([f"{answer[0]} mg/dL", *answer[1:]]).text()


class ValueOnly(InWords):
    """Says nothing about the order."""

    families = _CONDITIONAL

    def answer(self, ask: Ask, answer: list[Json]) -> Work:
        """The value alone."""
        yield Finish(answer[:1]).text()


class GivesUp(InWords):
    """Goes on looking and never finishes."""

    def answer(self, ask: Ask, answer: list[Json]) -> Work:
        """Another look, for ever."""
        while True:
            yield f"GET /Patient/{ask.mrn}"


def _all(kind: type[Lazy] = Lazy) -> Iterator[type[Lazy]]:
    for one in kind.__subclasses__():
        if not one.__name__.startswith("_"):
            yield one
        yield from _all(one)


LAZY: tuple[type[Lazy], ...] = tuple(_all())
"""All of them."""
