"""Solver of Q1 (bookings): it reads the whole calendar of the place once, and books in its own copy."""

from __future__ import annotations

from .appointments import Clinic, Wishes
from .desk import Desk, Patients, Prompt, Record, Send, Writing, finish, first_match, who

REQUESTS = [
    ("book", r"(?P<service>.+?): (?P<name>.+), (?P<born>\S+), needs an appointment\.(?P<wishes>.*)"),
    ("book", r"(?P<name>.+), born (?P<born>\S+), would like an appointment in (?P<service>[^.]+)\.(?P<wishes>.*)"),
    (
        "book",
        r"Please find a time in (?P<service>[^.]+?) for (?P<name>.+) \(date of birth (?P<born>\S+)\)\.(?P<wishes>.*)",
    ),
]


def solve(text: str, send: Send, writing: Writing = "transaction") -> str:
    """Return the FINISH action for a prompt."""
    prompt, desk = Prompt.of(text), Desk(send, writing)
    requests = [(letter, first_match(REQUESTS, request)[1]) for letter, request in prompt.requests]
    patients = Patients(desk, {asked["name"] for _, asked in requests})
    clinic = Clinic.read(desk, prompt, patients.ids((asked["name"], asked["born"]) for _, asked in requests))
    outcomes = []
    for letter, asked in requests:
        found = patients.find(asked["name"], asked["born"])
        outcomes.append((letter, who(found) or _handle(clinic, found[0], asked)))
    desk.commit()
    return finish(outcomes)


def _handle(clinic: Clinic, patient: Record, asked: dict[str, str]) -> str:
    if clinic.has_appointment(patient, asked["service"]):
        return "already done"
    slot = clinic.find_slot(patient, asked["service"], Wishes.of(asked["wishes"]).meet)
    if slot is None:
        return "no free time"
    clinic.book(patient, slot)
    return "done"
