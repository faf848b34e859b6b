"""Solver of P1 (bookings under policies): Q1, with the limits of the policies as further wishes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta

from .appointments import Clinic, Wishes, length, takes_part
from .desk import Desk, Patients, Prompt, Record, Send, Writing, finish, first_match, instant, who
from .policies import Policies
from .solve_q1 import REQUESTS

_COUNTED = {"booked", "pending", "arrived", "fulfilled"}
_MISSED = r"A patient is not booked by the desk after missing (\d+) (?:appointment or more|or more appointments)\."
_EARLIEST = r"The day of an appointment is at least (\d+) days? after the day on which it is booked\."
_LATEST = r"The day of an appointment is at most (\d+) days? after the day on which it is booked\."
_WEEK = r"A patient has no more than (\d+) appointments? in a week\."
_NEW_DAYS = r"New patients are seen on (\w+)s and (\w+)s only\."
_NEW_LENGTH = r"The slot of a new patient lasts at least (\d+) minutes\."
_OLD_LENGTH = r"The slot of a patient who is not new lasts at most (\d+) minutes\."


@dataclass
class _Limits:
    """What the policies of a department say about a patient."""

    clinic: Clinic
    policies: Policies
    patient: Record
    service: str

    def _appointments(self, *statuses: str) -> list[Record]:
        """Return the patient's appointments at the place."""
        return [
            it
            for it in self.clinic.appointments
            if it["status"] in statuses and takes_part(it, self.patient) and self.clinic.services(it)
        ]

    def _number(self, pattern: str, default: int) -> int:
        found = self.policies.point(self.service, pattern)
        return default if found is None else int(found[0])

    def is_refused(self) -> bool:
        missed = len(self._appointments("noshow"))
        return missed >= self._number(_MISSED, missed + 1)

    def _is_new(self) -> bool:
        past = (it for it in self._appointments("fulfilled") if instant(it["start"]) < self.clinic.now)
        return not any(self.service in self.clinic.services(it) for it in past)

    def meet(self, slot: Record) -> bool:
        start = instant(slot["start"]).date()
        days = (start - self.clinic.now.date()).days
        in_week = sum(_monday(instant(it["start"]).date()) == _monday(start) for it in self._appointments(*_COUNTED))
        return (
            self._number(_EARLIEST, 0) <= days <= self._number(_LATEST, days)
            and in_week + 1 <= self._number(_WEEK, in_week + 1)
            and (self._suits_new(slot) if self._is_new() else length(slot) <= self._number(_OLD_LENGTH, 24 * 60))
        )

    def _suits_new(self, slot: Record) -> bool:
        weekdays = self.policies.point(self.service, _NEW_DAYS)
        suits = weekdays is None or f"{instant(slot['start']):%A}" in weekdays
        return suits and length(slot) >= self._number(_NEW_LENGTH, 0)


def _monday(of: date) -> date:
    return of - timedelta(days=of.weekday())


def solve(text: str, send: Send, writing: Writing = "transaction") -> str:
    """Return the FINISH action for a prompt."""
    prompt, desk = Prompt.of(text), Desk(send, writing)
    requests = [(letter, first_match(REQUESTS, request)[1]) for letter, request in prompt.requests]
    policies = Policies(desk, prompt)
    patients = Patients(desk, {asked["name"] for _, asked in requests})
    clinic = Clinic.read(desk, prompt, patients.ids((asked["name"], asked["born"]) for _, asked in requests))
    slots = {slot["reference"].partition("/")[2] for it in clinic.appointments for slot in it.get("slot", [])}
    desk.search_for("Slot?_id=", slots)
    outcomes = []
    for letter, asked in requests:
        found = patients.find(asked["name"], asked["born"])
        outcomes.append((letter, who(found) or _handle(clinic, policies, found[0], asked)))
    desk.commit()
    return finish(outcomes)


def _handle(clinic: Clinic, policies: Policies, patient: Record, asked: dict[str, str]) -> str:
    service, wishes = asked["service"], Wishes.of(asked["wishes"])
    if clinic.has_appointment(patient, service):
        return "already done"
    limits = _Limits(clinic, policies, patient, service)
    if limits.is_refused():
        return "not allowed"
    slot = clinic.find_slot(patient, service, lambda it, doctor: wishes.meet(it, doctor) and limits.meet(it))
    if slot is None:
        return "no free time"
    clinic.book(patient, slot)
    return "done"
