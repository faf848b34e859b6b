"""Compare clinical content.

Comparisons ignore fields that the server sets, the order of repeating objects, and differences between equivalent
spellings of instants and references. `same_record` is stricter; it is for records that must not change.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from functools import lru_cache

from fhir_gym.fhir.serialization import dumps
from fhir_gym.types import Json, Resource

_REFERENCE = re.compile(
    r"(?:(?P<base>.*)/)?(?P<type>[A-Z][A-Za-z]+)/(?P<id>[A-Za-z0-9\-.]{1,64})(?:/_history/[^/]+)?\Z"
)
_SHORT = 200
"""Length of the references whose results stay in memory."""
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)\Z")
_US_DIGITS = 10
_LABELS = ("profile", "security", "tag")
_MADE_BY_SERVERS = frozenset({"versionId", "lastUpdated", "source"})
_SPELLINGS = str.maketrans({"\u2019": "'", "\u2018": "'", "\u02bc": "'", "\u2010": "-", "\u2011": "-", "\u00a0": " "})


def plain(text: str) -> str:
    """Normalise a text: compose accents, and use ASCII apostrophes, ASCII hyphens and single spaces."""
    return " ".join(unicodedata.normalize("NFC", text).translate(_SPELLINGS).split())


def same_text(actual: Json, expected: str) -> bool:
    """Whether two texts are equal after normalisation. The comparison is case-sensitive."""
    return isinstance(actual, str) and plain(actual) == plain(expected)


def named(name: Json, given: str, family: str) -> bool:
    """Whether a HumanName has these given and family names; given names may be in one string or in several."""
    if not isinstance(name, dict):
        return False
    parts = [part for part in _list(name.get("given")) if isinstance(part, str)]
    return same_text(name.get("family"), family) and same_text(" ".join(parts), given)


def _digits(number: str) -> str:
    """The digits of a telephone number, without the country code of the United States."""
    digits = "".join(character for character in number if character.isdecimal())
    return digits[1:] if len(digits) == _US_DIGITS + 1 and digits.startswith("1") else digits


def same_telephone(actual: Json, expected: str) -> bool:
    """Whether two telephone numbers have the same digits.

    Punctuation and the country code ``+1`` are ignored.
    """
    return isinstance(actual, str) and _digits(actual) == _digits(expected) != ""


def phone_numbers(resource: Resource | None) -> list[Json]:
    """The telephone numbers of a person."""
    contacts = [contact for contact in _list((resource or {}).get("telecom")) if isinstance(contact, dict)]
    return [contact.get("value") for contact in contacts if contact.get("system") == "phone"]


def address_parts(address: Json) -> dict[str, str]:
    """The line, city and state of an Address as texts; the lines are joined, and commas in them do not count."""
    if not isinstance(address, dict):
        return {}
    lines = " ".join(line for line in _list(address.get("line")) if isinstance(line, str))
    parts = {"line": lines.replace(",", " "), "city": address.get("city"), "state": address.get("state")}
    return {name: plain(text) for name, text in parts.items() if isinstance(text, str) and text}


def has_coding(concept: Json, system: str, code: str) -> bool:
    """Whether a CodeableConcept, or any CodeableConcept in a list, has a coding with this system and code."""
    codings = [
        coding
        for codeable_concept in _list(concept)
        if isinstance(codeable_concept, dict)
        for coding in _list(codeable_concept.get("coding"))
    ]
    return any(isinstance(c, dict) and c.get("system") == system and c.get("code") == code for c in codings)


def same_moment(actual: Json, expected: str) -> bool:
    """Whether a date or dateTime equals the expected value, at the precision of the expected value.

    Instants are compared independently of their time zones. A more precise value is reduced to its day, month or year
    (in UTC if the value has a time zone). A less precise value is not equal.
    """
    if not isinstance(actual, str):
        return False
    if "T" in expected:
        mine, theirs = _instant(actual), _instant(expected)
        return actual == expected if mine is None or theirs is None else mine == theirs
    moment = _instant(actual)
    written = actual if moment is None else moment.isoformat()
    return re.fullmatch(re.escape(expected) + r"([-T].*)?", written) is not None


def is_within(moment: str, period: Json) -> bool:
    """Whether an instant lies in a Period. A bound that is a date includes the whole day; a missing bound is open."""
    at = _instant(moment)
    return isinstance(period, dict) and at is not None and _is_in_order(period.get("start"), at, period.get("end"))


def _is_in_order(start: Json, at: datetime, end: Json) -> bool:
    bounds = [(bound, _instant(bound) if isinstance(bound, str) else None) for bound in (start, end)]
    day = at.isoformat()
    (first, begins), (last, ends) = bounds
    begun = first is None or (begins <= at if begins is not None else str(first) <= day)
    return begun and (last is None or (ends >= at if ends is not None else str(last) >= day[: len(str(last))]))


def _instant(text: str) -> datetime | None:
    if not _INSTANT.match(text):
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def parse_reference(value: Json, base_url: str = "") -> tuple[str, str] | None:
    """Parse a literal reference to a resource on this server into its type and id; None for other values.

    Args:
        value: A Reference, or a text: ``Patient/1``, ``Patient/1/_history/2``, or an absolute URL below `base_url`.
        base_url: Base URL of the server.
    """
    text = value.get("reference") if isinstance(value, dict) else value
    if not isinstance(text, str):
        return None
    return (_parsed_reference if len(text) <= _SHORT else _parsed_reference.__wrapped__)(text, base_url)


@lru_cache(maxsize=20_000)
def _parsed_reference(text: str, base_url: str) -> tuple[str, str] | None:
    match = _REFERENCE.match(text)
    if match is None or (match["base"] or base_url.rstrip("/")) != base_url.rstrip("/"):
        return None
    return match["type"], match["id"]


def same_reference(value: Json, target: str, base_url: str = "") -> bool:
    """Whether a Reference points to a target such as ``Patient/1``."""
    reference = parse_reference(value, base_url)
    return reference is not None and "/".join(reference) == target


def _canonical(value: Json) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def differences(
    before: Resource,
    after: Resource,
    *,
    changing: Collection[str] = (),
    may_add: Collection[str] = (),
    may_go: Collection[str] = (),
    base_url: str = "",
) -> dict[str, list[Json]]:
    """The top-level elements with a change of meaning, each with its old and new value.

    The comparison ignores the narrative, the order of repeating objects, the `display` of references, and a
    `minutesDuration` equal to the time from `start` to `end`. In `meta`, it compares tags, security labels and added
    profiles. Removed profiles are ignored, because an update without `meta` removes them.

    Args:
        before: The resource before the change.
        after: The resource after the change.
        changing: Elements that may change.
        may_add: Elements that may be added.
        may_go: Elements that may be removed.
        base_url: Base URL of the server. An absolute reference below it equals the relative reference.
    """
    ignored = {"meta", "text", *changing}
    ignored |= {*may_add} - before.keys() | {*may_go} - after.keys()
    if _tells_its_length(after):
        ignored.add("minutesDuration")
    changed = {
        name: [before.get(name), after.get(name)]
        for name in sorted(before.keys() | after.keys())
        if name not in ignored and _content(before.get(name), base_url) != _content(after.get(name), base_url)
    }
    old, new = before.get("meta"), after.get("meta")
    return changed if _same_labels(old or {}, new or {}) else {"meta": [old, new], **changed}


def same_record(resource: Resource, other: Resource) -> bool:
    """Whether two versions of a record are identical, including labels and the order of lists.

    The comparison ignores the version number, the update time, the source and the order of labels, because the server
    sets them.
    """
    return _to_the_letter(resource) == _to_the_letter(other)


def _to_the_letter(resource: Resource) -> bytes:
    meta = {name: value for name, value in resource.get("meta", {}).items() if name not in _MADE_BY_SERVERS}
    labels = {name: sorted(map(dumps, meta.pop(name, []))) for name in _LABELS}
    return dumps({**resource, "meta": meta}) + repr(labels).encode()


def _same_labels(old: Resource, new: Resource) -> bool:
    if any(_codes(old.get(name)) != _codes(new.get(name)) for name in ("security", "tag")):
        return False
    return {*_list(new.get("profile"))} <= {*_list(old.get("profile"))}


def _codes(labels: Json) -> set[tuple[Json, Json]]:
    """The systems and codes of labels. The label with which a server marks incomplete resources is left out."""
    return {(label.get("system"), label.get("code")) for label in _list(labels) if label.get("code") != "SUBSETTED"}


def _tells_its_length(resource: Resource) -> bool:
    """Whether `minutesDuration` equals the time from `start` to `end`."""
    start, end = (_instant(str(resource.get(name))) for name in ("start", "end"))
    minutes = resource.get("minutesDuration")
    return start is not None and end is not None and minutes == (end - start).total_seconds() / 60


def _content(value: Json, base_url: str) -> Json:
    """The canonical form of a value; equivalent spellings have the same canonical form."""
    if isinstance(value, dict):
        unsaid = ("display",) if "reference" in value else ()
        return {name: _content(item, base_url) for name, item in value.items() if name not in unsaid}
    if isinstance(value, list):
        items = [_content(item, base_url) for item in value]
        return sorted(items, key=_canonical) if any(isinstance(item, dict) for item in items) else items
    if isinstance(value, str):
        moment = _instant(value)
        if moment is not None:
            return moment.isoformat()
        if base_url and value.startswith(base_url.rstrip("/") + "/"):
            return value[len(base_url.rstrip("/")) + 1 :]
    return value


def _list(value: Json) -> Sequence[Json]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
