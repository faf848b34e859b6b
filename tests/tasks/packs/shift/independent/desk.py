"""What the independent solvers share: they read a prompt, search with paging, and write in one of two ways."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

Record = dict[str, Any]
Send = Callable[[str], str]
Writing = Literal["patch", "transaction"]
"""How a solver writes.

With ``patch``, it sends a request for each change (JSON Patch) and each new record, and writes only what the rules ask
for. With ``transaction``, it sends one Bundle (PUT and POST) at the end, and adds the details that the rules permit.
"""

NO_PATIENT = "no such patient"
SEVERAL_PATIENTS = "more than one such patient"
_PAGE = 250
_LOCAL = "urn:uuid:"


@dataclass(frozen=True)
class Prompt:
    """The parts of a prompt."""

    now: datetime
    requests: tuple[tuple[str, str], ...]
    rules: str
    policies_at: datetime
    """The time at which policies must be in force: the present, unless a line of the prompt says otherwise."""

    @classmethod
    def of(cls, text: str) -> Prompt:
        head, rules = text.split("\nRules:\n", 1)
        now = instant(find(r"^Present: (\S+?),", head))
        at = re.search(r"^Policies at: (\S+)$", head, re.M)
        requests = tuple(re.findall(r"^([A-Z]+)\. (.+)$", head, re.M))
        return cls(now, requests, rules, instant(at[1]) if at else now)

    @property
    def today(self) -> str:
        return f"{self.now:%Y-%m-%d}"


def find(pattern: str, text: str) -> str:
    """Return the first group of a pattern that a text must contain; an empty text if the group did not match."""
    match = re.search(pattern, text, re.M)
    if match is None:
        raise ValueError(f"{pattern!r} is not in the text")
    return match[1] or ""


def first_match(patterns: Iterable[tuple[str, str]], text: str) -> tuple[str, dict[str, str]]:
    """Return the name of the first pattern that matches the whole text, and the named groups."""
    for name, pattern in patterns:
        match = re.fullmatch(pattern, text)
        if match:
            return name, match.groupdict()
    raise ValueError(f"not understood: {text!r}")


@dataclass
class Desk:
    """A client of the FHIR server. Its copies of the records change as it writes."""

    send: Send
    writing: Writing = "transaction"
    records: dict[str, Record] = field(default_factory=dict)
    _changed: dict[str, Record] = field(default_factory=dict)
    _new: list[Record] = field(default_factory=list)

    def call(self, action: str) -> Record:
        line, _, body = self.send(action).partition("\n")
        if not line.startswith("HTTP 2"):
            raise RuntimeError(f"{action[:300]!r}: {line} {body[:500]}")
        return json.loads(body) if body else {}

    def search(self, query: str) -> list[Record]:
        """Return all records that match, over all pages, in the state that this solver gave them."""
        found, url = [], f"{query}{'&' if '?' in query else '?'}_count={_PAGE}"
        while url:
            page = self.call(f"GET {url}")
            found += [entry["resource"] for entry in page.get("entry", [])]
            url = next((link["url"] for link in page.get("link", []) if link["relation"] == "next"), "")
        for record in found:
            self.records.setdefault(ref(record), record)
        return [self.records[ref(record)] for record in found]

    def search_for(self, query: str, ids: Iterable[str], chunk: int = 150) -> list[Record]:
        """Search with a list of ids (or of other values) after the query, in as few requests as possible."""
        known = sorted(set(ids))
        return [
            record
            for at in range(0, len(known), chunk)
            for record in self.search(query + ",".join(known[at : at + chunk]))
        ]

    def optional(self, **elements: Any) -> Record:
        """Return elements that the rules permit if this solver adds such elements, and otherwise nothing."""
        return elements if self.writing == "transaction" else {}

    def change(self, record: Record, **elements: Any) -> None:
        """Change elements of a record: now, or at the end in a transaction."""
        if self.writing == "patch":
            steps = [
                {"op": "replace" if name in record else "add", "path": f"/{name}", "value": value}
                for name, value in elements.items()
            ]
            self.call(f"PATCH {ref(record)}\n{json.dumps(steps)}")
        else:
            self._changed[ref(record)] = record
        record.update(elements)

    def create(self, record: Record) -> None:
        """Create a record: now, or at the end in a transaction. Its id is the server's, or a local URN until then."""
        if self.writing == "patch":
            record["id"] = self.call(f"POST {record['resourceType']}\n{json.dumps(record)}")["id"]
        else:
            self._new.append(record)
            record["id"] = f"{_LOCAL}00000000-0000-4000-8000-{len(self._new):012d}"

    def commit(self) -> None:
        """Send the transaction with all changes and new records."""
        entries = [_put(record) for record in self._changed.values()] + [_post(record) for record in self._new]
        if entries:
            self.call("POST /\n" + json.dumps({"resourceType": "Bundle", "type": "transaction", "entry": entries}))
        self._changed, self._new = {}, []


def _put(record: Record) -> Record:
    return {"resource": record, "request": {"method": "PUT", "url": ref(record)}}


def _post(record: Record) -> Record:
    body = {name: value for name, value in record.items() if name != "id"}
    return {"fullUrl": ref(record), "resource": body, "request": {"method": "POST", "url": record["resourceType"]}}


def finish(outcomes: Sequence[tuple[str, str]]) -> str:
    """Return the FINISH action for letters and outcomes."""
    return f"FINISH({json.dumps([f'{letter}: {outcome}' for letter, outcome in outcomes], ensure_ascii=False)})"


def ref(record: Record) -> str:
    """Return a reference to a record."""
    identifier = str(record["id"])
    return identifier if identifier.startswith(_LOCAL) else f"{record['resourceType']}/{identifier}"


def refers(reference: Record | None, *targets: Record) -> bool:
    return (reference or {}).get("reference") in {ref(target) for target in targets}


def instant(text: str) -> datetime:
    """Return a FHIR date, dateTime or instant as a time in UTC."""
    if len(text) == len("2023-11-13"):
        text += "T00:00:00Z"
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC)


def day(text: str) -> str:
    """Return the UTC day of a FHIR date or time."""
    return text if len(text) <= len("2023-11-13") else f"{instant(text):%Y-%m-%d}"


def days_before(day_text: str, number: int) -> str:
    return f"{instant(day_text) - timedelta(days=number):%Y-%m-%d}"


def minutes(start: datetime, end: datetime) -> float:
    return (end - start) / timedelta(minutes=1)


def full_names(person: Record) -> list[str]:
    """Return given name and family name for each name of a person."""
    return [f"{' '.join(name.get('given', []))} {name.get('family', '')}" for name in person.get("name", [])]


def codes(concept: Record | None) -> set[str]:
    return {coding["code"] for coding in (concept or {}).get("coding", []) if "code" in coding}


def code(concept: Record | None) -> str:
    """Return the only code of a status such as clinicalStatus; an empty text without one."""
    return next(iter(codes(concept)), "")


class Patients:
    """The patients with certain family names, found by full name and date of birth."""

    def __init__(self, desk: Desk, names: Iterable[str]) -> None:
        self.all = desk.search_for("Patient?family:exact=", (name.partition(" ")[2] for name in names))

    def find(self, name: str, born: str) -> list[Record]:
        return [it for it in self.all if it.get("birthDate") == born and name in full_names(it)]

    def ids(self, people: Iterable[tuple[str, str]]) -> list[str]:
        """Return the ids of those who are the only one of their name and date of birth."""
        found = [self.find(*person) for person in people]
        return sorted({match[0]["id"] for match in found if len(match) == 1})


def who(found: Sequence[Record]) -> str:
    """Return the outcome if there is not exactly one patient, and otherwise an empty text."""
    return "" if len(found) == 1 else SEVERAL_PATIENTS if found else NO_PATIENT
