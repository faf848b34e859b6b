"""POST [base]: batch and transaction.

The entries of a batch are independent: writes run in request order, then reads. A transaction succeeds or fails as a
whole. It runs DELETE, POST, conditional POST, PUT, PATCH and GET in this order. It determines the resource of every
entry before it stores any resource, so that entries can refer to each other in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from fhir_gym.fhir import search
from fhir_gym.fhir.context import RequestContext
from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET, children
from fhir_gym.fhir.interactions import conditional, persistence
from fhir_gym.fhir.interactions.bundle_entry import BundleEntry, no_verb, read_entries, read_patch_resource
from fhir_gym.fhir.interactions.persistence import Success, WriteContext, WriteResult
from fhir_gym.fhir.interactions.read import existing
from fhir_gym.fhir.interactions.references import check_unreferenced, resolve_reference
from fhir_gym.fhir.interactions.write import parse_body, preference
from fhir_gym.fhir.limits import BYTES_A_STEP, refusing
from fhir_gym.fhir.messages import Interaction, Request, Response
from fhir_gym.fhir.outcome import FhirError, operation_outcome
from fhir_gym.fhir.serialization import MAX_DEPTH, dumps
from fhir_gym.fhir.serialization.json_text import read_object
from fhir_gym.fhir.serialization.primitives import ParseError
from fhir_gym.fhir.store import ResourceRow
from fhir_gym.types import Resource

_AROUND = 500  # upper bound of the bytes that an entry adds to its resource
_ORDER = {"DELETE": 0, "POST": 1, "PUT": 3, "PATCH": 4, "GET": 5}
_WRITES = frozenset({"DELETE", "POST", "PUT", "PATCH"})
_UNREADABLE = (
    "HAPI-0302",
    "HAPI-1700",
    "HAPI-1882",
    "HAPI-1883",
    "HAPI-1940",
    "HAPI-1941",
    "Invalid request: The FHIR endpoint",
)
"""Errors that HAPI finds before it runs a GET entry; with such an error, the whole transaction fails."""


def bundle(ctx: RequestContext) -> Response:
    """Run a batch or a transaction."""
    ctx.doing("other")
    posted = parse_body(ctx.request, "Bundle", "TRANSACTION", ctx.strict)
    kind = posted.get("type", "transaction")
    if kind not in ("batch", "transaction"):
        raise FhirError(400, f"HAPI-0527: Unable to process transaction where incoming Bundle.type = {kind}")
    listed = posted.get("entry", [])
    if len(listed) > ctx.limits.bundle_entries:
        raise FhirError(
            413, f"The Bundle has {len(listed)} entries, more than the {ctx.limits.bundle_entries} this server runs"
        )
    entries = read_entries(ctx, listed)
    if not entries and _has_empty_entries(ctx.request):
        raise no_verb(0)
    if entries:
        ctx.log = tuple(entry.attempt() for entry in entries)
    run = _Batch(ctx) if kind == "batch" else _Transaction(ctx)
    answers = run.answers(entries)
    if entries:
        ctx.log = tuple(run.done[entry.number] for entry in entries)
    bundle_id = ctx.counters.new_token()
    head = dumps(
        {
            "resourceType": "Bundle",
            "id": bundle_id,
            "type": f"{kind}-response",
            "link": [{"relation": "self", "url": ctx.base_url}],
        }
    )
    if answers:
        answers[0] = head[:-1] + b',"entry":[' + answers[0]
        answers[-1] += b"]}"
        head = b",".join(answers)  # a single join, because the answers may be large
    location = f"{ctx.base_url}/Bundle/{bundle_id}"
    return Response(200, {"Location": location, "Content-Location": location}, head)


def _has_empty_entries(request: Request) -> bool:
    """Return whether the parser dropped entries such as null, which HAPI reads as entries without a method."""
    if b'"entry"' not in request.body:
        return False
    try:
        return bool(read_object(request.body).get("entry"))
    except ParseError:  # XML
        return False


# answers of entries


def _entry(response: dict[str, Any], resource: bytes = b"") -> bytes:
    tail = b'"response":' + dumps(response) + b"}"
    return (b'{"resource":' + resource + b"," if resource else b"{") + tail


def _status(code: int) -> str:
    return f"{code} {HTTPStatus(code).phrase}"


def _failed(error: FhirError) -> bytes:
    outcome = operation_outcome(error.diagnostics, code="exception")
    return _entry({"status": _status(error.status), "outcome": outcome})


def _done(written: WriteResult, entry: BundleEntry, *, full: bool) -> bytes:
    """Return the response of a write entry, with the resource if `full`."""
    deleted = entry.verb == "DELETE"
    response: dict[str, Any] = {"status": _status(204 if deleted else written.status)}
    if not deleted or (entry.id and written.version):
        response["location"] = written.location
        response["etag"] = str(written.version)
        if written.status == 201:
            response["lastModified"] = written.text
    response["outcome"] = written.outcome.resource()
    return _entry(response, written.body if full and not deleted else b"")


@dataclass(slots=True)
class _Run:
    """The common part of batch and transaction."""

    ctx: RequestContext
    answered: int = 0
    done: dict[int, Interaction] = field(default_factory=dict)

    def get(self, entry: BundleEntry) -> bytes:
        """Run a GET entry in the session and return its response, or raise its error."""
        names = ("host", "x-forwarded-proto")
        headers = {name: self.ctx.request.headers[name] for name in names if name in self.ctx.request.headers}
        if entry.if_none_match:
            headers["if-none-match"] = entry.if_none_match
        path = f"/{entry.path}".replace("#", "%23")  # in an entry, this character is part of an id
        answer = self.ctx.handle(Request("GET", path, entry.read_query(), headers))
        (done,) = answer.done
        self.done[entry.number] = done._replace(entry=entry.number)
        if answer.status >= 400:
            self._check_budget()
            issue = answer.json()["issue"][0]
            raise FhirError(answer.status, issue["diagnostics"], code=issue["code"])
        if self.answered + len(answer.body) > self.ctx.limits.answer_bytes:
            raise FhirError(413, "The answers of this Bundle's entries are more than this server sends: ask for less")
        self.answered += len(answer.body) + _AROUND
        self.ctx.store.spend(len(answer.body) // BYTES_A_STEP)
        return _entry({"status": _status(answer.status)}, answer.body)

    def _check_budget(self) -> None:
        """Refuse the whole bundle if its entries together have spent the budget."""
        if self.ctx.store.exhausted:
            raise FhirError(
                400,
                "The entries of this Bundle are together too costly for this server: send fewer at once",
                code="too-costly",
            )


# batch


class _Batch(_Run):
    """Runs entries independently."""

    def answers(self, entries: list[BundleEntry]) -> list[bytes]:
        by_number: dict[int, bytes] = {}
        full = preference(self.ctx.request) == "representation"
        if any(not entry.verb for entry in entries):
            raise no_verb(next(entry.number for entry in entries if not entry.verb))
        for entry in sorted(entries, key=lambda e: e.verb == "GET"):
            try:
                entry.check()
                if entry.verb == "GET":
                    by_number[entry.number] = self.get(entry)
                    continue
                with refusing(), self.ctx.store.atomic():
                    written = self._write(entry)
                self.done[entry.number] = written.interaction(entry.attempt().kind, entry.number)
                by_number[entry.number] = _done(written, entry, full=full)
            except FhirError as error:
                self._check_budget()
                self.done.setdefault(entry.number, entry.attempt()._replace(status=error.status))
                by_number[entry.number] = _failed(self._as_batch_says(entry, error))
        return [by_number[entry.number] for entry in entries]

    def _as_batch_says(self, entry: BundleEntry, error: FhirError) -> FhirError:
        if entry.verb == "DELETE" and error.status == 409:
            return FhirError(409, f"HAPI-0550: HAPI-0515: {error.diagnostics}")
        if error.diagnostics.startswith("Invalid request: The FHIR endpoint"):
            return FhirError(error.status, f"HAPI-0303: {error.diagnostics}")
        return error

    def _write(self, entry: BundleEntry) -> WriteResult:
        writes = WriteContext(self.ctx, in_bundle=True)
        if entry.verb == "POST":
            return conditional.create(writes, entry.body(), entry.if_none_exist)
        if entry.verb == "PUT":
            resource = entry.body()
            if entry.id:
                return persistence.update(writes, resource, entry.id, if_match=entry.if_match)
            return conditional.update(writes, resource, entry.criteria())
        if entry.verb == "PATCH":
            return _patch(writes, entry)
        if entry.id:
            return persistence.delete(writes, entry.type, entry.id)
        return _delete_where(writes, entry)


def _patch(writes: WriteContext, entry: BundleEntry) -> WriteResult:
    change = read_patch_resource(entry.body())
    if not entry.id:
        return conditional.patch(writes, entry.type, entry.criteria(), change)
    if writes.ctx.store.find(entry.type, entry.id) is None:
        raise FhirError(404, f"HAPI-1997: {entry.type}/{entry.id}")
    row = existing(writes.ctx, entry.type, entry.id)
    return persistence.patch(writes, row, change, if_match=entry.if_match)


def _delete_where(writes: WriteContext, entry: BundleEntry) -> WriteResult:
    if entry.query:
        return conditional.delete(writes, entry.type, entry.query)
    outcome = writes.outcome(Success.DELETE_NOT_FOUND, entry.type, f"{entry.type}?null")
    return WriteResult(entry.type, "", 0, 0, 200, b"", outcome)


# transaction


@dataclass(frozen=True, slots=True)
class _EntryPlan:
    """The planned write of a transaction's entry.

    Attributes:
        run: Function that performs the write.
        target: ``Type/id`` of the resource to write; "" if it is not known in advance or nothing is written.
    """

    entry: BundleEntry
    run: Callable[[], WriteResult]
    target: str = ""


@dataclass(slots=True)
class _Transaction(_Run):
    """Runs all entries or none.

    Attributes:
        writes: The context of the transaction's writes.
        substitutes: The ``Type/id`` that replaces each placeholder.
        match_urls: The ``Type/id`` that each conditional URL selects.
        created: The resources in `match_urls` that this transaction creates.
        deleted: The resources that this transaction deletes.
    """

    writes: WriteContext = field(init=False)
    substitutes: dict[str, str] = field(default_factory=dict)
    match_urls: dict[str, str] = field(default_factory=dict)
    created: set[str] = field(default_factory=set)
    deleted: list[ResourceRow] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.writes = WriteContext(self.ctx, in_bundle=True, resolve=self._resolve, atomic=True)

    def answers(self, entries: list[BundleEntry]) -> list[bytes]:
        full = preference(self.ctx.request) == "representation"
        for entry in entries:
            if not entry.verb:
                raise no_verb(entry.number)
            entry.check()
        _check_distinct(entries)
        by_number: dict[int, bytes] = {}
        ordered = sorted(entries, key=lambda e: _ORDER[e.verb] + bool(e.verb == "POST" and e.if_none_exist))
        plans = [self._plan(entry) for entry in ordered if entry.verb in _WRITES]
        self.writes.exempt = frozenset(plan.target for plan in plans if plan.target)
        for plan in plans:
            written = plan.run()
            self.done[plan.entry.number] = written.interaction(plan.entry.attempt().kind, plan.entry.number)
            by_number[plan.entry.number] = _done(written, plan.entry, full=full)
        self._check_matches()
        self._check_deleted()
        for entry in ordered:
            if entry.verb == "GET":
                by_number[entry.number] = self._get(entry)
        return [by_number[entry.number] for entry in entries]

    def _plan(self, entry: BundleEntry) -> _EntryPlan:
        """Determine the resource of an entry. A deletion runs immediately."""
        match entry.verb:
            case "DELETE":
                written = self._delete(entry)
                return _EntryPlan(entry, lambda: written)
            case "POST":
                return self._plan_post(entry)
            case "PUT":
                return self._plan_put(entry)
        return _EntryPlan(entry, lambda: _patch(self.writes, entry))

    def _delete(self, entry: BundleEntry) -> WriteResult:
        written = (
            persistence.delete(self.writes, entry.type, entry.id) if entry.id else _delete_where(self.writes, entry)
        )
        if written.outcome.kind is Success.DELETE:
            row = self.ctx.store.find(written.type, written.id)
            self.deleted += [row] if row else []
        return written

    def _plan_post(self, entry: BundleEntry) -> _EntryPlan:
        writes = self.writes
        query = conditional.if_none_exist(entry.if_none_exist)
        kind, quoted = Success.CREATE, entry.if_none_exist.strip()
        if query:
            kind = Success.CREATE_NO_CONDITIONAL_MATCH
            row = conditional.find_one(self.ctx, entry.type, query, "CREATE", quoted)
            if row is not None:
                self._name(entry, f"{row.type}/{row.id}")
                self.match_urls[f"{entry.type}?{query}"] = f"{row.type}/{row.id}"
                written = conditional.matched(writes, row, quoted)
                return _EntryPlan(entry, lambda: written)
        id = self.ctx.counters.new_id()
        target = f"{entry.type}/{id}"
        self._name(entry, target)
        if query:
            self.match_urls[f"{entry.type}?{query}"] = target
            self.created.add(target)
        return _EntryPlan(
            entry, lambda: persistence.create(writes, self._named(entry), id=id, kind=kind, url=quoted), target
        )

    def _plan_put(self, entry: BundleEntry) -> _EntryPlan:
        writes = self.writes
        if entry.id:
            target = f"{entry.type}/{entry.id}"
            self._name(entry, target)
            return _EntryPlan(
                entry, lambda: persistence.update(writes, self._named(entry), entry.id, if_match=entry.if_match), target
            )
        query = entry.criteria()
        url = f"{entry.type}?{query}"
        row = conditional.find_one(self.ctx, entry.type, query, "UPDATE", url)
        id = row.id if row else self.ctx.counters.new_id()
        target = self.match_urls[url] = f"{entry.type}/{id}"
        self._name(entry, target)
        if row is not None:
            kind = Success.UPDATE_WITH_CONDITIONAL_MATCH
            return _EntryPlan(
                entry, lambda: persistence.update(writes, self._named(entry), id, kind=kind, url=url), target
            )
        kind = Success.UPDATE_NO_CONDITIONAL_MATCH
        self.created.add(target)
        return _EntryPlan(
            entry, lambda: persistence.create(writes, self._named(entry), id=id, kind=kind, url=url), target
        )

    def _name(self, entry: BundleEntry, target: str) -> None:
        """Register the placeholder or id by which other entries may refer to this entry's resource."""
        if is_placeholder(entry.full_url):
            self.substitutes[entry.full_url] = target
        elif entry.verb == "POST" and entry.own_id:
            self.substitutes.setdefault(f"{entry.type}/{entry.own_id}", target)

    def _named(self, entry: BundleEntry) -> Resource:
        """Return an entry's resource with placeholders replaced by ids."""
        resource = entry.body()
        replace_placeholders(resource, self.substitutes)
        return resource

    def _resolve(self, reference: str) -> str:
        resolved = self.match_urls.get(reference.removeprefix("/"))
        return resolved or resolve_reference(self.ctx, reference, several="2207")

    def _check_matches(self) -> None:
        """Raise if a match URL now selects several resources, or does not select the resource created for it."""
        for url, target in self.match_urls.items():
            resource_type, _, query = url.partition("?")
            rids = search.match(self.ctx, resource_type, query)
            if len(rids) > 1:
                raise FhirError(
                    400,
                    "HAPI-0542: Unable to process Transaction - Request would cause multiple resources to match "
                    f'URL: "{url}". Does transaction request contain duplicates?',
                )
            row = self.ctx.store.find(*target.split("/", 1))
            if target in self.created and (row is None or row.rid not in rids):
                raise conditional.unsatisfied(resource_type, query)

    def _check_deleted(self) -> None:
        """Raise if a resource still refers to a deleted resource."""
        for row in self.deleted:
            now = self.ctx.store.find(row.type, row.id)
            if now is not None and now.deleted:
                check_unreferenced(self.ctx.store, now)

    def _get(self, entry: BundleEntry) -> bytes:
        try:
            return self.get(entry)
        except FhirError as error:
            if error.diagnostics.startswith(_UNREADABLE):
                raise
            self.done.setdefault(entry.number, entry.attempt()._replace(status=error.status))
            return _failed(error)


def _check_distinct(entries: list[BundleEntry]) -> None:
    """Raise if two entries write the same resource."""
    seen: set[str] = set()
    for name in _claimed(entries):
        if name in seen:
            code = "0534" if is_placeholder(name) else "0535"
            raise FhirError(400, f"HAPI-{code}: Transaction bundle contains multiple resources with ID: {name}")
        seen.add(name)


def _claimed(entries: list[BundleEntry]) -> Iterator[str]:
    for entry in entries:
        if is_placeholder(entry.full_url):
            yield entry.full_url
        if entry.verb == "PUT" and entry.id:
            yield f"{entry.type}/{entry.id}"
        elif entry.verb == "POST" and entry.own_id and not is_placeholder(entry.full_url):
            yield f"{entry.type}/{entry.own_id}"


_URIS = frozenset({"uri", "url", "canonical", "uuid", "oid"})


def is_placeholder(name: str) -> bool:
    """Return whether a `fullUrl` is a placeholder, valid only in its bundle."""
    return name.startswith("urn:")


def replace_placeholders(resource: Resource, substitutes: Mapping[str, str]) -> None:
    """Replace placeholders by ``Type/id`` in references and in elements of a URI type.

    The resource changes in place.

    Raises:
        FhirError: 400 for a reference to an unknown placeholder.
    """
    resource_type = resource["resourceType"]
    _replace(resource, resource_type, resource_type, substitutes, 0)


def _replace(node: dict[str, Any], content: str, resource_type: str, references: Mapping[str, str], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise FhirError(400, f"The resource is nested more than {MAX_DEPTH} levels deep")
    elements = children(content)
    for name, value in node.items():
        element = elements.get(name)
        if element is None:
            continue
        if isinstance(value, str):
            if element.type in _URIS:
                node[name] = references.get(value, value)
        elif isinstance(value, list) and element.type in _URIS:
            node[name] = [references.get(item, item) if isinstance(item, str) else item for item in value]
        elif element.content:
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, dict):
                    if element.type == "Reference":
                        _replace_reference(item, name, resource_type, references)
                    _replace(item, _content(element.content, item), resource_type, references, depth + 1)


def _content(content: str, value: dict[str, Any]) -> str:
    kind = value.get("resourceType") if content == "Resource" else None
    return kind if isinstance(kind, str) and kind in RESOURCE_TYPE_SET else content


def _replace_reference(value: dict[str, Any], name: str, resource_type: str, references: Mapping[str, str]) -> None:
    text = value.get("reference")
    if not isinstance(text, str):
        return
    if text in references:
        value["reference"] = references[text]
    elif is_placeholder(text):
        raise FhirError(
            400,
            f"HAPI-0541: Unable to satisfy placeholder ID {text} found in element named '{name}' "
            f"within resource of type: {resource_type}",
        )
