"""A solver of the requests to merge duplicate records that knows the prompt and the server's responses only.

It reads everything about a site first, plans all requests, and writes one transaction for each of them.
"""

import re
from collections import defaultdict
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.tasks.packs.shift.shift_requests import Record, path, read_pages, send

CARD = "http://example.org/health-card"
LOOKUPS = (
    *("Appointment?actor", "Condition?subject", "ServiceRequest?subject", "Coverage?beneficiary"),
    "Coverage?subscriber",
)
AT_ONCE = 40


@dataclass(frozen=True)
class MergeHabits:
    """Errors that the solver makes on purpose; the default makes none."""

    ignore_birth_date: bool = False
    ignore_numbers: bool = False
    ignore_names: bool = False
    ignore_active: bool = False
    keep_lowest_id: bool = False
    keep_most_recent: bool = False
    move_everything: bool = False
    move_nothing: bool = False
    no_card_numbers: bool = False
    first_page_only: bool = False
    only_first_request: bool = False
    decline_everything: bool = False


@dataclass
class Wanted:
    """One request of the prompt."""

    letter: str
    site: str
    since: str
    before: str

    @classmethod
    def parse(cls, letter: str, text: str) -> "Wanted":
        """Read a request in any of the wordings."""
        for pattern in (
            r"Some patients of (?P<site>.+?)(?: born .+?)? may be on file more than once\. Please merge .+",
            r"Please look for duplicate records among the patients of (?P<site>.+?)(?: born .+?)?, and merge them\.",
            r"Duplicates: (?P<site>.+?), (?:all patients|patients born .+?)\.",
        ):
            if found := re.fullmatch(pattern, text):
                before, since = re.search(r"born before (\S{10})", text), re.search(r"born on or after (\S{10})", text)
                return cls(letter, found["site"], since[1] if since else "", before[1] if before else "9999")
        raise AssertionError(f"unknown request: {text!r}")


@dataclass
class Files:
    """The records as the solver knows them, with its own changes."""

    today: str
    habits: MergeHabits
    records: dict[str, Record] = field(default_factory=dict)

    def people(self, wanted: Wanted, site: str) -> Iterator[list[Record]]:
        """Yield the records of each person with more than one."""
        left = [
            one
            for one in self.records.values()
            if one["resourceType"] == "Patient"
            and one["managingOrganization"]["reference"] == site
            and wanted.since <= one["birthDate"] < wanted.before
            and (one["active"] or self.habits.ignore_active)
        ]
        marks = {path(one): self._marks(one) for one in left}
        while left:
            found = [left.pop()]
            for known in found:  # grows while it is read
                more = [one for one in left if marks[path(one)] & marks[path(known)]]
                found += more
                left = [one for one in left if one not in more]
            if len(found) > 1:
                yield found

    def _marks(self, patient: Record) -> set[tuple[str, ...]]:
        """Return combinations of name, date of birth and number; records of a person have one in common."""
        names = {" ".join((*one["given"], one["family"])) for one in patient["name"]}
        numbers = {one["value"] for one in patient.get("identifier", []) if one["system"] == CARD}
        for one in patient.get("telecom", []):
            if one["use"] != "old":
                numbers.add(re.sub(r"\D", "", one["value"].removeprefix("+1")))
        born = "" if self.habits.ignore_birth_date else patient["birthDate"]
        return {
            (name, born, number)
            for name in ({""} if self.habits.ignore_names else names)
            for number in ({""} if self.habits.ignore_numbers else numbers)
        }

    def merge(self, person: list[Record]) -> None:
        """Merge the records of a person."""
        person = sorted(person, key=lambda one: str(one["id"]))
        if not self.habits.keep_lowest_id:
            person.sort(key=lambda one: self._latest_visit(one), reverse=True)
            if not self.habits.keep_most_recent:
                person.sort(key=lambda one: not any(c["use"] == "official" for c in cards(one)))
        kept, *others = person
        kept = self.records[path(kept)] = {**kept, "link": [*kept.get("link", [])]}
        for other in others:
            kept["link"].append({"other": {"reference": path(other)}, "type": "replaces"})
            link = {"other": {"reference": path(kept), "display": "kept"}, "type": "replaced-by"}
            self.records[path(other)] = {**other, "active": False, "link": [*other.get("link", []), link]}
            for card in cards(other):
                if card["value"] not in [one["value"] for one in cards(kept)] and not self.habits.no_card_numbers:
                    new = {"use": "secondary", "system": CARD, "value": card["value"]}
                    kept["identifier"] = [*kept.get("identifier", []), new]
            for record in [*self.records.values()]:
                if record["resourceType"] != "Patient" and (self._is_open(record) or self.habits.move_everything):
                    self.records[path(record)] = moved(record, path(other), path(kept))

    def _latest_visit(self, patient: Record) -> str:
        visits = [one for one in self.records.values() if one["resourceType"] == "Appointment"]
        mine = [one["start"] for one in visits if one["status"] == "fulfilled" and path(patient) in str(one)]
        return max(mine, default="")

    def _is_open(self, record: Record) -> bool:
        if self.habits.move_nothing:
            return False
        if record["resourceType"] == "Condition":
            return bool(record["clinicalStatus"]["coding"][0]["code"] == "active")
        statuses = {"Appointment": "booked pending", "ServiceRequest": "active on-hold", "Coverage": "active"}
        still = record.get("period", {}).get("end", "9999") >= self.today
        return still and record["status"] in statuses[record["resourceType"]].split()


def cards(patient: Record) -> list[Record]:
    """Return the health cards of a patient."""
    return [one for one in patient.get("identifier", []) if one["system"] == CARD]


def moved(value: Any, old: str, new: str) -> Any:
    """Return a value in which references to a record refer to another."""
    if isinstance(value, list):
        return [moved(one, old, new) for one in value]
    if isinstance(value, dict):
        return {name: moved(one, old, new) for name, one in value.items()}
    return new if value == old else value


def merge_duplicates(prompt: str, habits: MergeHabits | None = None) -> Generator[str, str, None]:
    """Solve the requests of a prompt."""
    habits = habits or MergeHabits()
    requests = [Wanted.parse(*line) for line in re.findall(r"^([A-Z])\. (.+)$", prompt, re.MULTILINE)]
    present = re.search(r"Present: (\S{10})", prompt)
    assert present
    files, sites = Files(present[1], habits), dict[str, str]()
    for name in dict.fromkeys(one.site for one in requests):
        sites[name] = yield from read_site(name, files)
    outcomes = []
    for number, request in enumerate(requests):
        before = dict(files.records)
        people = [] if habits.decline_everything else [*files.people(request, sites[request.site])]
        for person in people if number == 0 or not habits.only_first_request else []:
            files.merge(person)
        changed = [one for name, one in files.records.items() if one != before[name]]
        if changed:
            entries = [{"resource": one, "request": {"method": "PUT", "url": path(one)}} for one in changed]
            yield from send("POST", "/", {"resourceType": "Bundle", "type": "transaction", "entry": entries})
        outcomes.append(f'"{request.letter}: {"done" if people else "nothing to do"}"')
    yield f"FINISH([{', '.join(outcomes)}])"


def read_site(name: str, files: Files) -> Generator[str, str, str]:
    """Read the patients of a site, and what refers to them; return the reference to the site."""
    places = yield from read_pages("/Organization?_count=200&name=" + name.replace(" ", "%20").replace("'", "%27"))
    site = next(path(one) for one in places if one["name"] == name)
    follow = not files.habits.first_page_only
    count = 200 if follow else 10
    patients = yield from read_pages(f"/Patient?organization={site}&_count={count}", follow=follow)
    files.records |= {path(one): one for one in patients}
    links = defaultdict(list)
    for place, one in enumerate(patients):
        links[place // AT_ONCE].append(path(one))
    for ids in links.values():
        for lookup in LOOKUPS:
            found = yield from read_pages(f"/{lookup}={','.join(ids)}&_count={count}", follow=follow)
            files.records |= {path(one): one for one in found}
    return site
