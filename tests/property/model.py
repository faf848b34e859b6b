"""A model of a FHIR server, which implements the rules of the interactions on dicts.

The model holds every version of every resource. It predicts the response to an operation and the state afterwards. The
state machine compares both with a session.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from fhir_gym.types import Resource

Key = tuple[str, str]
Criteria = tuple[tuple[str, str], ...]

_ORDER = {"DELETE": 0, "POST": 1, "PUT": 3, "PATCH": 4, "GET": 5}


class RefusedError(Exception):
    """The server responds with this error status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@dataclass(frozen=True)
class Op:
    """One interaction.

    Attributes:
        verb: HTTP verb.
        type: Resource type.
        id: Id in the URL; empty if there is none.
        criteria: Search criteria of a conditional interaction; for a POST, of its If-None-Exist header.
        content: For a POST or PUT, the resource without id and meta; for a PATCH, the new gender (None removes the
            gender).
        if_match: Version that an update or patch must replace; 0 for any version.
    """

    verb: str
    type: str
    id: str = ""
    criteria: Criteria = ()
    content: Any = None
    if_match: int = 0

    @property
    def url(self) -> str:
        """The relative URL."""
        if self.id:
            return f"{self.type}/{self.id}"
        query = "&".join(f"{name}={value}" for name, value in self.criteria)
        return f"{self.type}?{query}" if query and self.verb != "POST" else self.type


@dataclass(frozen=True)
class Version:
    """One version of a resource: the tags, and the content without id and meta (None for a deletion)."""

    key: Key
    number: int
    content: Resource | None
    tags: tuple[str, ...] = ()


@dataclass
class Model:
    """The model of a server.

    Attributes:
        versions: All versions of each resource, oldest first; resources are in creation order.
        log: The resource of each write, in order.
        low: Lowest possible id of the next created resource.
        high: Highest possible id of the next created resource. It differs from `low` only after a failed transaction.
    """

    versions: dict[Key, list[Version]]
    low: int
    high: int
    log: list[Key] = field(default_factory=list)

    def copy(self) -> Model:
        return Model({key: list(found) for key, found in self.versions.items()}, self.low, self.high, list(self.log))

    def become(self, other: Model) -> None:
        self.versions, self.log, self.low, self.high = other.versions, other.log, other.low, other.high

    # reading

    def current(self, key: Key) -> Version | None:
        """Return the current version, which may be a deletion; None if the resource never existed."""
        return self.versions[key][-1] if key in self.versions else None

    def content(self, key: Key) -> Resource | None:
        found = self.current(key)
        return found.content if found else None

    def read(self, key: Key) -> Version:
        found = self.current(key)
        if found is None:
            raise RefusedError(404)
        if found.content is None:
            raise RefusedError(410)
        return found

    def search(self, type: str, criteria: Iterable[tuple[str, str]]) -> list[Key]:
        """Return the matches in creation order."""
        listed = list(criteria)
        return [
            key
            for key in self.versions
            if key[0] == type
            and self.content(key) is not None
            and all(self._fits(key, *criterion) for criterion in listed)
        ]

    def _fits(self, key: Key, name: str, value: str) -> bool:
        found = self.read(key)
        if name == "_id":
            return key[1] in value.split(",")
        if name == "_tag":
            return value in found.tags
        if name == "_has:Observation:patient:code":
            return bool(self.search("Observation", [("subject", f"{key[0]}/{key[1]}"), ("code", value)]))
        content: Resource = found.content or {}
        if name == "patient.family":
            return _fits_patient(self.content(_key(content["subject"]["reference"])) or {}, "family", value)
        return (_fits_patient if key[0] == "Patient" else _fits_observation)(content, name, value)

    # writing

    def apply(self, op: Op, *, in_bundle: bool = False) -> tuple[int, Key | None]:
        """Apply one operation; return the status and the resource.

        Raises:
            RefusedError: The server responds with an error; nothing has changed, except that an id may be used up.
        """
        match op.verb:
            case "POST":
                return self._create_if_none(op, in_bundle)
            case "PUT" if op.id:
                return self.update((op.type, op.id), op.content, op.if_match)
            case "PUT":
                key = self._one(op)
                return self.update(key, op.content) if key else self._create(op, in_bundle)
            case "PATCH":
                if op.id:
                    return self.patch((op.type, op.id), op.content, op.if_match)
                key = self._one(op)
                if key is None:
                    raise RefusedError(404)
                return self.patch(key, op.content)
            case "DELETE":
                key = (op.type, op.id) if op.id else self._one(op)
                return (self.delete(key) if key else 200), key
        return 200, self.read((op.type, op.id)).key

    def _one(self, op: Op) -> Key | None:
        keys = self.search(op.type, op.criteria)
        if len(keys) > 1:
            raise RefusedError(412)
        return keys[0] if keys else None

    def _create_if_none(self, op: Op, in_bundle: bool) -> tuple[int, Key]:
        key = self._one(op) if op.criteria else None
        return (200, key) if key else self._create(op, in_bundle)

    def _create(self, op: Op, in_bundle: bool) -> tuple[int, Key]:
        if in_bundle:
            self._take()  # a failed create also uses up an id
        self._check(op.content, frozenset())
        key = (op.type, str(self.low - 1 if in_bundle else self._take()))
        before = self.copy()
        self._store(key, 1, op.content, ())
        if op.criteria and key not in self.search(op.type, op.criteria):
            before.low = before.high = self.low
            self.become(before)
            raise RefusedError(400)
        return 201, key

    def update(
        self, key: Key, content: Resource, if_match: int = 0, exempt: frozenset[Key] = frozenset()
    ) -> tuple[int, Key]:
        old = self.current(key)
        if old is None:
            if key[1].isdigit():
                raise RefusedError(400)
            self._check(content, exempt)
            self._take()
            self._store(key, 1, content, ())
            return 201, key
        if if_match not in (0, old.number):
            raise RefusedError(409)
        self._check(content, exempt)
        if old.content == content:
            return 200, key
        self._store(key, old.number + 1, content, () if old.content is None else old.tags)
        return 201 if old.content is None else 200, key

    def patch(self, key: Key, gender: str | None, if_match: int = 0) -> tuple[int, Key]:
        old = self.read(key)
        assert old.content is not None
        if if_match not in (0, old.number):
            raise RefusedError(409)
        content = {name: value for name, value in old.content.items() if name != "gender"}
        if gender is not None:
            content["gender"] = gender
        elif "gender" not in old.content:
            raise RefusedError(400)
        return self.update(key, content)

    def delete(self, key: Key, *, checked: bool = True) -> int:
        old = self.current(key)
        if old is not None and old.content is not None:
            if checked and self._referrers(key):
                raise RefusedError(409)
            self._store(key, old.number + 1, None, ())
        return 200

    def tag(self, key: Key, code: str) -> int:
        """Apply `$meta-add`, which makes no new version."""
        old = self.read(key)
        if code not in old.tags:
            self.versions[key][-1] = replace(old, tags=(*old.tags, code))
        self.log.append(key)
        return 200

    def batch(self, ops: list[Op]) -> list[tuple[int, Key | None]]:
        """Apply each operation separately; reads come last."""
        answers: dict[int, tuple[int, Key | None]] = {}
        for number in sorted(range(len(ops)), key=lambda n: ops[n].verb == "GET"):
            try:
                status, key = self.apply(ops[number], in_bundle=True)
                answers[number] = (204 if ops[number].verb == "DELETE" else status, key)
            except RefusedError as error:
                answers[number] = (error.status, None)
        return [answers[number] for number in range(len(ops))]

    def transaction(self, ops: list[Op]) -> list[tuple[int, Key | None]]:
        """Apply all operations or none; a failure uses up at most one id per entry."""
        scratch = self.copy()
        try:
            answers = _Transaction(scratch).run(ops)
        except RefusedError:
            self.high += len(ops)
            raise
        self.become(scratch)
        return answers

    def _take(self) -> int:
        self.low = self.high = self.low + 1
        return self.low - 1

    def _store(self, key: Key, number: int, content: Resource | None, tags: tuple[str, ...]) -> None:
        self.versions.setdefault(key, []).append(Version(key, number, content, tags))
        self.log.append(key)

    def _check(self, content: Resource, exempt: frozenset[Key]) -> None:
        if "subject" in content:
            key = _key(content["subject"]["reference"])
            if key not in exempt and self.content(key) is None:
                raise RefusedError(400)

    def _referrers(self, key: Key) -> list[Key]:
        return self.search("Observation", [("subject", f"{key[0]}/{key[1]}")])

    # comparing

    def changes(self, since: Model) -> list[tuple[str, Key, Resource | None, Resource | None]]:
        """Return the kind of change, key, old and new content of each resource written since a checkpoint."""
        found = []
        for key in dict.fromkeys(self.log[len(since.log) :]):
            before, after = since.content(key), self.content(key)
            if before is not None or after is not None:
                kind = "created" if before is None else "deleted" if after is None else "updated"
                found.append((kind, key, before, after))
        return found


class _Transaction:
    """A transaction on a copy of the model, discarded on failure."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.targets: dict[int, Key] = {}
        self.matched: set[int] = set()
        self.urls: dict[tuple[str, Criteria], Key] = {}
        self.created: set[Key] = set()
        self.deleted: list[Key] = []

    def run(self, ops: list[Op]) -> list[tuple[int, Key | None]]:
        puts = [op.url for op in ops if op.verb == "PUT" and op.id]
        if len(set(puts)) < len(puts):
            raise RefusedError(400)
        order = sorted(range(len(ops)), key=lambda n: _ORDER[ops[n].verb] + _if_none_exist(ops[n]))
        for number in order:
            self._settle(number, ops[number])
        exempt = frozenset(key for number, key in self.targets.items() if number not in self.matched)
        answers = {}
        for number in order:
            if ops[number].verb != "GET":
                answers[number] = self._run(number, ops[number], exempt)
        self._check()
        for number in order:
            if ops[number].verb == "GET":
                answers[number] = self._get(ops[number])
        return [answers[number] for number in range(len(ops))]

    def _settle(self, number: int, op: Op) -> None:
        if op.verb == "DELETE":
            key = (op.type, op.id) if op.id else self.model._one(op)
            if key and self.model.content(key) is not None:
                self.deleted.append(key)
            if key:
                self.model.delete(key, checked=False)
                self.targets[number] = key
                self.matched.add(number)
        elif op.verb in ("POST", "PUT") and not op.id:
            key = self.model._one(op) if op.criteria else None
            if key is None:
                key = (op.type, str(self.model._take()))
                if op.criteria:
                    self.created.add(key)
            elif op.verb == "POST":
                self.matched.add(number)
            if op.criteria:
                self.urls[op.type, op.criteria] = key
            self.targets[number] = key
        elif op.verb == "PUT":
            self.targets[number] = (op.type, op.id)

    def _run(self, number: int, op: Op, exempt: frozenset[Key]) -> tuple[int, Key | None]:
        key = self.targets.get(number)
        if op.verb == "DELETE":
            return 204, key
        if op.verb == "PATCH":
            return self.model.apply(op)
        assert key is not None
        if number in self.matched:
            return 200, key
        if op.verb == "POST" or key in self.created:
            self.model._check(op.content, exempt)
            self.model._store(key, 1, op.content, ())
            return 201, key
        return self.model.update(key, op.content, op.if_match, exempt)

    def _get(self, op: Op) -> tuple[int, Key | None]:
        try:
            return self.model.apply(op)
        except RefusedError as error:
            return error.status, None

    def _check(self) -> None:
        for (type, criteria), key in self.urls.items():
            keys = self.model.search(type, criteria)
            if len(keys) > 1 or (key in self.created and key not in keys):
                raise RefusedError(400)
        for key in self.deleted:
            if self.model.content(key) is None and self.model._referrers(key):
                raise RefusedError(409)


def _fits_patient(content: Resource, name: str, value: str) -> bool:
    families = [part["family"] for part in content.get("name", [])]
    match name:
        case "family":
            return any(_plain(family).startswith(_plain(value)) for family in families)
        case "family:exact":
            return value in families
        case "family:contains":
            return any(_plain(value) in _plain(family) for family in families)
        case "gender":
            return content.get("gender") in value.split(",")
        case "gender:not":
            return bool(content.get("gender") != value)
        case "gender:missing":
            return ("gender" not in content) == (value == "true")
        case "birthdate":
            return _compare(content.get("birthDate"), value)
    raise ValueError(name)


def _fits_observation(content: Resource, name: str, value: str) -> bool:
    found = {
        "code": bool(content["code"]["coding"][0]["code"] == value),
        "subject": bool(content["subject"]["reference"] == value),
    }
    if name != "value-quantity":
        return found[name]
    quantity = content.get("valueQuantity")
    return quantity is not None and bool(quantity["value"] > int(value.removeprefix("gt")))


def _plain(text: str) -> str:
    """Normalise case and accents."""
    return "".join(c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c)).lower()


def _compare(date: str | None, query: str) -> bool:
    """Return whether a full date matches a search value with a prefix; for months and years, HAPI's bounds apply."""
    if date is None:
        return False
    prefix, bound = (query[:2], query[2:]) if query[:2].isalpha() else ("eq", query)
    first, last = bound + "-01-01"[len(bound) - 4 :], bound + "-12-31"[len(bound) - 4 :]
    return {
        "eq": date.startswith(bound),
        "ge": date >= last,
        "gt": date > last,
        "le": date <= first,
        "lt": date < first,
    }[prefix]


def _if_none_exist(op: Op) -> bool:
    return op.verb == "POST" and bool(op.criteria)


def _key(reference: str) -> Key:
    type, _, id = reference.partition("/")
    return type, id
