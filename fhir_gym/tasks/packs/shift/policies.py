"""A library of policies on the server: documents whose sentences decide requests, and the rules for their validity.

A kind of request declares a `Subject` with rules. `policy_drawing.draw_library` draws its documents: one policy of the
whole hospital, which settles all points, and policies of some departments, which settle some points differently. The
library also contains earlier versions, drafts, versions and amendments that are not yet in force, and errors. Most of
these have other values. For a department and a moment, each point is decided in exactly one valid place.

- The scene has the `Library`; `Library.values` returns what is valid, for `choose` and `judge`.
- `policy_resources` builds the documents on the server.
- `validity_rules` tells agents in the prompt how to find the valid documents.
- `read_library` reads the same `Library` through the API, for `solve`. `Library.values` takes the moment as an
  argument, so only documents that are added later have to be read again.
"""

from __future__ import annotations

import html
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import NamedTuple

from fhir_gym.actions import Action
from fhir_gym.tasks import Params
from fhir_gym.tasks.authoring import Concept, codings, instant, parse_instant, reference
from fhir_gym.tasks.packs.shift.kind import Knowledge
from fhir_gym.tasks.packs.shift.lookups import search_all
from fhir_gym.tasks.packs.shift.policy_texts import FILLERS, Subject
from fhir_gym.types import Json, Resource

POLICY_TIME = "policy time"
"""Key of the instant at which policies must be in force, in the values that solutions receive."""

POLICY = Concept(system="http://example.org/document-types", code="policy", display="Policy")
_SUBJECTS = "http://example.org/policy-subjects"
_INTRANET = "https://intranet.example.org/policies"
_PARAGRAPH = re.compile(r"<p>(.*?)</p>", re.DOTALL)
_IN_FORCE = re.compile(r"In force from (\d{4}-\d\d-\d\d) (\d\d:\d\d) \(UTC\)")


class PolicyDocument(Params):
    """A version of a policy, or an amendment.

    Attributes:
        number: Number of the document (``POL-0417/3``).
        subject: Code of the subject.
        department: The department; None for the whole hospital.
        doc_status: Status of the text.
        issued: When the document was issued (instant).
        in_force: The document is not in force before this moment (instant).
        replaces: Id of the document that this one replaces, or an empty text.
        amends: Id of the document that this one amends, or an empty text.
        values: The values of the points that the document settles.
        text: The text; each line is a paragraph.
    """

    id: str
    number: str
    subject: str
    title: str
    department: Concept | None
    status: str
    doc_status: str
    issued: str
    in_force: str
    replaces: str = ""
    amends: str = ""
    values: dict[str, str]
    text: str

    def is_in_force(self, moment: str) -> bool:
        """Whether the document is in force at a moment; another document may still replace it."""
        return self.status == "current" and self.doc_status == "final" and self.in_force <= moment

    @property
    def department_code(self) -> str:
        """The code of the department; empty for the whole hospital."""
        return self.department.code if self.department else ""


class ValidValue(NamedTuple):
    """What a valid document says about a point."""

    value: str
    document: str


class Library(Params):
    """The policies of a hospital.

    Attributes:
        documents: The documents in no particular order.
    """

    documents: tuple[PolicyDocument, ...]

    def decisions(self, subject: str, department: str, now: datetime) -> Mapping[str, ValidValue]:
        """Return the valid value of each point, and the id of the document that settles it."""
        key = subject, department, instant(now)
        if key not in self._decided:
            self._decided[key] = self._decide(*key)
        return self._decided[key]

    @cached_property
    def _decided(self) -> dict[tuple[str, str, str], dict[str, ValidValue]]:
        return {}

    def _decide(self, subject: str, department: str, moment: str) -> dict[str, ValidValue]:
        valid = self._valid(subject, moment)
        decided: dict[str, ValidValue] = {}
        for owner in ("", department):
            policies = [document for document in valid if not document.amends and document.department_code == owner]
            ids = {policy.id for policy in policies}
            amendments = sorted(
                (document for document in valid if document.amends in ids), key=lambda document: document.in_force
            )
            for policy in (*policies, *amendments):
                decided |= {name: ValidValue(value, policy.id) for name, value in policy.values.items()}
        return decided

    def values(self, subject: str, department: str, now: datetime) -> dict[str, str]:
        """Return the valid value of each point; see `decisions`."""
        return {name: decision.value for name, decision in self.decisions(subject, department, now).items()}

    def department_code(self, display: str) -> str:
        """Return the code of a department; empty if it has no policies of its own."""
        owners = (document.department for document in self.documents if document.department)
        return next((owner.code for owner in owners if owner.display == display), "")

    def coming(self, now: datetime) -> list[datetime]:
        """Return the moments after the present at which final documents come into force."""
        moments = {document.in_force for document in self.documents if document.is_in_force(document.in_force)}
        return [parse_instant(moment) for moment in sorted(moments) if moment > instant(now)]

    def after(self, time: timedelta) -> Library:
        """Return a library that has at each moment the values that this one has some time later."""
        documents = (
            document.model_copy(update={"in_force": instant(parse_instant(document.in_force) - time)})
            for document in self.documents
        )
        return Library(documents=tuple(documents))

    def _valid(self, subject: str, moment: str) -> list[PolicyDocument]:
        in_force = [
            document for document in self.documents if document.subject == subject and document.is_in_force(moment)
        ]
        replaced = {document.replaces for document in in_force}
        return [document for document in in_force if document.id not in replaced]

    def documents_for(self, subject: str, department: str, now: datetime, points: Iterable[str]) -> list[str]:
        """Return references to the valid documents that settle some points; see `decisions`."""
        decisions = self.decisions(subject, department, now)
        return [f"DocumentReference/{decisions[point].document}" for point in points]

    def misreadings(self, now: datetime) -> dict[str, Library]:
        """Return the library itself with an empty name, and as an agent with each of `MISREADINGS` reads it."""
        return {"": self} | {mistake: self.misread(mistake, now) for mistake in MISREADINGS}

    def misread(self, mistake: str, now: datetime) -> Library:
        """Return a library that has, by the rules, the values that an agent with one of `MISREADINGS` finds."""
        documents = self.documents
        if mistake == AMENDMENTS_IGNORED:
            documents = tuple(document for document in documents if not document.amends)
        elif mistake == DEPARTMENTS_IGNORED:
            documents = tuple(document for document in documents if document.department is None)
        elif mistake == SUPERSEDED_VERSIONS:
            documents = tuple(_counting(document, document.in_force) for document in documents if not document.replaces)
        elif mistake == EVERYTHING_COUNTS:
            moment = instant(now)
            documents = tuple(_counting(document, min(document.in_force, moment)) for document in documents)
        return Library(documents=documents)


AMENDMENTS_IGNORED = "amendments ignored"
DEPARTMENTS_IGNORED = "departments ignored"
SUPERSEDED_VERSIONS = "superseded versions"
EVERYTHING_COUNTS = "everything counts"
MISREADINGS = (AMENDMENTS_IGNORED, DEPARTMENTS_IGNORED, SUPERSEDED_VERSIONS, EVERYTHING_COUNTS)
"""Mistakes of agents that misread a library: they ignore amendments, ignore departments, read the oldest versions, or
take drafts, errors and documents that are not yet in force for valid ones."""


def _counting(document: PolicyDocument, in_force: str) -> PolicyDocument:
    return document.model_copy(update={"status": "current", "doc_status": "final", "in_force": in_force})


def category(subject: Subject) -> Concept:
    """Return the category of the policies about a subject."""
    return Concept(system=_SUBJECTS, code=subject.code, display=subject.title)


def policy_resources(library: Library, subjects: Sequence[Subject]) -> list[Resource]:
    """Build the DocumentReferences of a library.

    Args:
        library: The library.
        subjects: The subjects of its documents; those of `FILLERS` may be left out.
    """
    categories = {filler.code: category(filler) for filler in (*FILLERS, *subjects)}
    return [_resource(document, categories[document.subject]) for document in library.documents]


def _resource(document: PolicyDocument, category: Concept) -> Resource:
    links = {"replaces": document.replaces, "appends": document.amends}
    relates: list[Json] = [
        {"code": code, "target": reference("DocumentReference", id)} for code, id in links.items() if id
    ]
    attachment = {
        "contentType": "text/plain; charset=utf-8",
        "language": "en",
        "url": f"{_INTRANET}/{document.number.replace('/', '-')}.txt",
        "title": document.title,
        "creation": document.issued,
    }
    resource: Resource = {
        "resourceType": "DocumentReference",
        "id": document.id,
        "text": {"status": "generated", "div": _narrative(document.text)},
        "identifier": [{"value": document.number}],
        "status": document.status,
        "docStatus": document.doc_status,
        "type": POLICY.concept,
        "category": [category.concept],
        "date": document.issued,
    }
    if relates:
        resource["relatesTo"] = relates
    resource |= {"description": document.title, "content": [{"attachment": attachment}]}
    if document.department:
        resource["context"] = {"practiceSetting": document.department.concept}
    return resource


def _narrative(text: str) -> str:
    paragraphs = "".join(f"<p>{html.escape(line, quote=False)}</p>" for line in text.splitlines())
    return f'<div xmlns="http://www.w3.org/1999/xhtml">{paragraphs}</div>'


def narrative_text(resource: Resource) -> str:
    """Return the text of a resource's narrative; each paragraph is a line."""
    return "\n".join(html.unescape(div) for div in _PARAGRAPH.findall(resource["text"]["div"]))


def validity_rules(subjects: Sequence[Subject]) -> str:
    """Return rules for prompts: where the policies are, and how to tell which of them is valid."""
    names = ", ".join(f"{subject.title} (code {subject.code})" for subject in subjects)
    several = "one of these categories, or another category that the text of such a policy names"
    where = "this category" if len(subjects) == 1 else several
    return (
        f"- The values that decide are in the hospital's policies: DocumentReferences with type {POLICY.code} and "
        f"{where}: {names}. The text of a policy is its narrative (text.div). A policy with a "
        "context.practiceSetting is for that department, a policy without one for the whole hospital. A policy amends "
        "another if it refers to it with relatesTo.code appends.\n"
        '- A policy is in force if its status is current, its docStatus is final, and the time after "In force from" '
        "in its text is not in the future. It is valid if it is in force and no policy that is in force replaces "
        "it (relatesTo.code replaces). An amendment is valid only if the policy that it amends is valid, too.\n"
        "- A point is one thing that policies settle, such as a number of days or the rules for a subject. Each point "
        "is decided by the department's valid policy and its valid amendments if one of them mentions the point, and "
        "otherwise by the whole hospital's valid policy and its valid amendments. An amendment goes before the policy "
        "that it amends; of several amendments about one point, the one that came into force last decides."
    )


def policy_time(knowledge: Knowledge) -> datetime:
    """Return the moment at which policies must be in force."""
    values = knowledge.rule_values
    return parse_instant(values[POLICY_TIME]) if POLICY_TIME in values else knowledge.now


def library_about(subject: Subject, knowledge: Knowledge) -> Generator[Action, Json, Library]:
    """Return the policies about a subject; look them up if no earlier solution has."""
    if subject.code not in knowledge.looked_up:
        knowledge.looked_up[subject.code] = yield from read_library((subject,))
    library: Library = knowledge.looked_up[subject.code]
    return library


def read_library(subjects: Sequence[Subject]) -> Generator[Action, Json, Library]:
    """Search for the policies about some subjects, and parse them."""
    documents: list[PolicyDocument] = []
    for subject in subjects:
        query = {"type": POLICY.token, "category": category(subject).token, "_count": "200"}
        documents += [
            _parse(document_reference, subject)
            for document_reference in (yield from search_all("/DocumentReference", query))
        ]
    return Library(documents=tuple(documents))


def _parse(resource: Resource, subject: Subject) -> PolicyDocument:
    text = narrative_text(resource)
    relates = {
        relation["code"]: relation["target"]["reference"].rpartition("/")[2]
        for relation in resource.get("relatesTo", [])
    }
    departments = codings(resource.get("context", {}).get("practiceSetting"))
    stated = _IN_FORCE.search(text)
    assert stated is not None
    values = {rule.name: rule.find(text) for rule in subject.rules}
    return PolicyDocument(
        id=resource["id"],
        number=resource["identifier"][0]["value"],
        subject=subject.code,
        title=resource["description"],
        department=Concept(**departments[0]) if departments else None,
        status=resource["status"],
        doc_status=resource["docStatus"],
        issued=resource["date"],
        in_force=instant(parse_instant(f"{stated[1]}T{stated[2]}:00Z")),
        replaces=relates.get("replaces", ""),
        amends=relates.get("appends", ""),
        values={name: value for name, value in values.items() if value is not None},
        text=text,
    )
