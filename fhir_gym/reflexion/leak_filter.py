"""Keep names, ids, dates and numbers of particular episodes out of reflections."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

from fhir_gym.reflexion.instance_data import InstanceData

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
    text = "".join(" " if unicodedata.category(one) in ("Cc", "Zl", "Zp") else one for one in text)
    text = "".join(one for one in text if unicodedata.category(one) not in ("Cf", "Cs", "Co", "Cn", "Mn", "Me"))
    return " ".join(text.split())


def _refusal_of_form(text: str) -> str | None:
    """Return why a text is refused whatever its meaning, or None."""
    if any(one.isalpha() and not _is_latin(one) for one in text):
        return "another script"  # a letter of another alphabet can imitate a Latin letter
    if any(len(word) > _LONGEST_WORD for word in re.findall(r"[^\W_]+", text)):
        return "encoded text"
    return None


def _is_latin(letter: str) -> bool:
    code = ord(letter)
    return code < 0x250 or 0x1E00 <= code < 0x1F00 or code == _MU
