"""Subjects of policies, and the sentences that fill their texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Rule:
    """A sentence of a policy that settles one point.

    Attributes:
        name: Short name of the point, unique in the subject.
        sentence: The sentence; ``{value}`` stands for the drawn value.
        values: The values that can be drawn; empty if the sentence has no value and is the same in all policies.
    """

    name: str
    sentence: str
    values: tuple[str, ...] = ()

    def with_value(self, value: str) -> str:
        """Return the sentence with a value."""
        return self.sentence.replace("{value}", value)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        values = "|".join(re.escape(value) for value in sorted(self.values, key=len, reverse=True))
        return re.compile(f"({values})".join(re.escape(part) for part in self.sentence.split("{value}")))

    def find(self, text: str) -> str | None:
        """Return the value of the sentence in a text, empty for a sentence without a value; None if it is not there."""
        match = self._pattern.search(text)
        return None if match is None else match[1] if self.values else ""


@dataclass(frozen=True)
class Subject:
    """A subject of policies.

    Attributes:
        code: Code of the category.
        title: Title of the policies.
        rules: The points that the policies settle.
    """

    code: str
    title: str
    rules: tuple[Rule, ...]


def _subject(code: str, title: str, rules: Mapping[str, str]) -> Subject:
    """Return a subject; the keys of the rules are sentences, the values the possible values, separated by bars."""
    points = (
        Rule(name=f"{code}-{number}", sentence=sentence, values=tuple(values.split("|")))
        for number, (sentence, values) in enumerate(rules.items(), 1)
    )
    return Subject(code, title, tuple(points))


FILLERS = (
    _subject(
        "visiting",
        "Visiting hours",
        {
            "Visitors are welcome until {value} in the evening.": "18:00|19:00|19:30|20:00|20:30",
            "At most {value} visitors may be with a patient at the same time.": "2|3|4|5",
            "Children under {value} years visit together with an adult.": "10|12|14|16",
        },
    ),
    _subject(
        "parking",
        "Parking",
        {
            "Staff of the early shift park on level {value}.": "1|2|3|4",
            "A visitor's ticket costs at most {value} dollars a day.": "6|8|10|12|15",
            "A lost parking card costs {value} dollars.": "20|25|30|40",
        },
    ),
    _subject(
        "hand-hygiene",
        "Hand hygiene",
        {
            "Rub the disinfectant into dry hands for at least {value} seconds.": "20|30|40|45",
            "Each unit has its consumption of disinfectant counted every {value} weeks.": "4|6|8|12",
            "Observers watch {value} opportunities per unit and quarter.": "50|80|100|150|200",
        },
    ),
    _subject(
        "waste",
        "Waste and sharps",
        {
            "A sharps container is closed when it is filled to {value} per cent.": "66|70|75|80",
            "Open containers are exchanged after {value} days at the latest.": "3|5|7|14",
            "Yellow bags weigh at most {value} kilograms.": "6|8|10|12",
        },
    ),
    _subject(
        "fire",
        "Fire safety",
        {
            "Each unit holds a fire drill every {value} months.": "6|9|12|18",
            "The internal emergency number for fire is {value}.": "2222|3333|4444|5112",
            "A portable heater must stand {value} metres from curtains and beds.": "1|1.5|2|3",
        },
    ),
    _subject(
        "keys",
        "Keys and access cards",
        {
            "A lost access card must be reported within {value} hours.": "1|2|4|8|12",
            "A temporary card is valid for {value} days.": "1|3|5|7|10",
            "Cards that nobody has used for {value} weeks are blocked.": "6|8|12|26",
        },
    ),
    _subject(
        "clothing",
        "Work clothing",
        {
            "Each member of the staff receives {value} sets of work clothing.": "4|5|6|7|8",
            "Work clothing is changed at least every {value} days.": "1|2|3",
            "Used clothing that is not returned after {value} weeks is charged.": "4|6|8|10",
        },
    ),
    _subject(
        "interpreters",
        "Interpreters",
        {
            "An interpreter on site is ordered at least {value} working days ahead.": "1|2|3|4|5",
            "The telephone service is available until {value}.": "18:00|20:00|21:00|22:00",
            "An assignment that is cancelled less than {value} hours ahead is paid in full.": "6|12|24|48",
        },
    ),
    _subject(
        "complaints",
        "Complaints",
        {
            "The complaints office confirms receipt within {value} working days.": "2|3|5|7",
            "A written answer follows within {value} days.": "14|21|28|30|42",
            "Letters are kept for {value} years.": "3|5|7|10",
        },
    ),
    _subject(
        "meals",
        "Meals and diets",
        {
            "Orders for lunch close at {value}.": "08:30|09:00|09:30|10:00|10:30",
            "Warm meals leave the kitchen at {value} degrees Celsius or more.": "65|68|70|75",
            "Each unit keeps {value} spare meals for late admissions.": "1|2|3|4",
        },
    ),
    _subject(
        "linen",
        "Linen",
        {
            "Bed linen is changed every {value} days unless it is soiled.": "2|3|4|5|7",
            "The linen room is open until {value}.": "14:00|15:00|16:00|17:30",
            "Each bed has {value} sets of linen in circulation.": "3|4|5|6",
        },
    ),
    _subject(
        "valuables",
        "Patients' valuables",
        {
            "Cash above {value} dollars goes into the safe.": "50|100|150|200|300",
            "Lost property is kept for {value} weeks.": "4|8|12|26",
            "The cashier hands valuables out until {value}.": "15:00|16:00|16:30|18:00",
        },
    ),
    _subject(
        "photography",
        "Photography and filming",
        {
            "The press office needs {value} working days to decide about a request to film.": "2|3|5|10",
            "Clinical pictures are deleted from cameras within {value} hours.": "4|8|12|24",
            "Film crews have at most {value} members.": "3|4|5|6",
        },
    ),
    _subject(
        "refrigerators",
        "Medicine refrigerators",
        {
            "The temperature of each refrigerator is read {value} times a day.": "1|2|3|4",
            "A refrigerator that is above 8 degrees for {value} minutes is emptied.": "15|20|30|45|60",
            "Refrigerators are defrosted every {value} weeks.": "4|6|8|12",
        },
    ),
    _subject(
        "transport",
        "Transport of samples",
        {
            "The courier collects samples every {value} minutes.": "20|30|45|60|90",
            "Samples that wait longer than {value} hours are centrifuged on the unit.": "1|2|3|4",
            "The pneumatic tube takes at most {value} grams.": "500|750|1000|1500",
        },
    ),
    _subject(
        "cleaning",
        "Cleaning of rooms",
        {
            "A room is cleaned within {value} minutes of a discharge.": "30|45|60|90",
            "Curtains between beds are washed every {value} months.": "2|3|4|6",
            "A disinfected surface stays wet for {value} minutes.": "1|2|5|10",
        },
    ),
    _subject(
        "training",
        "Mandatory training",
        {
            "Resuscitation training is repeated every {value} months.": "12|18|24|36",
            "A course has at most {value} participants.": "8|10|12|16|20",
            "New staff complete the online modules within {value} weeks.": "2|4|6|8",
        },
    ),
    _subject(
        "travel",
        "Travel expenses",
        {
            "Expenses are claimed within {value} days of the journey.": "30|45|60|90",
            "The hospital pays {value} cents per mile for a private car.": "38|45|52|58|65",
            "A hotel may cost up to {value} dollars a night.": "110|130|150|180",
        },
    ),
    _subject(
        "passwords",
        "Passwords",
        {
            "A password has at least {value} characters.": "10|12|14|16",
            "An account is locked after {value} failed attempts.": "3|5|6|8|10",
            "A screen locks itself after {value} minutes without input.": "3|5|10|15",
        },
    ),
    _subject(
        "records",
        "Copies of records",
        {
            "A patient receives copies of the record within {value} days.": "7|10|14|21|30",
            "The first {value} pages are free of charge.": "20|30|50|100",
            "Paper charts are sent to the archive {value} months after the last visit.": "6|12|18|24",
        },
    ),
    _subject(
        "students",
        "Medical students",
        {
            "A supervisor looks after at most {value} students.": "1|2|3|4",
            "Students register {value} weeks before their first day.": "3|4|6|8",
            "A report on each student is due within {value} days of the last day.": "5|7|10|14",
        },
    ),
    _subject(
        "volunteers",
        "Volunteers",
        {
            "Volunteers work at most {value} hours a week.": "6|8|10|12|15",
            "The minimum age of volunteers is {value}.": "16|17|18|21",
            "The introduction takes {value} hours.": "2|3|4|6",
        },
    ),
    _subject(
        "equipment",
        "Medical equipment",
        {
            "Infusion pumps are checked every {value} months.": "6|12|18|24",
            "A defective device is reported within {value} hours.": "2|4|8|24",
            "Loan devices are returned after {value} days.": "3|7|10|14",
        },
    ),
    _subject(
        "telephones",
        "Telephones and pagers",
        {
            "A pager is answered within {value} minutes.": "3|5|8|10",
            "Calls are forwarded to the switchboard after {value} rings.": "4|5|6|8",
            "A lost telephone costs the unit {value} dollars.": "80|120|150|200",
        },
    ),
)
"""Subjects that no request needs."""

BACKGROUND = (
    "The aim is that colleagues decide alike, whoever is on duty, and that patients can rely on what they are told.",
    "This document applies to permanent and temporary staff, and to contractors who work under our supervision.",
    "Heads of unit make sure that everybody in the unit knows this document and can find it without help.",
    "Questions about this document go to the office that issued it; please do not annotate printed copies.",
    "Printed copies are for information only. Look up the electronic document before you rely on a number.",
    "Where this document and a general habit of the unit differ, the document applies.",
    "Whoever notices an error or a gap tells the issuing office, which answers within a working week.",
    "The content was agreed with the medical director, the head of nursing and the staff council.",
    "The numbers were chosen after a review of last year's figures and a comparison with neighbouring hospitals.",
    "Two audits have shown that short and plain rules are followed more often than long ones.",
    "The quality office counts deviations once a year and reports them to the units, without names.",
    "A short summary hangs in the staff rooms. It does not replace this document.",
    "New staff sign during their first week that they have read the documents that concern their work.",
    "Times of day are given for the time zone that the clinical systems use.",
    "The document is reviewed at regular intervals, and earlier if the law or the way of working changes.",
    "Managers may be stricter in their own area only by a document of their own that has passed the same approval.",
    "Staff who follow this document in good faith are supported if a decision is questioned later.",
    "Patients may ask to see this document. Hand out a copy, and explain it in plain words.",
    "Colleagues on leave are informed on their first day back by their head of unit.",
    "The intranet page of the issuing office answers frequent questions with worked examples.",
    "Good manners come first: explain a rule before you apply it, and offer an alternative where there is one.",
    "Records of decisions under this document are kept with the other papers of the unit.",
)
"""Sentences of policies that settle nothing."""

REASONS = (
    "The staff council and the heads of unit asked for this change.",
    "Experience of the past months has shown that the earlier arrangement does not work well.",
    "The change follows a decision of the executive board.",
    "Feedback from patients is the reason for this change.",
    "The change was agreed after an audit of the units.",
    "Staffing has changed, and the arrangement has to follow.",
)
"""Sentences of amendments that settle nothing."""
