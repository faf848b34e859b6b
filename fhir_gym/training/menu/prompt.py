"""The typed values of a prompt: references, dates, times, weekdays, numbers, and texts found by their context."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from functools import cache, lru_cache
from itertools import combinations

from fhir_gym.training.menu.templates import Slot, Value

_NOW = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)Z")
_DATE = re.compile(r"(?<![\w-])\d{4}-\d\d-\d\d(?![\w-])")
_TIME = re.compile(r"(?<![\w:])\d\d:\d\d(?![\w:])")
_NUMBER = re.compile(r"(?<![\w\-./+:(])\d{1,4}(?![\w\-/:)]|\.\d| \d)")
_REFERENCE = re.compile(r"\b([A-Z][A-Za-z]+)/([A-Za-z0-9\-.]{1,64})\b")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_WEEKDAY = re.compile(rf"(\bnext )?\b({'|'.join(_DAYS)})s?\b( after next)?")
_WORD = r"[^\s,.;:()?!\"]+"
_TOKEN = re.compile(r"\s+|[^\s,.;:()?!\"]+|[,.;:()?!\"]")
_FORMAT = "\n\nThe FHIR R4 server's base URL is "
"""Start of the action format, which follows the prompt in the first observation."""
_MAX_INDEX = 4
_MAX_NUMBERS = 3
_MAX_LEFT = 5
_MAX_RIGHT = 3
_MAX_PLACES = 4


class Prompt:
    """A prompt and the values that slots find in it.

    Args:
        text: The prompt, or the first observation; its action format is ignored.
    """

    def __init__(self, text: str) -> None:
        text = text.partition(_FORMAT)[0]
        self.text = text
        now = _NOW.search(text)
        self.today = parse_day(now.group(1)) if now else None
        self.now_time = now.group(2) if now else ""
        body = text[now.end() :].partition("\n")[2] if now else text
        self.body = body
        self.dates = [day for date_text in _DATE.findall(body) if (day := parse_day(date_text))]
        self.times: list[str] = _TIME.findall(body)
        self.numbers = [int(digits) for digits in _NUMBER.findall(body)]
        mentions = [(bool(m.group(1)), _DAYS.index(m.group(2)), bool(m.group(3))) for m in _WEEKDAY.finditer(body)]
        self.weekdays = {day for _, day, _ in mentions}
        self.next_days = [(day, later) for following, day, later in mentions if following or later]
        self.references: dict[str, list[str]] = {}
        for kind, key in _REFERENCE.findall(body):
            references = self.references.setdefault(kind, [])
            if key not in references:
                references.append(key)
        self.words = re.findall(r"[\w'-]+", body)
        self.word_set = frozenset(self.words)
        self.next_dates = [day.isoformat() for i in range(len(self.next_days)) if (day := self._base("weekday", i))]
        self._values: dict[Slot, Value] = {}

    def value(self, slot: Slot, dictionaries: Mapping[str, Mapping[str, Value]]) -> Value:
        """Return the value that a slot finds in the prompt; None if it finds none."""
        if slot in self._values:
            return self._values[slot]
        value = self._find(slot, dictionaries)
        written: Value = None if value is None else slot.write(value)
        if slot.kind != "word_value":  # it depends on the dictionaries
            self._values[slot] = written
        return written

    def _find(self, slot: Slot, dictionaries: Mapping[str, Mapping[str, Value]]) -> Value:
        kind, args = slot.kind, slot.args
        if kind == "const":
            constant: Value = args[0]
            return constant
        if kind == "text":
            return self._text(*args)
        if kind == "word_value":
            dictionary = dictionaries[args[0]]
            return next((dictionary[word] for word in self.words if word in dictionary), None)
        if kind == "reference":
            ids = self.references.get(args[0], [])
            if args[1] >= len(ids):
                return None
            return f"{args[0]}/{ids[args[1]]}" if args[2] == "ref" else ids[args[1]]
        if kind == "number":
            return self.numbers[args[0]] if args[0] < len(self.numbers) else None
        return self._date(*args)

    def _text(self, mode: str, left: str, right: str) -> Value:
        match = _pattern(mode, left, right).search(self.body)
        return match.group(1) if match else None

    def _date(self, base: str, index: int, numbers: tuple[int, ...], days: int, time: int | str | None) -> Value:
        day = self._base(base, index)
        if day is None or (time == "now" and not self.now_time) or any(i >= len(self.numbers) for i in numbers):
            return None
        day = _later(day, days + sum(self.numbers[i] for i in numbers))
        if day is None:
            return None
        if time is None:
            return day.isoformat()
        if time == "now":
            return f"{day.isoformat()}T{self.now_time}Z"
        assert isinstance(time, int)
        return f"{day.isoformat()}T{self.times[time]}:00Z" if time < len(self.times) else None

    def _base(self, base: str, index: int) -> date | None:
        if base == "now":
            return self.today
        if base == "date":
            return self.dates[index] if index < len(self.dates) else None
        if self.today is None or index >= len(self.next_days):
            return None
        day, later = self.next_days[index]
        ahead = (day - self.today.weekday() - 1) % 7 + 1
        return _later(self.today, ahead + 7 * later)

    def explain(self, value: str | float) -> Iterator[Slot]:
        """Yield slots that find this value in the prompt."""
        if isinstance(value, int | float):
            yield from (Slot("number", (i,)) for i, n in enumerate(self.numbers[:_MAX_INDEX]) if n == value)
            return
        for kind, ids in self.references.items():
            for index, key in enumerate(ids[:_MAX_INDEX]):
                if value in (key, f"{kind}/{key}"):
                    yield Slot("reference", (kind, index, "id" if value == key else "ref"))
        if re.match(r"\d{4}-\d\d-\d\d", value):
            yield from self._explain_date(value)
        elif 1 < len(value) < 100:
            yield from self._explain_text(value, capital=False)
            lower = value[:1].lower() + value[1:]
            if lower != value and value not in self.body:
                yield from self._explain_text(lower, capital=True)

    def _explain_date(self, value: str) -> Iterator[Slot]:
        bases = [("now", 0), *(("date", i) for i in range(min(_MAX_INDEX, len(self.dates))))]
        bases += [("weekday", i) for i in range(min(2, len(self.next_days)))]
        indices = range(min(_MAX_NUMBERS, len(self.numbers)))
        offsets: list[tuple[int, ...]] = [(), *((i,) for i in indices), *combinations(indices, 2)]
        times: list[int | str | None] = [None]
        if "T" in value:
            times = ["now", *range(min(_MAX_INDEX, len(self.times)))]
        for base, index in bases:
            for numbers in offsets:
                for days in (0, 1) if len(numbers) < 2 else (0,):
                    for time in times:
                        if self._date(base, index, numbers, days, time) == value:
                            yield Slot("date", (base, index, numbers, days, time))

    def _explain_text(self, value: str, capital: bool) -> Iterator[Slot]:
        start, places = self.body.find(value), 0
        while start >= 0 and places < _MAX_PLACES:
            places += 1
            for mode, left, right in _contexts(self.body, start, start + len(value)):
                if self._text(mode, left, right) == value:
                    yield Slot("text", (mode, left, right), capital=capital)
            start = self.body.find(value, start + 1)


@lru_cache(maxsize=512)
def read_prompt(text: str) -> Prompt:
    """Return the values of a prompt."""
    return Prompt(text)


def _later(day: date, days: int) -> date | None:
    try:
        return day + timedelta(days=days)
    except OverflowError:
        return None


def parse_day(text: str) -> date | None:
    """Return the date of a text such as ``2023-11-13``; None if there is no such day."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


@cache
def _pattern(mode: str, left: str, right: str) -> re.Pattern[str]:
    if mode == "word":
        return re.compile(rf"{left}({_WORD}?)(?:'s\b|(?=[\s,.;:()?!\"]|$))")
    if mode == "before":
        return re.compile(rf"(?<![\w'-])({_WORD}){right}")
    return re.compile(rf"{left}([^\n]{{1,100}}?){right}")


def _contexts(body: str, start: int, end: int) -> Iterator[tuple[str, str, str]]:
    """Yield the patterns that describe a text by the words before and after it."""
    lefts = _lefts(body[max(0, start - 80) : start])
    rights = _rights(body[end : end + 40])
    single = re.fullmatch(_WORD, body[start:end]) is not None
    for left in lefts if single else ():
        yield "word", left, ""
    for right in rights if single else ():
        yield "before", "", right
    for left in lefts:
        for right in rights:
            yield "span", left, right


def _lefts(text: str) -> list[str]:
    tokens, contexts, pattern, words = _TOKEN.findall(text), [], "", 0
    for token in reversed(tokens):
        variable = token[:1].isupper() or token[:1].isdigit()
        literal = re.escape(token)
        if not token.isspace():
            words += 1
            contexts.append(literal + pattern)
        pattern = (r"\S+?" if variable and token != "Dr" else literal) + pattern
        if words == _MAX_LEFT or "\n" in token:
            break
    return contexts


def _rights(text: str) -> list[str]:
    tokens, contexts, pattern, words = _TOKEN.findall(text), [], "", 0
    for token in tokens:
        if token[:1].isupper() or token[:1].isdigit():
            break
        pattern += re.escape(token)
        if token == "\n" or not token.isspace():
            words += 1
            contexts.append(pattern)
        if words == _MAX_RIGHT or "\n" in token:
            break
    return contexts
