"""A session on a world: `handle` answers an agent's requests; the other methods are for setup and grading."""

from __future__ import annotations

import re
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import quote, urlsplit

from typing_extensions import override

from fhir_gym.errors import WorldError
from fhir_gym.fhir import serialization
from fhir_gym.fhir.context import RequestContext, ServerCounters, Validation
from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET
from fhir_gym.fhir.formats import DEFAULT as DEFAULT_FORMAT
from fhir_gym.fhir.formats import requested_format, write_response
from fhir_gym.fhir.limits import STEPS_OF_A_REQUEST, Limits, WorkBudget, refusal
from fhir_gym.fhir.messages import JSON, Interaction, Request, Response
from fhir_gym.fhir.outcome import FhirError, operation_outcome
from fhir_gym.fhir.paging import all_matches
from fhir_gym.fhir.protocol import Change, FhirSession
from fhir_gym.fhir.routes import attempted
from fhir_gym.fhir.routing import dispatch
from fhir_gym.fhir.store import ResourceRow, Savepoint, Snapshot, Store, WorldFile, stored
from fhir_gym.fhir.store.connections import unreadable
from fhir_gym.fhir.store.update_times import update_stamp
from fhir_gym.fhir.store.versions import versions, written_since
from fhir_gym.fhir.urls import search_query
from fhir_gym.fhir.validation import check_valid
from fhir_gym.types import Json, Resource

DEFAULT_BASE_URL = "http://localhost:8080/fhir"
"""Default base URL of a session."""
_URIS = ("Location", "Content-Location")
_UNFIT = re.compile(r"[^ -~\xa1-\xff]|^ +| +$")
"""Characters not allowed in a header: control characters, characters beyond Latin-1, leading and trailing spaces."""
_NOTHING_TO_UNDO = nullcontext()
_MAX_DIAGNOSTICS = 10_000
"""Maximum length of diagnostics, because some diagnostics repeat the request."""
_BATCH = 5_000
"""Number of resources that `Session.load` stores at once."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A state of a session, made by `Session.checkpoint`."""

    savepoint: Savepoint
    seq: int
    counters: ServerCounters
    searches: OrderedDict[str, Any]


class Session(FhirSession):
    """A world with one client's writes, which no other session sees.

    A session is not thread-safe. Equal requests get equal answers, byte for byte, on any machine: ids, page tokens and
    the clock start from values in the world's manifest.

    Args:
        base_url: The server's base URL. A request's Host header takes precedence.
        now: Start of the virtual clock; the world's present if None. Each write advances the clock by a second.
        validation: ``"hapi"`` accepts and drops the same elements as HAPI; ``"strict"`` refuses any resource that is
            not valid R4, as HAPI does with `validation.requests_enabled`.
        identifier_of_type: Whether token searches on identifiers may have the modifier `:of-type`. HAPI's default is
            not to (`index_identifier_of_type`).
        limits: The limits of the session and its requests.
        pretty: Whether to indent answers by default; HAPI does this over HTTP.
    """

    def __init__(
        self,
        world: WorldFile,
        *,
        base_url: str = DEFAULT_BASE_URL,
        now: datetime | None = None,
        validation: Validation = "hapi",
        identifier_of_type: bool = False,
        limits: Limits | None = None,
        pretty: bool = False,
    ) -> None:
        self.world = world
        self.base_url = base_url.rstrip("/")
        self.validation: Validation = validation
        self.identifier_of_type = identifier_of_type
        self.limits = limits or Limits()
        self.pretty = pretty
        manifest = world.manifest
        try:
            self.store = Store(world.connections, first_rid=manifest.total + 1)
        except sqlite3.Error as error:
            raise unreadable(world.path, error, state="cannot be opened") from error
        self._counters = ServerCounters(manifest.next_id, now or manifest.now, seed=manifest.content_hash)
        self._searches: OrderedDict[str, Any] = OrderedDict()
        self._bare = self.checkpoint()

    @property
    @override
    def now(self) -> datetime:
        return self._counters.now

    @override
    def set_clock(self, now: datetime) -> None:
        self._counters.now = now

    @override
    def handle(self, request: Request) -> Response:
        return self._answer(request)

    def _answer_entry(self, request: Request) -> Response:
        """Answer an entry of a bundle in compact JSON, because the whole bundle is converted later."""
        return self._answer(request, is_entry=True)

    def _answer(self, request: Request, *, is_entry: bool = False) -> Response:
        request = without_surrogates(request)
        ctx = self.context(request)
        try:
            with self.store.budget(WorkBudget(self.limits.sql_steps)), self._all_or_nothing(request):
                self.store.spend(STEPS_OF_A_REQUEST)
                response = dispatch(ctx)
                if not is_entry:
                    response = self._formatted(ctx, response, self.store.spend)
                if (size := len(response.body)) > self.limits.answer_bytes:
                    raise FhirError(413, f"The answer has {size} bytes, more than this server sends: ask for less")
        except FhirError as error:
            response = _failure(error)
        except RecursionError:
            response = _failure(FhirError(400, "The request is nested too deeply for this server"))
        except (sqlite3.Error, OverflowError) as error:
            refused = refusal(error)
            if refused is None:
                raise unreadable(self.world.path, error) from error
            response = _failure(refused)
        if response.status >= 400 and not is_entry:
            response = self._formatted(ctx, response)
        return self._finish(ctx, response)

    def _formatted(
        self, ctx: RequestContext, response: Response, spend: Callable[[int], None] | None = None
    ) -> Response:
        """Return a response in the format that the client asked for."""
        format_, indent = requested_format(ctx.request, ctx.pairs), self.pretty
        for name, value in ctx.pairs:
            if name == "_pretty":
                indent = value == "true"
                break
        if format_ is DEFAULT_FORMAT and not indent:
            return response
        return write_response(response, format_, indent=indent, limits=self.limits, spend=spend)

    def _all_or_nothing(self, request: Request) -> AbstractContextManager[None]:
        """Undo the writes of a refused request, even if it is refused only because its answer is too large."""
        return _NOTHING_TO_UNDO if request.method in ("GET", "HEAD") else self.store.atomic()

    # setup and grading

    @override
    def load(
        self,
        resources: Iterable[Resource],
        *,
        next_id: int | None = None,
        normal: bool = False,
        keep_next_id: bool = False,
    ) -> None:
        """Store resources without checking references; a missing `meta.lastUpdated` becomes the current time.

        Args:
            resources: See `FhirSession.load`.
            next_id: See `FhirSession.load`.
            normal: See `FhirSession.load`.
            keep_next_id: Whether the server assigns the same ids to later resources as it would without these, whose
                own ids must not be numbers.
        """
        before = self._counters.next_id
        with self._file_errors(), self.store.atomic():
            batch: dict[tuple[str, str], Resource] = {}
            for source in resources:
                if self.validation == "strict":
                    check_valid(source)
                resource = source if normal else serialization.normalise(source)
                key = _key(resource)
                if key in batch or len(batch) == _BATCH:
                    self._load(batch)
                    batch = {}
                batch[key] = resource
            self._load(batch)
        self._counters.next_id = before if keep_next_id else max(self._counters.next_id, next_id or 0)

    def _load(self, batch: dict[tuple[str, str], Resource]) -> None:
        """Store the next versions of different resources."""
        rows = self.store.known(batch)
        versions = []
        next_id, now = self._counters.next_id, self.now
        for (kind, id), resource in batch.items():
            old = rows.get((kind, id))
            if old is None:
                next_id += 1
            if id.isascii() and id.isdigit() and len(id) <= 15:
                next_id = max(next_id, int(id) + 1)
            rid, version = (old[0], old[1] + 1) if old else (self.store.new_rid(), 1)
            meta = resource.get("meta", {})
            updated, text = update_stamp(meta.get("lastUpdated"), now)
            stamps = {"versionId": str(version), "lastUpdated": text}
            kept = {"resourceType": kind, "id": id, "meta": {}} | resource  # servers put `meta` at this position
            kept["meta"] = stamps | meta | stamps
            versions.append((ResourceRow(rid, kind, id, version, updated, 0, "PUT", serialization.dumps(kept)), kept))
        self._counters.next_id = next_id
        self.store.put_all(versions)

    def snapshot(self) -> Snapshot:
        """Return the resources that this session loaded, to load them faster in other sessions on the same world.

        Raises:
            ValueError: A request wrote something.
        """
        if self._counters.now != self._bare.counters.now:
            raise ValueError("a snapshot needs a session without requests that wrote something")
        return self.store.snapshot(self._counters.next_id)

    def load_snapshot(self, snapshot: Snapshot) -> None:
        """Load the resources of another session on the same world.

        Raises:
            ValueError: This session has already written something.
        """
        with self._file_errors(), self.store.atomic():
            self.store.load_snapshot(snapshot)
        self._counters.next_id = snapshot.next_id

    @override
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.store.savepoint(), self.store.seq(), self._counters.copy(), self._searches.copy())

    @override
    def rollback(self, to: Checkpoint | None = None) -> None:
        """Undo all writes since a checkpoint, or since the session began.

        The cost depends on the number of these writes.

        Raises:
            ValueError: The session was already rolled back to a state before the checkpoint.
        """
        to = to or self._bare
        self.store.rollback_to(to.savepoint)
        self._counters = to.counters.copy()
        self._searches = to.searches.copy()

    @contextmanager
    def returned_to(self, checkpoint: Checkpoint) -> Iterator[None]:
        """Return to a checkpoint for the duration of a block; afterwards, the session is as it was before.

        The cost depends on the number of writes since the checkpoint.

        Raises:
            ValueError: The session was already rolled back to a state before the checkpoint.
        """
        counters, searches = self._counters, self._searches
        try:
            with self.store.returned_to(checkpoint.savepoint):
                self._counters, self._searches = checkpoint.counters.copy(), checkpoint.searches.copy()
                yield
        finally:
            self._counters, self._searches = counters, searches

    @override
    def changes(self, since: Checkpoint | None = None) -> list[Change]:
        with self._file_errors():
            return [
                _change(before, versions)
                for before, versions in written_since(self.store, (since or self._bare).seq)
                if before is not None or not versions[-1].deleted
            ]

    @override
    def get(self, url: str) -> Json:
        return self._get(url).json()

    @override
    def read(self, resource_type: str, id: str) -> Resource | None:
        with self._file_errors():
            row = self.store.find(resource_type, id)
            return None if row is None or row.deleted else stored(row.body)

    @override
    def versions(self, resource_type: str, id: str, count: int) -> list[Resource | None]:
        with self._file_errors():
            row = self.store.find(resource_type, id)
            rows = [] if row is None else [row] if count == 1 else versions(self.store, row.rid)[:count]
            return [None if row.deleted else stored(row.body) for row in rows]

    @override
    def search(self, resource_type: str, **params: object) -> list[Resource]:
        query = search_query(params, self.limits.page_entries)
        return all_matches(self._page, f"/{quote(resource_type)}?{query}")

    @override
    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _get(self, url: str) -> Response:
        parts = urlsplit(url.removeprefix(self.base_url))
        return self.handle(Request("GET", parts.path, parts.query))

    def _page(self, url: str) -> Resource:
        response = self._get(url)
        try:
            bundle: Resource = response.json()
        except ValueError as error:  # an answer contains stored bytes that were not parsed
            raise WorldError(f"the world {self.world.path} has a resource that is not JSON: {error}") from error
        if response.status != 200:
            raise FhirError(response.status, bundle["issue"][0]["diagnostics"])
        return bundle

    @contextmanager
    def _file_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise unreadable(self.world.path, error) from error

    def context(self, request: Request) -> RequestContext:
        """Return the context in which a handler answers a request."""
        host = request.headers.get("host")
        if host:
            base = f"{request.headers.get('x-forwarded-proto', 'http')}://{host}{urlsplit(self.base_url).path}"
        else:
            base = self.base_url
        return RequestContext(
            store=self.store,
            base_url=base,
            counters=self._counters,
            handle=self._answer_entry,
            request=request,
            limits=self.limits,
            searches=self._searches,
            validation=self.validation,
            identifier_of_type=self.identifier_of_type,
            pretty_default=self.pretty,
        )

    def _finish(self, ctx: RequestContext, response: Response) -> Response:
        """Complete an answer: make headers valid, drop the body for HEAD, and add the log."""
        body = response.body
        headers = {"Content-Type": JSON, **response.headers} if body else dict(response.headers)
        for name in _URIS:
            if name in headers:
                headers[name] = _header_url(headers[name])
        method, status = ctx.request.method, response.status
        log = ctx.log or (attempted(method, [part for part in ctx.request.path.split("/") if part]),)
        if status >= 400:  # a refusal also undoes what the request had done before
            log = tuple(interaction._replace(status=status, effect="") for interaction in log)
        elif not log[0].status and len(log) == 1:  # the usual case, for which `_replace` would take twice as long
            kind, resource_type, id, _, effect, operation, entry = log[0]
            log = (Interaction(kind, resource_type, id, status, effect, operation, entry),)
        else:
            log = tuple(
                interaction if interaction.status else interaction._replace(status=status) for interaction in log
            )
        return Response(status, headers, b"" if method == "HEAD" else body, log, response.json_body)


def _key(resource: Resource) -> tuple[str, str]:
    """Return type and id of a resource to load."""
    kind, id = resource.get("resourceType"), resource.get("id")
    if kind not in RESOURCE_TYPE_SET:
        raise FhirError(400, f"{kind!r} is not a resource type of FHIR R4")
    if not isinstance(id, str) or not id:
        raise FhirError(400, f"a {kind} without an id cannot be loaded")
    return str(kind), id


def _header_url(text: str) -> str:
    """Percent-encode the characters of a URL that would break a header; HAPI sends the other characters unchanged."""
    if text.isascii() and text.isprintable() and text.strip(" ") == text:
        return text
    return _UNFIT.sub(lambda match: quote(match[0], safe=""), text)


def without_surrogates(request: Request) -> Request:
    """Replace lone surrogates, which neither UTF-8 nor SQLite can encode, with question marks."""
    if "".join((request.method, request.path, request.query, *request.headers.values())).isascii():
        return request
    method, path, query, *values = (
        text.encode("utf-8", "replace").decode("utf-8")
        for text in (request.method, request.path, request.query, *request.headers.values())
    )
    return Request(method, path, query, dict(zip(request.headers, values, strict=True)), request.body)


def _failure(error: FhirError) -> Response:
    outcome = operation_outcome(error.diagnostics[:_MAX_DIAGNOSTICS], code=error.code)
    if error.issues:
        outcome["issue"] = error.issues
    return Response(error.status, error.headers, serialization.dumps(outcome))


def _change(before: ResourceRow | None, written: list[ResourceRow]) -> Change:
    now = written[-1]
    kind: Literal["created", "updated", "deleted"] = (
        "created" if before is None else "deleted" if now.deleted else "updated"
    )
    old = None if before is None else stored(before.body)
    versions = tuple(None if row.deleted else stored(row.body) for row in written)
    return Change(kind, now.type, now.id, old, versions[-1], versions)
