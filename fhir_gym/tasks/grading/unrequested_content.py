"""Find unrequested content that changes the meaning of a record.

The meaning is who the record is about, what it says, its dates or amounts, and whether it is valid.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

from fhir_gym.errors import UnknownNameError
from fhir_gym.fhir.clock import instant
from fhir_gym.fhir.definitions import DATA_TYPES, Element, children, modifiers
from fhir_gym.tasks.grading.allowed_additions import (
    BY_DATA_TYPE,
    BY_RECORD,
    EVERYWHERE,
    REVERSING_EXTENSIONS,
    Rule,
    fits_vocabulary,
)
from fhir_gym.tasks.grading.comparison import is_within, plain
from fhir_gym.tasks.grading.end_state import FinishedEpisode
from fhir_gym.types import Json, Resource

if TYPE_CHECKING:
    from fhir_gym.fhir import Change

ADD_NOTHING = (
    "To a new record you may add active true, verificationStatus confirmed, and the present as the time of recording "
    "(such as recordedDate or authoredOn) or as servicePeriod.start. Add nothing else that changes who the record is "
    "about, what it says, its dates or amounts, or whether it is valid."
)
"""Sentences about unrequested elements in the prompts of all tasks that create records; see `usual_details`."""

_NEGATES = re.compile(
    r"\b(?:not|no longer|no more|never|cannot|\w+n't|cancel\w*|void\w*|ignor\w*|disregard\w*|stop\w*|discontinu\w*|"
    r"hold|held|withh\w+|withdr\w+|revok\w*|retract\w*|rescind\w*|abort\w*|suspend\w*|postpon\w*|defer\w*|skip\w*|"
    r"omit\w*|avoid\w*|refus\w*|reject\w*|declin\w*|den(?:y|ies|ied)|refut\w*|rul(?:e|ed|ing)[ -]out|forbid\w*|"
    r"prohibit\w*|contraindicat\w*|in(?:[ -])error|erroneous\w*|mistak\w*|wrong\w*|incorrect\w*|invalid\w*|instead|"
    r"unless|only if|if needed|as needed|prn|except|deceased|dead|died|inactive|obsolete|superseded|"
    r"replaced|different patient|other patient|another patient|someone else|somebody else)\b"
)
_ANNULS = re.compile(
    r"\b(?:ignor\w*|disregard\w*|void\w*|invalid\w*|entered in error|not (?:been )?(?:cancel|mov|chang|book)\w*|"
    r"(?:do not|don't) (?:cancel|change|move|book|reschedul|use)\w*|still (?:stands?|valid|booked|takes place))\b"
)
"""Phrases that contradict an update.

Other negating words are allowed in an update, because they may occur in the reason for the change.
"""
_KNOWN = 4_096
"""Size limit of the cache of paths, because agents may invent any number of paths."""
_LONGEST = 128
"""Maximum length of an element name that is looked up; all names in R4 are shorter."""
_TAG = re.compile(r"<[^<>]*>")
_PATIENT = re.compile(r"(?:.*/)?Patient/([A-Za-z0-9\-.]{1,64})(?:/_history/.*)?\Z")
_PATIENT_ELEMENTS = ("subject", "patient", "beneficiary", "for")
_FREE_TEXT = frozenset({"string", "markdown", "xhtml"})
_IN_WORDS = frozenset(
    {"CodeableConcept", "Coding", "Annotation", "Narrative", "Extension", "Dosage"}
    | {"Appointment", "Account", "ServiceRequest", "Task"}
)
"""Data types with free text about the record. Texts in other types, such as names and addresses, are not checked."""


@dataclass(frozen=True, slots=True)
class _Reader:
    """Finds the elements that change the meaning of a record.

    Attributes:
        end: The end state.
        asked: Paths of the requested elements.
        patients: Ids of the patients that these elements refer to.
    """

    end: FinishedEpisode
    asked: Collection[str] = ()
    patients: frozenset[str] = frozenset()

    def changes(self, content: str, holder: Resource, prefix: str = "", *, closed: bool = True) -> Iterator[str]:
        """Yield paths of elements that change the meaning of a record or a part of it.

        Args:
            content: R4 type or element path.
            holder: The record, or the part of it.
            prefix: Path of the part.
            closed: Whether all elements are checked, so that only requested and neutral elements are allowed. If not,
                only modifier elements inside data types are checked.
        """
        if content == "Extension" and holder.get("url") in REVERSING_EXTENSIONS:
            yield f"{prefix}url"
        elements = elements_of(content[:_LONGEST])
        for name, value in holder.items():
            path, rule = prefix + name, _rule(content[:_LONGEST], name[:_LONGEST], closed)
            if name in _ALWAYS or (path not in self.asked and not self._keeps(rule, value)):
                yield path
            elif name in elements:
                inside = path in self.asked or rule == "part"
                for item in value if isinstance(value, list) else [value]:
                    if isinstance(item, dict):
                        kind = str(elements[name].content or item.get("resourceType"))
                        yield from self.changes(kind, item, f"{path}.", closed=closed and inside)

    def _keeps(self, rule: Rule | None, value: Json) -> bool:
        """Whether a value satisfies a rule and is about the same patient."""
        if rule == "anything" and not isinstance(value, dict | list):
            return True
        if rule is None or (
            self.patients
            and not all(
                _patients(reference_target, self.end) <= self.patients for reference_target in _reference_targets(value)
            )
        ):
            return False
        if isinstance(rule, tuple):
            return fits_vocabulary(value, rule)
        today = self.end.world.now.date()
        if rule == "today":
            day = _day(value)
            return day is not None and abs(day - today) <= timedelta(days=1)
        if rule == "in force":
            return is_within(instant(self.end.world.now), value)
        return rule != "by name" or not any(True for _ in _reference_targets(value))


_ALWAYS = frozenset({"implicitRules", "modifierExtension"})


@lru_cache(_KNOWN)
def _rule(content: str, name: str, closed: bool) -> Rule | None:
    """The rule for an unrequested element of a record or data type; None if it is not allowed."""
    if name.startswith("_"):  # extensions of a primitive
        return "anything"
    if closed and content in BY_RECORD:
        return BY_RECORD[content].get(name) or EVERYWHERE.get(name)
    unlisted: Rule | None = None if content in DATA_TYPES and name in modifiers(content) else "anything"
    return BY_DATA_TYPE.get(content, {}).get(name, unlisted)


def negates(text: str) -> bool:
    """Whether a free text says that the record is wrong, does not apply yet, or is about another patient."""
    return _NEGATES.search(_in_lower_case(text)) is not None


def added_meaning(asked: Mapping[str, Collection[str]], end: FinishedEpisode) -> list[str]:
    """Unrequested elements that the agent wrote and that change the meaning of a record.

    Args:
        asked: Requested elements for each type. In records of other types, only modifier elements inside data types
            are checked.
        end: The end state.
    """
    return [
        f"{change.resource_type}.{path}"
        for change in end.changes
        if change.after is not None
        for path in dict.fromkeys(_created(asked, end, change) if change.kind == "created" else _updated(end, change))
    ]


def _created(asked: Mapping[str, Collection[str]], end: FinishedEpisode, change: Change) -> Iterator[str]:
    """Yield the elements that change the meaning of a new record."""
    body, kind = dict(change.after or {}), change.resource_type
    asked_names = asked.get(kind, ())
    own = [value for name, value in body.items() if name in asked_names]
    patients = frozenset(id for target in _reference_targets(own) for id in _named_patients(target))
    yield from _Reader(end, asked_names, patients).changes(kind, body, closed=kind in asked)
    yield from _other_lengths(body)
    for path, text in _texts(kind, body):
        if negates(text) and not (path == "note.text" and "note" in asked_names):
            yield path


def _updated(end: FinishedEpisode, change: Change) -> Iterator[str]:
    """Yield elements that change the meaning and that an update adds inside changed elements.

    The task itself checks which elements change.
    """
    before, kind = dict(change.before or {}), change.resource_type
    changed = {name: value for name, value in (change.after or {}).items() if before.get(name) != value}
    reader = _Reader(end)
    changes = [*reader.changes(kind, changed, closed=False)]
    there = {*reader.changes(kind, before, closed=False)} if changes else set()
    yield from (path for path in changes if path not in there)
    if "minutesDuration" in changed:
        yield from _other_lengths(change.after or {})
    yield from (path for path, text in _texts(kind, changed) if _ANNULS.search(_in_lower_case(text)))


def _other_lengths(body: Resource) -> Iterator[str]:
    """Yield ``minutesDuration`` if it differs from the minutes between start and end."""
    start, end, minutes = (body.get(name) for name in ("start", "end", "minutesDuration"))
    if isinstance(start, str) and isinstance(end, str) and minutes is not None:
        try:
            same = datetime.fromisoformat(end) - datetime.fromisoformat(start) == timedelta(minutes=minutes)
        except (ValueError, TypeError):
            return  # a value is a date without a time, or only one value has a time zone
        if not same:
            yield "minutesDuration"


def _texts(content: str, holder: Resource, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the free texts in a record, or in a part of it, with their paths."""
    elements, in_words = elements_of(content[:_LONGEST]), content in _IN_WORDS
    for name, value in holder.items():
        element = elements.get(name)
        if element is None or not (in_words or element.content):
            continue
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                kind = str(element.content or item.get("resourceType"))
                yield from _texts(kind, item, f"{prefix}{name}.")
            elif in_words and element.type in _FREE_TEXT and isinstance(item, str):
                yield prefix + name, item


def _in_lower_case(text: str) -> str:
    return plain(_TAG.sub(" ", text)).casefold()


@lru_cache(_KNOWN)
def elements_of(content: str) -> Mapping[str, Element]:
    """Return the elements of an R4 type or path; empty for an unknown type or path."""
    try:
        return children(content)
    except UnknownNameError:
        return {}


def _day(value: Json) -> date | None:
    """The UTC day of a date or dateTime; None for a less precise date or another value."""
    text = str(value)
    try:
        if len(text) == len("2000-01-01"):
            return date.fromisoformat(text)
        moment = datetime.fromisoformat(text)
        return (moment - (moment.utcoffset() or timedelta())).date()
    except (ValueError, OverflowError):
        return None


def _reference_targets(value: Json) -> Iterator[str]:
    """Yield the targets of all references in a value."""
    if isinstance(value, dict) and isinstance(value.get("reference"), str):
        yield value["reference"]
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _reference_targets(item)


def _named_patients(target: Json) -> set[str]:
    match = _PATIENT.match(target) if isinstance(target, str) else None
    return {match[1]} if match else set()


def _patients(target: str, end: FinishedEpisode) -> set[str]:
    """Ids of the patients that a reference concerns: the target itself, or the subjects of the target."""
    named, referred = _named_patients(target), end.refers(target)
    record = end.after.read(*referred.split("/")) if referred and not named else None
    about = {name: value for name, value in (record or {}).items() if name in _PATIENT_ELEMENTS}
    return named | {
        id for reference_target in _reference_targets([*about.values()]) for id in _named_patients(reference_target)
    }
