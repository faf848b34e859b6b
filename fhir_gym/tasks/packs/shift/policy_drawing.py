"""Draws libraries of policies: valid documents, and others that agents could take for valid ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from fhir_gym.tasks.authoring import Concept, IdAllocator, at, instant, parse_instant
from fhir_gym.tasks.packs.shift.policies import Library, PolicyDocument
from fhir_gym.tasks.packs.shift.policy_texts import BACKGROUND, FILLERS, REASONS, Rule, Subject

_DEPARTMENT_RULES = 0.5
"""Probability that a department settles a point itself."""
_OTHER_VALUE = 0.85
"""Probability that a document has another value than the valid documents, if there is one."""
_LEFT_CURRENT = 0.3
"""Probability that the version before the valid one has still the status current."""
_SOON = 0.6
"""Probability that a document comes into force at one of the given moments, if it is not in force yet."""
_AMENDED_POINTS = (0.2, 0.3, 0.4)
"""Shares of the points of a policy that an amendment changes during a live shift."""
_DAY = timedelta(days=1)
_MOST_POLICIES = 900
_HOURS = (0, 6, 8, 12)
_CURRENT, _FINAL, _DRAFT, _SUPERSEDED, _ERROR = "current", "final", "preliminary", "superseded", "entered-in-error"


def draw_library(
    rng: random.Random,
    ids: IdAllocator,
    now: datetime,
    subjects: Sequence[Subject],
    departments: Sequence[Concept],
    total: int,
    *,
    fillers: int = 0,
    soon: Sequence[datetime] = (),
) -> Library:
    """Draw the policies of a hospital.

    Each subject gets at least a policy of the whole hospital and, if its rules have values, policies of one or more
    departments. Then each subject that requests need gets one document of each other kind, as far as the total
    allows. All other documents are distributed at random.

    Args:
        rng: Random generator.
        ids: Allocates ids.
        now: The present.
        subjects: The subjects.
        departments: The departments that may have policies of their own.
        total: Number of documents. If the subjects need more, there are more.
        fillers: Number of further subjects that no request needs.
        soon: Moments after the present. At each of them, an amendment of a valid policy comes into force, and maybe
            other documents. What else is not in force yet comes into force two days after the present or later.
    """
    drawer = _Drawer(rng, ids, now, soon)
    chosen = [*subjects, *rng.sample(FILLERS, fillers)]
    most = max(1, min(len(departments), total // (2 * len(chosen)) - 1))
    for subject in chosen:
        drawer.add_subject(subject, rng.sample(departments, rng.randint(1, most)) if departments else ())
    for moment in soon:
        drawer.add_coming_amendment(rng.choice(subjects), moment)
    for subject in subjects:
        drawer.add_each_kind(subject, total)
    while len(drawer.documents) < total:
        drawer.add_document()
    return Library(documents=tuple(rng.sample([*drawer.documents.values()], len(drawer.documents))))


@dataclass
class _Family:
    """The policies of one department, or of the whole hospital, about one subject.

    Attributes:
        department: The department; None for the whole hospital.
        number: Number of the policy.
        version: Number of the valid version.
        versions: The versions up to the valid version, oldest first.
        amendments: The amendments of all versions.
        values: The valid values.
        has_successor: Whether a version that comes into force later replaces the valid version.
    """

    subject: Subject
    department: Concept | None
    number: str
    version: int
    versions: list[PolicyDocument] = field(default_factory=list)
    amendments: list[PolicyDocument] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    has_successor: bool = False

    @property
    def valid(self) -> PolicyDocument:
        return self.versions[-1]

    @property
    def title(self) -> str:
        return f"{self.subject.title}, {self.department.display}" if self.department else self.subject.title


class _Drawer:
    """Draws documents one after the other."""

    def __init__(self, rng: random.Random, ids: IdAllocator, now: datetime, soon: Sequence[datetime]) -> None:
        self._rng, self._ids, self._now, self._soon = rng, ids, now, soon
        self._families: list[_Family] = []
        self._titles: list[str] = []
        self._numbers = rng.sample(range(1000, 10_000), _MOST_POLICIES)
        self.documents: dict[str, PolicyDocument] = {}
        self._extras: tuple[tuple[Callable[[_Family], PolicyDocument | None], int], ...] = (
            (self._earlier_version, 3),
            (self._amendment_in_force, 4),
            (self._next_version, 2),
            (self._pending_amendment, 2),
            (self._old_amendment, 1),
        )

    def add_subject(self, subject: Subject, departments: Sequence[Concept]) -> None:
        """Add the valid policies about a subject."""
        rng = self._rng
        self._titles.append(subject.title)
        with_values = [rule for rule in subject.rules if rule.values]
        for department in (None, *departments) if with_values else (None,):
            family = _Family(subject, department, f"POL-{self._numbers.pop()}", rng.randint(2, 9))
            family.values = self._values(family, self._own_rules(family))
            in_force = self._moment(self._now - rng.randint(60, 700) * _DAY)
            document = self._document(family, family.values, _CURRENT, _FINAL, in_force, version=family.version)
            family.versions.append(document)
            self._families.append(family)
            self._add(document)

    def add_coming_amendment(self, subject: Subject, moment: datetime) -> None:
        """Add an amendment of a valid policy about a subject that changes values at a moment after the present."""
        rng = self._rng
        family = rng.choice([family for family in self._families if family.subject is subject])
        points = [rule for rule in subject.rules if rule.values and rule.name in family.values]
        chosen = rng.sample(points, max(1, round(len(points) * rng.choice(_AMENDED_POINTS))))
        values = {
            rule.name: rng.choice([new for new in rule.values if new != family.values[rule.name]]) for rule in chosen
        }
        self._add(self._amending(family, family.valid, values, _CURRENT, _FINAL, instant(moment)))

    def add_each_kind(self, subject: Subject, total: int) -> None:
        """Add a document of each kind to the policies about a subject, up to a total number of documents."""
        families = [family for family in self._families if family.subject is subject]
        for draw, _ in self._rng.sample(self._extras, len(self._extras)):
            if len(self.documents) < total:
                self._add(draw(self._rng.choice(families)))

    def add_document(self) -> None:
        """Add a document of a random kind to the policies about a random subject."""
        draws, weights = zip(*self._extras, strict=True)
        draw = self._rng.choices(draws, weights)[0]
        self._add(draw(self._rng.choice(self._families)))

    def _add(self, document: PolicyDocument | None) -> None:
        if document is not None:
            self.documents[document.id] = document

    def _earlier_version(self, family: _Family) -> PolicyDocument | None:
        """Draw the version before the oldest one; None if the oldest is the first."""
        rng, oldest = self._rng, family.versions[0]
        version = family.version - len(family.versions)
        if version < 1:
            return None
        forgotten = oldest is family.valid and rng.random() < _LEFT_CURRENT
        status = _CURRENT if forgotten else _SUPERSEDED
        in_force = self._moment(parse_instant(oldest.in_force) - rng.randint(90, 700) * _DAY)
        values = self._values(family, self._own_rules(family))
        document = self._document(family, values, status, _FINAL, in_force, version=version)
        replacing = oldest.model_copy(update={"replaces": document.id})
        self.documents[oldest.id] = family.versions[0] = replacing
        family.versions.insert(0, document)
        return document

    def _next_version(self, family: _Family) -> PolicyDocument | None:
        """Draw a later version that is not in force; None if a second such version would come into force."""
        status, doc_status, in_force = self._not_in_force(family)
        comes = (status, doc_status) == (_CURRENT, _FINAL)
        if comes and family.has_successor:
            return None
        family.has_successor |= comes
        values = self._values(family, self._own_rules(family))
        document = self._document(family, values, status, doc_status, in_force, version=family.version + 1)
        return document.model_copy(update={"replaces": family.valid.id})

    def _amendment_in_force(self, family: _Family) -> PolicyDocument | None:
        """Draw an amendment of the valid version; None for a policy without values."""
        in_force = self._between(family.valid.in_force, instant(self._now - _DAY))
        if any(
            amendment.amends == family.valid.id and amendment.in_force == in_force for amendment in family.amendments
        ):
            return None
        current = self._amendment(family, family.valid, _CURRENT, _FINAL, in_force)
        if current is not None:
            moment = instant(self._now)
            mine = (
                amendment
                for amendment in family.amendments
                if amendment.amends == family.valid.id and amendment.is_in_force(moment)
            )
            for document in sorted(mine, key=lambda amendment: amendment.in_force):
                family.values |= document.values
        return current

    def _pending_amendment(self, family: _Family) -> PolicyDocument | None:
        """Draw an amendment of the valid version that is not in force; None for a policy without values."""
        status, doc_status, in_force = self._not_in_force(family)
        if any(
            amendment.amends == family.valid.id and amendment.in_force == in_force for amendment in family.amendments
        ):
            return None
        return self._amendment(family, family.valid, status, doc_status, in_force)

    def _old_amendment(self, family: _Family) -> PolicyDocument | None:
        """Draw an amendment of a version before the valid version; None if there is no such version."""
        if len(family.versions) == 1:
            return None
        number = self._rng.randrange(len(family.versions) - 1)
        amended, following = family.versions[number : number + 2]
        in_force = self._between(amended.in_force, following.in_force)
        return self._amendment(family, amended, _CURRENT, _FINAL, in_force)

    def _amendment(
        self, family: _Family, amended: PolicyDocument, status: str, doc_status: str, in_force: str
    ) -> PolicyDocument | None:
        points = [rule for rule in family.subject.rules if rule.values and rule.name in amended.values]
        if not points:
            return None
        chosen = self._rng.sample(points, min(len(points), self._rng.choice((1, 1, 2))))
        return self._amending(family, amended, self._values(family, chosen), status, doc_status, in_force)

    def _amending(
        self,
        family: _Family,
        amended: PolicyDocument,
        values: dict[str, str],
        status: str,
        doc_status: str,
        in_force: str,
    ) -> PolicyDocument:
        document = self._document(family, values, status, doc_status, in_force, amended=amended)
        family.amendments.append(document)
        return document

    def _not_in_force(self, family: _Family) -> tuple[str, str, str]:
        """Draw a status, a status of the text and a time in force that together are not in force at the present."""
        rng = self._rng
        past = self._between(family.valid.in_force, instant(self._now - _DAY))
        coming = self._coming()
        return rng.choice(
            ((_CURRENT, _FINAL, coming), (_CURRENT, _DRAFT, rng.choice((past, coming))), (_ERROR, _FINAL, past))
        )

    def _coming(self) -> str:
        if self._soon and self._rng.random() < _SOON:
            return instant(self._rng.choice(self._soon))
        return self._moment(self._now + self._rng.randint(2, 60) * _DAY)

    def _between(self, first: str, last: str) -> str:
        """Draw a time between two moments that are some days apart."""
        start = parse_instant(first)
        days = (parse_instant(last) - start).days
        return self._moment(start + self._rng.randint(1, days - 1) * _DAY)

    def _moment(self, near: datetime) -> str:
        """Draw a time of the day of a moment."""
        return instant(at(near.date(), self._rng.choice(_HOURS)))

    def _own_rules(self, family: _Family) -> list[Rule]:
        """Draw the rules that a version contains: all for the whole hospital, some for a department."""
        if family.department is None:
            return [*family.subject.rules]
        points = [rule for rule in family.subject.rules if rule.values]
        return [point for point in points if self._rng.random() < _DEPARTMENT_RULES] or [self._rng.choice(points)]

    def _values(self, family: _Family, rules: Iterable[Rule]) -> dict[str, str]:
        """Draw values, most of them other ones than the valid values of all departments."""
        return {rule.name: self._value(family, rule) if rule.values else "" for rule in rules}

    def _value(self, family: _Family, rule: Rule) -> str:
        if self._rng.random() < _OTHER_VALUE:
            related = [other for other in self._families if other.subject is family.subject]
            for avoided in ((*related, family), (family,)):
                used = {other.values.get(rule.name) for other in avoided}
                left = [value for value in rule.values if value not in used]
                if left:
                    return self._rng.choice(left)
        return self._rng.choice(rule.values)

    def _document(
        self,
        family: _Family,
        values: dict[str, str],
        status: str,
        doc_status: str,
        in_force: str,
        *,
        version: int = 0,
        amended: PolicyDocument | None = None,
    ) -> PolicyDocument:
        earliest = min(parse_instant(in_force), self._now - _DAY)
        if amended is None:
            number, title = f"{family.number}/{version}", family.title
        else:
            earlier = sum(amendment.amends == amended.id for amendment in family.amendments)
            number, title = f"{amended.number}-A{earlier + 1}", f"Amendment to {family.title}"
        sentences = [rule.with_value(values[rule.name]) for rule in family.subject.rules if rule.name in values]
        heading = _heading(number, title, family.department, in_force, amended)
        body = self._changes(sentences, amended) if amended else self._body(family, sentences)
        return PolicyDocument(
            id=self._ids.new("DocumentReference"),
            number=number,
            subject=family.subject.code,
            title=title,
            department=family.department,
            status=status,
            doc_status=doc_status,
            issued=instant(at((earliest - self._rng.randint(1, 20) * _DAY).date(), self._rng.randint(8, 16))),
            in_force=in_force,
            amends=amended.id if amended else "",
            values=values,
            text="\n".join([*heading, *body]),
        )

    def _changes(self, sentences: Sequence[str], amended: PolicyDocument) -> list[str]:
        """Return the text of an amendment."""
        reasons = self._rng.sample(REASONS, self._rng.randint(1, 2))
        points = "the following point" if len(sentences) == 1 else "the following points"
        return [
            " ".join(reasons),
            f"{amended.number} is amended in {points}:",
            *(f"- {sentence}" for sentence in sentences),
            f"Everything else in {amended.number} remains as it is.",
        ]

    def _body(self, family: _Family, sentences: Sequence[str]) -> list[str]:
        """Return the text of a policy: rules in random order between sentences that settle nothing."""
        rng = self._rng
        background = rng.sample(BACKGROUND, rng.randint(4, 18))
        first, second, third = (background[number::3] for number in range(3))
        rules = rng.sample([*sentences, *second], len(sentences) + len(second))
        paragraphs = ["1. Purpose and scope", " ".join(first), "2. Rules"]
        paragraphs += [f"2.{number} {rule}" for number, rule in enumerate(rules, 1)]
        if family.department:
            paragraphs.append(f"2.{len(rules) + 1} For all other points, see the policy of the whole hospital.")
        paragraphs += ["3. Responsibility and review", " ".join(third)]
        others = [title for title in self._titles if title != family.subject.title]
        if others:
            paragraphs += [f"See also: {'; '.join(rng.sample(others, min(len(others), rng.randint(1, 3))))}."]
        return paragraphs


def _heading(
    number: str, title: str, department: Concept | None, in_force: str, amended: PolicyDocument | None
) -> list[str]:
    applies = f"Department of {department.display}" if department else "The whole hospital"
    lines = [f"{number} {title}", f"Applies to: {applies}"]
    if amended:
        lines.append(f"Amends: {amended.number}")
    return [*lines, f"In force from {in_force[:10]} {in_force[11:16]} (UTC)"]
