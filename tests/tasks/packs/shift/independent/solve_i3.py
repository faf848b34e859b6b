"""Solver of I3 (contacts in wards): it reads all places and all stays once, and counts minutes in sets."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta

from .desk import Desk, Patients, Prompt, Record, Send, Writing, finish, first_match, full_names, instant, ref, who

_NO_CONTACT = "no contact"
_0 = r"(?P<name>.+), born (?P<born>\S+)"
_1 = r"(?P<name>.+) \(date of birth (?P<born>\S+)\)"
_2 = r"(?P<name>.+), (?P<born>\d{4}-\d\d-\d\d)"
_LEAST = r"(?P<least>\d+) minutes"
_FROM = r"(?P<start>\S+ \S+) to (?P<end>\S+ \S+?)"
_BETWEEN = r"(?P<start>\S+ \S+) and (?P<end>\S+ \S+?)"
_QUESTIONS = [
    ("longest", rf"What is the longest time, in minutes, that another patient shared a room with {_0}, from {_FROM}\?"),
    ("names", rf"Which patients shared a room with {_0}, for at least {_LEAST} from {_FROM}\?"),
    ("number", rf"How many patients shared a room with {_0}, for at least {_LEAST} from {_FROM}\?"),
    (
        "longest",
        rf"Please work out the longest time, in minutes, that one patient shared a room with {_1} between {_BETWEEN}\.",
    ),
    ("names", rf"Please list the patients who shared a room with {_1} for {_LEAST} or more between {_BETWEEN}\."),
    ("number", rf"Please count the patients who shared a room with {_1} for {_LEAST} or more between {_BETWEEN}\."),
    ("longest", rf"{_2}: longest time with another patient in the same room, in minutes, {_FROM}\."),
    ("names", rf"{_2}: names of the patients in the same room for at least {_LEAST}, {_FROM}\."),
    ("number", rf"{_2}: number of patients in the same room for at least {_LEAST}, {_FROM}\."),
]
_Stay = tuple[str, datetime, datetime]


def solve(text: str, send: Send, writing: Writing = "patch") -> str:
    """Return the FINISH action for a prompt."""
    prompt, desk = Prompt.of(text), Desk(send, writing)
    questions = [(letter, *first_match(_QUESTIONS, request)) for letter, request in prompt.requests]
    patients = Patients(desk, {asked["name"] for _, _, asked in questions})
    ids = patients.ids((asked["name"], asked["born"]) for _, _, asked in questions)
    stays = _stays(desk, ids, prompt.now)
    everybody = {ref(p): p for p in desk.search_for("Patient?_id=", {it.partition("/")[2] for it in stays})}
    outcomes = []
    for letter, kind, asked in questions:
        found = patients.find(asked["name"], asked["born"])
        outcomes.append((letter, who(found) or _answer(kind, asked, found[0], stays, everybody)))
    return finish(outcomes)


def _stays(desk: Desk, ids: list[str], now: datetime) -> dict[str, list[_Stay]]:
    """Return the stays that count, by patient: those of some patients and all others in the same rooms."""
    own = desk.search_for("Encounter?patient=", ids)
    named = desk.search_for("Location?_id=", {place.partition("/")[2] for it in own for place in _places(it)})
    rooms = {_room(place) for place in named}
    beds = desk.search_for("Location?partof=", rooms)
    room_of = {room: room for room in rooms} | {ref(bed): _room(bed) for bed in beds}
    stays = defaultdict(list)
    for encounter in desk.search_for("Encounter?location=", room_of):
        for entry in encounter["location"]:
            room = room_of.get(entry["location"]["reference"])
            counts = encounter["status"] in {"in-progress", "finished"} and entry.get("status") in {
                "active",
                "completed",
            }
            if room and counts:
                period = entry["period"]
                end = instant(period["end"]) if "end" in period else now
                stays[encounter["subject"]["reference"]].append((room, instant(period["start"]), end))
    return stays


def _places(encounter: Record) -> list[str]:
    return [entry["location"]["reference"] for entry in encounter.get("location", [])]


def _room(place: Record) -> str:
    """Return the room of a bed; a room is its own."""
    return str(place["partOf"]["reference"]) if _kind(place) == "bd" else ref(place)


def _kind(place: Record) -> str:
    return str(place["physicalType"]["coding"][0]["code"])


def _answer(
    kind: str, asked: dict[str, str], patient: Record, stays: dict[str, list[_Stay]], everybody: dict[str, Record]
) -> str:
    start, end = (instant(asked[name].replace(" ", "T") + ":00Z") for name in ("start", "end"))
    shared = {
        other: _shared(stays.get(ref(patient), []), stays[other], start, end)
        for other in stays
        if other != ref(patient)
    }
    if kind == "longest":
        longest = max(shared.values(), default=0)
        return str(longest) if longest else _NO_CONTACT
    contacts = [other for other, number in shared.items() if number >= int(asked["least"])]
    if not contacts:
        return _NO_CONTACT
    return str(len(contacts)) if kind == "number" else ", ".join(full_names(everybody[it])[0] for it in contacts)


def _shared(ours: list[_Stay], theirs: list[_Stay], start: datetime, end: datetime) -> int:
    """Return the number of minutes in which both have a stay in the same room."""
    together = set()
    for room, begin, until in ours:
        for other_room, other_begin, other_until in theirs:
            if room == other_room:
                moment = max(start, begin, other_begin)
                while moment < min(end, until, other_until):
                    together.add(moment)
                    moment += timedelta(minutes=1)
    return len(together)
