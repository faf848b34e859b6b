"""Reads shift prompts and FHIR responses without the pack's code, from the text alone."""

import json
import re
import unicodedata
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

Record = dict[str, Any]

COMING = ("booked", "pending")

_DAY = r"(?P<day>\d{4}-\d\d-\d\d)"
_BORN = r"(?P<birth>\d{4}-\d\d-\d\d)"
_DOCTOR = r"Dr\. (?P<doctor>.+?)"
_OPENINGS = {
    "book": (
        rf"(?P<name>.+?), born {_BORN}, would like an appointment in (?P<service>.+?)\.",
        rf"Please find a time in (?P<service>.+?) for (?P<name>.+?) \(date of birth {_BORN}\)\.",
        rf"(?P<service>[^:]+): (?P<name>.+?), {_BORN}, needs an appointment\.",
    ),
    "cancel": (
        rf"(?P<name>.+?), born {_BORN}, cannot see {_DOCTOR} on {_DAY}\. Please cancel the appointment\.",
        rf"Please cancel the appointment of (?P<name>.+?) \(date of birth {_BORN}\) with {_DOCTOR} on {_DAY}\.",
        rf"Cancellation: (?P<name>.+?), {_BORN}, {_DOCTOR}, {_DAY}\.",
    ),
    "noshow": (
        rf"(?P<name>.+?), born {_BORN}, did not come to {_DOCTOR} on {_DAY}\. Please record that\.",
        rf"Please record that (?P<name>.+?) \(date of birth {_BORN}\) missed the appointment with "
        rf"{_DOCTOR} on {_DAY}\.",
        rf"Missed: (?P<name>.+?), {_BORN}, {_DOCTOR}, {_DAY}\.",
    ),
    "move": (
        rf"(?P<name>.+?), born {_BORN}, cannot see {_DOCTOR} on {_DAY} at the agreed time\. "
        r"Please find another one\.",
        rf"Please move the appointment of (?P<name>.+?) \(date of birth {_BORN}\) with {_DOCTOR} on {_DAY}\.",
        rf"New time needed: (?P<name>.+?), {_BORN}, {_DOCTOR}, now on {_DAY}\.",
    ),
}
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True)
class Wishes:
    """The wishes of one request."""

    weekdays: tuple[str, ...] = ()
    half: str = ""
    not_before: date = date.min
    minutes: int = 0
    language: str = ""
    gender: str = ""

    @classmethod
    def parse(cls, text: str) -> "Wishes":
        """Read the sentences after the opening of a request; every sentence must be known."""
        values: Record = {}
        for sentence in re.findall(r"[^.]+\.", text):
            if found := re.fullmatch(r"Only (.+) is possible\.", sentence.strip()):
                values["weekdays"] = tuple(found[1].split(" or "))
            elif found := re.fullmatch(r"It has to be in the (morning|afternoon)\.", sentence.strip()):
                values["half"] = found[1]
            elif found := re.fullmatch(r"Not before (\S+)\.", sentence.strip()):
                values["not_before"] = date.fromisoformat(found[1])
            elif found := re.fullmatch(r"The slot must last at least (\d+) minutes\.", sentence.strip()):
                values["minutes"] = int(found[1])
            elif found := re.fullmatch(r"The practitioner must speak (\w+)\.", sentence.strip()):
                values["language"] = found[1]
            elif found := re.fullmatch(r"The practitioner must be a (woman|man)\.", sentence.strip()):
                values["gender"] = {"woman": "female", "man": "male"}[found[1]]
            else:
                raise AssertionError(f"unknown wish: {sentence!r}")
        return cls(**values)

    def allow_slot(self, slot: Record) -> bool:
        """Return whether day, half of the day and length of the slot meet the wishes."""
        start = moment(slot["start"])
        half = "morning" if start.hour < 12 else "afternoon"
        return (
            (not self.weekdays or _WEEKDAYS[start.weekday()] in self.weekdays)
            and self.half in ("", half)
            and start.date() >= self.not_before
            and length(slot) >= self.minutes
        )

    def allow_practitioner(self, practitioner: Record) -> bool:
        """Return whether language and gender of the practitioner meet the wishes."""
        spoken = [c["display"] for language in practitioner.get("communication", []) for c in language["coding"]]
        return (not self.language or self.language in spoken) and self.gender in ("", practitioner.get("gender"))


@dataclass(frozen=True)
class Request:
    """One request of the prompt."""

    letter: str
    kind: str
    name: str
    birth: str
    service: str
    doctor: str
    day: str
    wishes: Wishes


@dataclass(frozen=True)
class Shift:
    """The prompt as data; `clinic` is empty if the prompt names no Location."""

    present: datetime
    clinic: str
    requests: tuple[Request, ...]

    @classmethod
    def parse(cls, prompt: str) -> "Shift":
        """Read the present, the clinic and the requests."""
        present = re.search(r"Present: (\S+),", prompt)
        assert present
        clinic = re.search(r"All requests are for (.+?) \(a Location\)", prompt)
        lines = re.findall(r"^([A-Z])\. (.+)$", prompt, re.MULTILINE)
        return cls(moment(present[1]), clinic[1] if clinic else "", tuple(_request(*line) for line in lines))


def _request(letter: str, text: str) -> Request:
    """Read one request in any of the wordings."""
    for kind, openings in _OPENINGS.items():
        for opening in openings:
            if found := re.match(opening, text):
                parts = {"service": "", "doctor": "", "day": ""} | found.groupdict()
                return Request(letter, kind, wishes=Wishes.parse(text[found.end() :]), **parts)
    raise AssertionError(f"unknown request: {text!r}")


def moment(text: str) -> datetime:
    """Return a FHIR instant in UTC."""
    return datetime.fromisoformat(text).astimezone(UTC)


def length(slot: Record) -> float:
    """Return the minutes that a slot or an appointment lasts."""
    return (moment(slot["end"]) - moment(slot["start"])).total_seconds() / 60


def overlaps(one: Record, other: Record) -> bool:
    """Return whether two slots or appointments share some time."""
    return moment(one["start"]) < moment(other["end"]) and moment(other["start"]) < moment(one["end"])


def path(record: Record) -> str:
    """Return the reference to a record."""
    return f"{record['resourceType']}/{record['id']}"


def is_named(person: Record, name: str) -> bool:
    """Return whether one of the person's names is `name`."""
    return any(" ".join((*entry.get("given", []), entry.get("family", ""))) == name for entry in person["name"])


def alphabetical(practitioner: Record) -> str:
    """Return the sort key of a family name; letters with and without accents are the same letter."""
    family = unicodedata.normalize("NFKD", practitioner["name"][0]["family"].casefold())
    return "".join(letter for letter in family if not unicodedata.combining(letter))


def actors(record: Record, kind: str) -> list[str]:
    """Return the references of one type among the actors of a schedule or the participants of an appointment."""
    found = record.get("actor", []) + [p.get("actor", {}) for p in record.get("participant", [])]
    return [a["reference"] for a in found if a.get("reference", "").startswith(f"{kind}/")]


def offers(schedule: Record, service: str) -> bool:
    """Return whether a schedule has the specialty `service`."""
    return any(service in (s.get("text"), *(c.get("display") for c in s["coding"])) for s in schedule["specialty"])


def new_appointment(patient: str, practitioner: str, slot: Record) -> Record:
    """Return the Appointment that books a slot."""
    participants = [{"actor": {"reference": who}, "status": "accepted"} for who in (patient, practitioner)]
    return {
        "resourceType": "Appointment",
        "status": "booked",
        "start": slot["start"],
        "end": slot["end"],
        "slot": [{"reference": path(slot)}],
        "participant": participants,
    }


def body_of(observation: str) -> Record:
    """Return the JSON of a successful response."""
    status, _, body = observation.partition("\n")
    assert status.startswith("HTTP 2"), observation[:500]
    found: Record = json.loads(body)
    return found


def read_pages(url: str, *, follow: bool = True) -> Generator[str, str, list[Record]]:
    """Return the records of a search, following the next links."""
    records: list[Record] = []
    while url:
        bundle = body_of((yield f"GET {url}"))
        records += [entry["resource"] for entry in bundle.get("entry", [])]
        url = next((link["url"] for link in bundle["link"] if link["relation"] == "next"), "") if follow else ""
    return records


def send(method: str, url: str, body: Record | list[Record]) -> Generator[str, str, Record]:
    """Send a body and return the response's JSON."""
    return body_of((yield f"{method} {url}\n{json.dumps(body)}"))


def finish(outcomes: Sequence[tuple[Request, str]]) -> str:
    """Return the last action."""
    return f"FINISH({json.dumps([f'{request.letter}: {outcome}' for request, outcome in outcomes])})"
