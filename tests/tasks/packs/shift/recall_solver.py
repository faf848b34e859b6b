"""A solver of S4 that knows the prompt only: it reads everything first, plans, and writes one transaction.

Flaws make it break one rule each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from fhir_gym import Episode, Step
from fhir_gym.actions import Finish, Get, Post
from fhir_gym.types import Json, Resource
from tests.tasks.packs.shift.playing import answer_of

FLAWS = (
    *("everybody's patients", "inactive patients", "the dead", "any clinical status", "any verification"),
    *("any result", "any laboratory", "empty results", "only the first code", "any date"),
    *("no orders", "orders of any status", "plans count", "orders of any date", "own recalls forgotten"),
    *("no visits", "visits of any status", "visits of any time"),
    *("no consents", "consents of any status", "any purpose", "first consent"),
    *("always routine", "oldest result", "first unit only"),
)

_DAY = r"(?P<since>\d{4}-\d\d-\d\d)"
_REQUESTS = (
    rf"([A-Z])\. Please recall our patients with (?P<condition>.+) who have had no (?P<test>.+) since {_DAY}\.",
    rf"([A-Z])\. Everyone here with (?P<condition>.+) who has had no (?P<test>.+) since {_DAY} needs a recall\.",
    rf"([A-Z])\. Recall for (?P<test>.+): patients with (?P<condition>.+), none since {_DAY}\.",
)
_TEST = re.compile(
    r"  - (?P<name>.+): (?P<first>\S+) in \S+ and (?P<second>\S+) in \S+; "
    r"limit (?P<limit>[\d.]+) \S+ \(\S+\) or (?P<other>[\d.]+) \S+ \(\S+\)"
)
_TYPES = ("Condition", "Observation", "ServiceRequest", "Appointment", "Consent")


@dataclass
class Solver:
    prompt: str
    flaw: str = ""
    people: list[Resource] = field(default_factory=list)
    records: dict[str, list[Resource]] = field(default_factory=dict)
    organizations: dict[str, str] = field(default_factory=dict)
    written: list[Resource] = field(default_factory=list)

    def __post_init__(self) -> None:
        lines = self.prompt.splitlines()
        self.now = datetime.fromisoformat(self.told(r"Present: (\S+),"))
        self.place, self.laboratory = self.told(r"the patients of (.+?): Patients"), self.told(r"and (.+?) \(an Org")
        self.order_days, self.visit_days = (
            timedelta(int(self.told(rf"in the {one} (\d+) days"))) for one in ("last", "next")
        )
        self.codes = {name: code for name, code in re.findall(r"([a-z0-9 ]+?) (\d{6,})[,.]", self.told("codes:(.+)"))}
        self.codes = {name.strip(): code for name, code in self.codes.items()}
        self.tests = {found["name"]: found for line in lines if (found := _TEST.fullmatch(line))}
        self.requests = [f for line in lines for pattern in _REQUESTS if (f := re.fullmatch(pattern, line))]

    def told(self, pattern: str) -> str:
        found: str = re.findall(pattern, self.prompt)[0]
        return found

    def solve(self, episode: Episode) -> Step:
        """Play an episode; `written` then has the recalls, and `answers` the outcomes."""
        for name in (self.place, self.laboratory):
            self.organizations[name] = self.search(episode, f"/Organization?name:exact={name}")[0]["id"]
        place = "" if self.flaw == "everybody's patients" else self.organizations[self.place]
        self.people = self.search(episode, f"/Patient?organization={place}&_count=500" if place else self.all_places())
        who = ",".join(one["id"] for one in self.people)
        queries: list[Json] = [
            {"request": {"method": "GET", "url": f"{one}?patient={who}&_count=1000"}} for one in _TYPES
        ]
        batch = answer_of(episode.step(Post("/", {"resourceType": "Bundle", "type": "batch", "entry": queries})))
        for entry in batch["entry"]:
            assert all(link["relation"] != "next" for link in entry["resource"]["link"])
            for one in (found["resource"] for found in entry["resource"].get("entry", [])):
                actor = (
                    one["participant"][0]["actor"] if "participant" in one else one.get("subject", one.get("patient"))
                )
                self.records.setdefault(actor["reference"].removeprefix("Patient/"), []).append(one)
        self.plan()
        entries: list[Json] = [
            {"resource": one, "request": {"method": "POST", "url": "ServiceRequest"}} for one in self.written
        ]
        if entries:
            episode.step(Post("/", {"resourceType": "Bundle", "type": "transaction", "entry": entries}))
        told = zip(self.requests, self.answers, strict=True)
        return episode.step(Finish([f"{request[1]}: {answer}" for request, answer in told]))

    def all_places(self) -> str:
        return "/Patient?_has:Condition:patient:code=" + ",".join(self.codes.values()) + "&_count=1000"

    def search(self, episode: Episode, url: str) -> list[Resource]:
        bundle = answer_of(episode.step(Get(url.replace(" ", "%20"))))
        return [one["resource"] for one in bundle.get("entry", [])]

    def with_flaw(self, flaw: str) -> Solver:
        """Return what a flawed solver plans after it has read the same records."""
        other = Solver(self.prompt, flaw, self.people, self.records, self.organizations)
        other.plan()
        return other

    def plan(self) -> None:
        """Decide about the requests in order, by the records that were read."""
        self.written, answers = [], {}
        for request in reversed(self.requests) if self.flaw.startswith("last request first") else self.requests:
            recalls = [*self.recalls(request)]
            self.written += recalls
            answers[request[1]] = "done" if recalls else "nothing to do"
        self.answers = [answers[request[1]] for request in self.requests]

    def recalls(self, request: re.Match[str]) -> Iterator[Resource]:
        test, flaw = self.tests[request["test"]], self.flaw
        for person in self.people:
            chart = self.records.get(person["id"], [])
            results = self.results(test, chart)
            taken = [moment(one["effectiveDateTime"]).date().isoformat() for one in results]
            if (
                (person["active"] or flaw == "inactive patients")
                and (flaw == "the dead" or not (person.get("deceasedBoolean") or "deceasedDateTime" in person))
                and any(self.is_ill(self.codes[request["condition"]], one) for one in chart)
                and not any(day >= request["since"] for day in taken if flaw != "any date")
                and not any(self.is_order(test, one) for one in chart)
                and not self.is_ordered(test, person)
                and not any(self.is_visit(one) for one in chart)
                and not self.refuses(chart)
            ):
                urgent = self.urgent(test, results)
                yield self.recall(person, test["first"], self.codes[request["condition"]], urgent)

    def is_ill(self, code: str, one: Resource) -> bool:
        return (
            one["resourceType"] == "Condition"
            and code_of(one["code"]) == code
            and (
                self.flaw == "any clinical status"
                or code_of(one.get("clinicalStatus")) in ("active", "recurrence", "relapse")
            )
            and (self.flaw == "any verification" or code_of(one["verificationStatus"]) == "confirmed")
        )

    def results(self, test: re.Match[str], chart: list[Resource]) -> list[Resource]:
        flaw, codes = (
            self.flaw,
            [test["first"]] if self.flaw == "only the first code" else [test["first"], test["second"]],
        )
        reference = f"Organization/{self.organizations[self.laboratory]}"
        found = [one for one in chart if one["resourceType"] == "Observation" and code_of(one["code"]) in codes]
        found.sort(key=lambda one: moment(one["effectiveDateTime"]))
        return [
            one
            for one in found
            if (one["status"] in ("final", "amended", "corrected") or flaw == "any result")
            and ("valueQuantity" in one or flaw == "empty results")
            and (one["performer"][0]["reference"] == reference or flaw == "any laboratory")
        ]

    def is_order(self, test: re.Match[str], one: Resource) -> bool:
        flaw = self.flaw
        return (
            flaw != "no orders"
            and one["resourceType"] == "ServiceRequest"
            and code_of(one["code"]) in (test["first"], test["second"])
            and (one["status"] in ("active", "on-hold") or flaw == "orders of any status")
            and (one["intent"] == "order" or flaw == "plans count")
            and (moment(one["authoredOn"]) > self.now - self.order_days or flaw == "orders of any date")
        )

    def is_ordered(self, test: re.Match[str], person: Resource) -> bool:
        mine = [one for one in self.written if one["subject"]["reference"] == f"Patient/{person['id']}"]
        forgotten = self.flaw in ("own recalls forgotten", "last request first, twice")
        return not forgotten and any(code_of(one["code"]) == test["first"] for one in mine)

    def is_visit(self, one: Resource) -> bool:
        if one["resourceType"] != "Appointment" or self.flaw == "no visits":
            return False
        soon = self.now < moment(one["start"]) < self.now + self.visit_days
        right = one["status"] in ("booked", "pending") or self.flaw == "visits of any status"
        return right and (soon or self.flaw == "visits of any time")

    def refuses(self, chart: list[Resource]) -> bool:
        flaw = self.flaw
        found = [
            one
            for one in chart
            if one["resourceType"] == "Consent"
            and (one["status"] == "active" or flaw == "consents of any status")
            and (one["provision"]["purpose"][0]["code"] == "CAREMGT" or flaw == "any purpose")
        ]
        found.sort(key=lambda one: moment(one["dateTime"]), reverse=flaw == "first consent")
        return bool(found) and found[-1]["provision"]["type"] == "deny" and flaw != "no consents"

    def urgent(self, test: re.Match[str], results: list[Resource]) -> bool:
        valued = [one for one in results if "valueQuantity" in one]
        if not valued or self.flaw == "always routine":
            return False
        last = valued[0 if self.flaw == "oldest result" else -1]
        first = code_of(last["code"]) == test["first"] or self.flaw == "first unit only"
        return bool(last["valueQuantity"]["value"] > float(test["limit" if first else "other"]))

    def recall(self, person: Resource, test: str, condition: str, urgent: bool) -> Resource:
        made: dict[str, Any] = {
            "resourceType": "ServiceRequest",
            "status": "active",
            "intent": "order",
            "code": {"coding": [{"system": "http://loinc.org", "code": test}]},
            "subject": {"reference": f"Patient/{person['id']}"},
            "authoredOn": self.now.astimezone(UTC).isoformat(),
            "reasonCode": [{"coding": [{"system": "http://snomed.info/sct", "code": condition}]}],
        }
        return {**made, "priority": "urgent" if urgent else "routine"}


def code_of(concept: Json) -> str:
    return str(concept["coding"][0]["code"]) if concept else ""


def moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)
