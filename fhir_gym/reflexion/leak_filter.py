"""Keep names, ids, dates and numbers of particular episodes out of reflections."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fhir_gym.fhir.definitions import RESOURCE_TYPES
from fhir_gym.rollouts import Rollout
from fhir_gym.tasks import Variation
from fhir_gym.types import Json


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NEVER_NAMES = _words("""
monday tuesday wednesday thursday friday saturday sunday january february march april may june july august september
october november december dr mr mrs ms prof patient
""") | {name.casefold() for name in RESOURCE_TYPES}
"""Words that are never names: days, months, titles and resource types."""

ORDINARY = _words("""
adams art baker banks bell bill brooks brown burke bush butler carter case chance chase christian church clark cole
cook cooper cox cross dale day dean der drew earl faith field fisher ford foster fox frank gene glen good grace grant
gray green guy hall hill hope house hunter jack jean joy king knight law lee lewis long major mark marshall mason may
miles mill miller moon moore norm oral page park parker pat penny perry pine porter price ray read reading reed reese
rich rivers rock rose ruby rush sage sharp short sky stone strong sue summer sun turner van victor wade walker wall
ward warren way webb wells west white will wood woods young
""")
"""Names of people that are also common words. They count as names only with a capital letter inside a sentence."""

GENERIC = _words("""
and angel annex arabic associates assurance at avenue bank bay beacon benefit blue branch bridge bronze campus canyon
care cedar center central centre chapel cherry city clear clinic college community company corner court crest
department diamond drive east elm england family farm first for forest french garden general german gold golden grand
granite great group grove harbor harbour haven health healthcare heart heights high highland hindi home hospital
institute insurance internal lake lakeland lakes lane liberty life light main maple medical medicine midwest mobile
mutual national new north oak of office official old one pacific parkway partners people peoples pinnacle plan
platinum plaza point portuguese practice prairie primary quarry rapids regional ridge river road saint service
services silver south spanish specialists spring springs square state street suite summit terrace test the tidewater
trail trust union united university unknown urgent valley vietnamese view village wellness willow with work
""")
"""Words of the names of places, languages and organisations that are no names without the other words."""


_WORD = re.compile(r"[^\W\d_]+(?:['\u2019.\-_][^\W\d_]+)*")
"""A word; the pieces of a compound name are joined by a hyphen, an apostrophe, a full stop or an underscore."""
_PIECE = re.compile(r"[^\W\d_]+")
_SENTENCE_END = frozenset(".!?:;•*")
"""Characters after which a capital letter does not indicate a name."""
_FREE_TEXT = 60
"""Minimum number of characters of a value that is a text of its own. Its clauses are compared, but not its words."""
_PARTICLE = 3
"""Maximum length of words in lower case in a person's name, such as "de" and "van"."""
_LONG_CLAUSE = 3
"""Minimum number of words of a clause that is compared."""
_UNDECOMPOSED = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "ð": "d", "\u0131": "i", "æ": "ae", "œ": "oe", "þ": "th"})
_PEOPLE = frozenset({"Patient", "Practitioner", "RelatedPerson", "Person"})
_NAME_VALUES = frozenset({"given", "family", "patient", "doctor", "guarantor", "name", "insurer", "city", "clinic"})
"""Placeholders of prompts whose values are names of people and places, even if they have only one word."""
_NAME_KEYS = frozenset({"family", "given", "city", "district", "line", "name", "text"})


def fold(word: str) -> str:
    """Return a word in lower case, without accents and punctuation, so that spellings of a name can be compared."""
    plain = unicodedata.normalize("NFKD", word.casefold().translate(_UNDECOMPOSED))
    return "".join(letter for letter in plain if letter.isalnum())


def _is_term(value: str, words: list[str]) -> bool:
    """Whether a value looks like a clinical term: one word, or only the first word has a capital letter."""
    return len(value) <= _FREE_TEXT and (len(words) == 1 or any(_is_lower(word) for word in words))


def _is_lower(word: str) -> bool:
    return word[0].islower() and len(word) > _PARTICLE


def _is_capitalised(word: str) -> bool:
    return word[0].isupper() and len(word) > _PARTICLE and fold(word) not in NEVER_NAMES | GENERIC


class InstanceData:
    """The names and the ids of episodes: people, places, organisations and records.

    Examples:
        >>> data = InstanceData()
        >>> data.add_value("José García")
        >>> data.redact("Search for Garcia by name.", "<name>")
        'Search for <name> by name.'
    """

    def __init__(self) -> None:
        self._words: set[str] = set()
        self._exact: set[str] = set()
        self._phrases: set[tuple[str, ...]] = set()
        self._ids: set[str] = set()
        self._longest = 1

    def update(self, other: InstanceData) -> None:
        """Add everything that another collection contains."""
        self._words |= other._words
        self._exact |= other._exact
        self._phrases |= other._phrases
        self._ids |= other._ids
        self._longest = max(self._longest, other._longest)

    def add_variation(self, variation: Variation, values: Mapping[str, str], *, terms: bool = True) -> None:
        """Add a variation: the values in its prompt, and its records.

        Args:
            variation: The variation.
            values: The values in its prompt by the names of their placeholders.
            terms: Whether clinical terms in the prompt count too, such as the name of a diagnosis.
        """
        for key, value in values.items():
            words = _WORD.findall(value)
            if key in _NAME_VALUES or not _is_term(value, words):
                self.add_value(value)
            elif terms and any(_is_capitalised(word) for word in words):
                self._add_phrase(words, 1)
        for resource in variation.setup:
            self.add_resource(resource)

    def add_rollout(self, rollout: Rollout) -> None:
        """Add everything that the agent of an episode read or wrote."""
        for turn in rollout.turns:
            for text in (turn.observation, turn.action):
                start = min((at for at in (text.find("{"), text.find("[")) if at >= 0), default=-1)
                self.add_text(text[start:]) if start >= 0 else None

    def add_value(self, value: str, *, person: bool = True) -> None:
        """Add a name. Its words in lower case are no names.

        Args:
            value: The name, or a text that may contain one.
            person: Whether each word is a name in any spelling. Otherwise, as in the name of a clinic, a word counts
                as a name only with a capital letter inside a sentence; the whole name counts in any spelling.
        """
        if len(value) > _FREE_TEXT:
            for clause in re.split(r"[.:;,]", value):
                self._add_phrase(_WORD.findall(clause), _LONG_CLAUSE)
            return
        words = _WORD.findall(value)
        if any(word[0].isupper() and fold(word) not in NEVER_NAMES for word in words):
            self._add_phrase(words, 2)
        if any(_is_lower(word) for word in words):
            return  # a clinical term: its first word has a capital letter, but is no name
        for word in words:
            for piece in {word, *word.split("-"), *(piece for piece in _PIECE.findall(word) if len(piece) > 2)}:
                if piece[:1].isupper():
                    self._add_word(piece, person)

    def add_id(self, id: str) -> None:
        """Add the id of a record."""
        if len(id) > 1 and id.casefold() not in NEVER_NAMES | ORDINARY | GENERIC:
            self._ids.add(id.casefold())

    def add_resource(self, value: Json) -> None:
        """Add the names and ids in a resource, a Bundle or another JSON value."""
        waiting = [value]
        while waiting:
            element = waiting.pop()
            if isinstance(element, list):
                waiting += element
            elif isinstance(element, dict):
                self._add_object(element)
                waiting += [child for child in element.values() if isinstance(child, dict | list)]

    def add_text(self, text: str) -> None:
        """Add a resource or another JSON value as text, which may be cut off."""
        try:
            value, _ = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            for family, givens in re.findall(r'"family"\s*:\s*"([^"\\]{1,80})"|"given"\s*:\s*\[([^\]]{1,200})\]', text):
                self.add_value(family)
                self._add_texts(re.findall(r'"([^"\\]{1,80})"', givens))
            return
        self.add_resource(value)

    def redact(self, text: str, placeholder: str) -> str:
        """Replace the names and ids in a text by placeholders."""
        parts, end = [], 0
        for start, stop, is_id in self._matches(text):
            parts += [text[end:start], "<id>" if is_id else placeholder]
            end = stop
        joined = "".join([*parts, text[end:]])
        return re.sub(rf"{re.escape(placeholder)}(?:[\s,]+{re.escape(placeholder)})+", placeholder, joined)

    def contains(self, text: str) -> bool:
        """Whether a text contains one of the names or ids."""
        return bool(self._matches(text))

    def is_id(self, text: str) -> bool:
        """Whether a text is one of the ids."""
        return text.casefold() in self._ids

    def _matches(self, text: str) -> list[tuple[int, int, bool]]:
        """Return the start and end of each match, and whether the match is an id, in order."""
        spans: list[tuple[int, int, bool]] = []
        spans += [(m.start(), m.end(), True) for m in re.finditer(r"[\w][\w.-]*", text) if self.is_id(m[0].rstrip("."))]
        words = list(_WORD.finditer(text))
        folded = [fold(match[0]) for match in words]
        at = 0
        while at < len(words):
            count = self._phrase_length(folded, at) or int(self._is_name(words[at], text))
            if count:
                spans.append((words[at].start(), words[at + count - 1].end(), False))
            at += max(count, 1)
        return _without_overlaps(spans)

    def _phrase_length(self, folded: list[str], at: int) -> int:
        longest = min(self._longest, len(folded) - at)
        return next((n for n in range(longest, 0, -1) if tuple(folded[at : at + n]) in self._phrases), 0)

    def _is_name(self, match: re.Match[str], text: str) -> bool:
        word = match[0]
        pieces = [word, *(piece for piece in _PIECE.findall(word) if len(piece) > 2)]
        if any(self._is_word(piece) for piece in pieces):
            return True
        inside = text[: match.start()].rstrip(" ")[-1:] not in ("", *_SENTENCE_END)
        return inside and any(piece[0].isupper() and piece in self._exact for piece in pieces)

    def _is_word(self, word: str) -> bool:
        return fold(word) in self._words or (len(word) <= 3 and word in self._exact and fold(word) not in ORDINARY)

    def _add_phrase(self, words: list[str], least: int) -> None:
        if len(words) >= least:
            self._phrases.add(tuple(map(fold, words)))
            self._longest = max(self._longest, len(words))

    def _add_word(self, word: str, person: bool) -> None:
        folded = fold(word)
        if folded in NEVER_NAMES | GENERIC or len(folded) < 2 or (word.isupper() and len(word) <= 3):
            return
        if folded in ORDINARY or len(folded) <= 3 or not person:
            self._exact.add(word)
        else:
            self._words.add(folded)

    def _add_object(self, resource: Mapping[str, Any]) -> None:
        if isinstance(resource.get("id"), str):
            self.add_id(resource["id"])
        reference = resource.get("reference")
        if isinstance(reference, str):
            self.add_id(reference.rpartition("/")[2])
            self._add_texts(resource.get("display"), person=reference.partition("/")[0] in _PEOPLE)
        identifiers = resource.get("identifier")
        for identifier in identifiers if isinstance(identifiers, list) else [identifiers]:
            if isinstance(identifier, dict) and isinstance(identifier.get("value"), str):
                self.add_id(identifier["value"])
        person = "family" in resource or "given" in resource
        for key in _NAME_KEYS - (set() if person else {"text"}):
            self._add_texts(resource.get(key), person=person)

    def _add_texts(self, value: Json, *, person: bool = True) -> None:
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                self.add_value(text, person=person)


def _without_overlaps(spans: Iterable[tuple[int, int, bool]]) -> list[tuple[int, int, bool]]:
    kept: list[tuple[int, int, bool]] = []
    for match in sorted(spans, key=lambda span: (span[0], -span[1])):
        if not kept or match[0] >= kept[-1][1]:
            kept.append(match)
    return kept


MAX_LENGTH = 1_000
"""Maximum number of characters of a reflection."""
MAX_SITUATION = 20_000
"""Maximum number of characters of the request that a macro reflection is about."""
_LEAST_WORDS = 3
"""Minimum number of words, without placeholders, of a reflection."""
_LONGEST_WORD = 60
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_DAY = r"\d{1,2}(?:st|nd|rd|th)?"
_PATTERNS = (
    (re.compile(r"(?:19|20)\d{2}-\d{2}(?:-\d{2})?(?:T[\d:.]*(?:Z|[+-]\d{2}:?\d{2})?)?"), "<date>"),
    (re.compile(rf"\b{_MONTH} {_DAY}(?:,? \d{{4}})?\b|\b{_DAY} (?:of )?{_MONTH}(?: \d{{4}})?\b"), "<date>"),
    (re.compile(r"\b\d{1,4}[./]\d{1,2}[./]\d{2,4}\b"), "<date>"),
    (re.compile(r"(?<!\d)\d{1,2}:\d{2}(?::\d{2})?(?!\d)"), "<time>"),
    (re.compile(r"(?<!\w)\w(?:[\W_]\w){3,}(?!\w)"), "<value>"),  # a name or id that is spelled out
)
_MU = 0x3BC
_IMITATIONS = str.maketrans("013457", "oieast")
_ATOM = re.compile(r"[^\W_]+(?:[-.][^\W_]+)*")
_PLACEHOLDER = re.compile(r"<(?:name|id|date|time|number|value)>")
_REPEATED = re.compile(r"(<(?:name|id|date|time|number|value)>)(?:[\s,/+-]*\1)+")
_STATUSES = frozenset(f"{code}" for code in (200, 201, 204, 304, *range(400, 418), 422, 428, 429, 500, 501, 502, 503))
_GENERAL = _STATUSES | {"100", "200", "500", "1000", "iso8601", "iso-8601", "sha256", "base64", "4.0.1", "icd-10"}
"""Numbers and words with digits that do not come from a particular episode."""


@dataclass(frozen=True, slots=True)
class Filtered:
    """The result of filtering a text.

    Attributes:
        text: The text with placeholders; empty if the text was refused.
        refusal: Why the text was refused; None for an accepted text.
        replaced: Number of placeholders.
    """

    text: str
    refusal: str | None = None
    replaced: int = 0


class LeakFilter:
    """Replaces instance data in texts by placeholders, and refuses texts that contain data of guarded episodes.

    Dates, times, ids and numbers are recognised by their form. Names are recognised because they occur in the data.
    Whole numbers below 100 remain, unless they occur in the episode's own data.

    Args:
        guarded: Names and ids of which no text may contain any, in particular those of test variations.
        public: Texts with general numbers and codes, such as the fixed parts of prompts; these remain.
    """

    def __init__(self, guarded: InstanceData, public: Iterable[str] = ()) -> None:
        self._guarded = guarded
        self._public = _GENERAL | {atom.casefold() for text in public for atom in _ATOM.findall(text)}

    def apply(
        self, text: str, own: InstanceData, numbers: frozenset[str] = frozenset(), max_length: int = MAX_LENGTH
    ) -> Filtered:
        """Filter a text.

        Args:
            text: The text.
            own: Names and ids of the episode that the text is about.
            numbers: Numbers of that episode that are replaced even if they are small.
            max_length: Maximum number of characters of the text.
        """
        text = _cleaned(text)
        refusal = "too long" if len(text) > max_length else _refusal_of_form(text)
        if refusal:
            return Filtered("", refusal)
        for pattern, placeholder in _PATTERNS:
            text = pattern.sub(placeholder, text)
        text = _ATOM.sub(lambda match: self._replaced(match[0], own, numbers), text)
        text = own.redact(text, "<name>")
        if self._guarded.contains(text):
            return Filtered("", "test data")
        text = _REPEATED.sub(r"\1", text)
        if len(re.findall(r"[^\W\d_]+", _PLACEHOLDER.sub("", text))) < _LEAST_WORDS:
            return Filtered("", "no lesson left")
        return Filtered(text, None, len(_PLACEHOLDER.findall(text)))

    def _replaced(self, atom: str, own: InstanceData, numbers: frozenset[str]) -> str:
        digits = sum(letter.isdigit() for letter in atom)
        if own.is_id(atom) or self._guarded.is_id(atom):
            return "<id>"
        imitated = atom.translate(_IMITATIONS)
        if digits and (own.contains(imitated) or self._guarded.contains(imitated)):
            return "<name>"
        if not digits or atom in ("v2", "v3", "R4"):
            return atom
        if atom in numbers and atom.casefold() not in self._public - _GENERAL:
            return "<number>"
        if atom.casefold() in self._public:
            return atom
        if not any(letter.isalpha() for letter in atom):
            return atom if digits <= 2 and atom.isdigit() else "<number>"
        return "<id>" if digits > 1 else atom


def _cleaned(text: str) -> str:
    """Return a text on one line, in normal form, and without invisible characters."""
    text = unicodedata.normalize("NFKC", text)
    text = "".join(" " if unicodedata.category(character) in ("Cc", "Zl", "Zp") else character for character in text)
    text = "".join(
        character for character in text if unicodedata.category(character) not in ("Cf", "Cs", "Co", "Cn", "Mn", "Me")
    )
    return " ".join(text.split())


def _refusal_of_form(text: str) -> str | None:
    """Return why a text is refused whatever its meaning, or None."""
    if any(character.isalpha() and not _is_latin(character) for character in text):
        return "another script"  # a letter of another alphabet can imitate a Latin letter
    if any(len(word) > _LONGEST_WORD for word in re.findall(r"[^\W_]+", text)):
        return "encoded text"
    return None


def _is_latin(letter: str) -> bool:
    code = ord(letter)
    return code < 0x250 or 0x1E00 <= code < 0x1F00 or code == _MU
