"""A session on a running FHIR server, such as HAPI. The session sends requests over HTTP and can undo its writes.

Before and after each write, the session reads the resources that the write may change: the resource that the URL names,
the matches of a conditional URL, or the resources of all entries of a bundle. The server's answer names the resources
that the write created. So the session can log, compare and undo every write.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from time import sleep
from typing import Literal
from urllib.parse import quote, urlsplit

import httpx
from typing_extensions import override

from fhir_gym.errors import FhirServerError
from fhir_gym.fhir import serialization
from fhir_gym.fhir.adapters.batch_reads import Key, read_all
from fhir_gym.fhir.adapters.credentials import Credentials
from fhir_gym.fhir.adapters.reference_order import batches_by_reference
from fhir_gym.fhir.adapters.remote_client import NotSentError, RemoteClient
from fhir_gym.fhir.adapters.remote_interactions import ResourceStates, created, interactions
from fhir_gym.fhir.adapters.server_lock import ServerLock
from fhir_gym.fhir.adapters.undo import content, put_back
from fhir_gym.fhir.adapters.undo_journal import SentWrite, UndoJournal
from fhir_gym.fhir.adapters.version_history import Version, created_since, newest_version
from fhir_gym.fhir.adapters.write_targets import (
    RequestPart,
    WriteTarget,
    created_type,
    is_write,
    request_parts,
    targets,
)
from fhir_gym.fhir.messages import Request, Response
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.protocol import Change, FhirSession
from fhir_gym.fhir.urls import search_query
from fhir_gym.fhir.world import World
from fhir_gym.printable import one_line
from fhir_gym.types import Json, Resource

SETTLING = 1.0
"""Seconds that the server has to finish a write whose answer was lost, before the session looks for its effects."""

_BATCH = 1_000
"""Resources in one transaction."""
_PAGE = 500
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RemoteCheckpoint:
    """A position in a remote session's log of writes and in its journal."""

    writes: int
    journal: int


class RemoteSession(FhirSession):
    """A session on a remote server.

    Args:
        url: The server's base URL (``http://localhost:8080/fhir``).
        world: The world that the server must contain. Tasks use the world's records, and the world's `now` is the
            episode's clock.
        credentials: Headers and certificate authority; None for a server that needs none.
        client: The HTTP client; a new one with the credentials if None.
        timeout: The time to wait for an answer, in seconds.
        lock: The lock of the server, if the caller holds it; None to hold one until the session is closed.
        undo: Earlier states of resources to restore first; None for those that an interrupted session has noted.

    Attributes:
        restored: The resources that the constructor has restored.

    Raises:
        InfraError: The server does not answer, does not contain the world, is in use, or cannot be restored; or the CA
            file cannot be used.
    """

    def __init__(
        self,
        url: str,
        world: World,
        *,
        credentials: Credentials | None = None,
        client: httpx.Client | None = None,
        timeout: float = 60.0,
        lock: ServerLock | None = None,
        undo: Sequence[ResourceStates] | None = None,
    ) -> None:
        self._http = RemoteClient(url, credentials=credentials, client=client, timeout=timeout)
        self.base_url = self._http.base_url
        self.world = world
        self.restored: tuple[str, ...] = ()
        self._log: list[ResourceStates] = []
        self._lost: list[SentWrite] = []
        self._marks: dict[str, Version | None] = {}
        with ExitStack() as stack:
            stack.callback(self._http.close)
            if lock is None:
                lock = stack.enter_context(ServerLock(self.base_url))
            self._journal = UndoJournal(lock.folder, world, self.base_url, discard=undo is not None)
            states = self._journal.states if undo is None else undo
            self._check_world(states)
            self._restore(states, self._journal.unanswered)
            self._resources = stack.pop_all()

    @property
    @override
    def now(self) -> datetime:
        """The world's present, which prompts state; the server's own timestamps may differ."""
        return self.world.now

    @override
    def set_clock(self, now: datetime) -> None:
        pass

    @override
    def handle(self, request: Request) -> Response:
        """Send a request and log its writes.

        Raises:
            FhirServerError: The server does not answer or reports that it is down.
        """
        if is_write(request):
            response = self._write(request)
        else:
            response = self._http.send(request)
            one = RequestPart(request.method, f"{request.path}?{request.query}")
            response = replace(response, done=interactions(request, response, [one], [[]]))
        return replace(response, body=self._http.credentials.hide_in_data(response.body))

    def _write(self, request: Request, *, logged: bool = True) -> Response:
        """Send a write; read the changed resources afterwards if `logged`."""
        parts, states = self._before(request)
        position = len(self._log)
        sent = self._note(request, parts, states)
        try:
            response = self._http.send(request)
            done = 200 <= response.status < 300
            new = [ResourceStates(kind, id, None) for kind, id in created(response)] if done else []
            self._log += new
            if done and parts is None:
                self._lost.append(sent)  # the answer does not tell what has changed
            else:
                self._journal.answered([(one.type, one.id) for one in new])
        except NotSentError:
            del self._log[position:]
            self._journal.answered()
            raise
        except BaseException:
            self._lost.append(sent)
            raise
        if logged:
            after = read_all(self._http, [one.key for some in states for one in some], self._now)
            states = [[one._replace(after=after[one.key]) for one in some] for some in states]
        self._log[position:] = [one for some in states for one in some if response.status < 300 or one.effect] + new
        return replace(response, done=interactions(request, response, parts or [], states))

    def _note(self, request: Request, parts: list[RequestPart] | None, states: list[list[ResourceStates]]) -> SentWrite:
        """Note in the log and in the journal what undoes a write. Whatever fails afterwards, `rollback` undoes it."""
        kinds = [kind for one in parts or [] if (kind := created_type(one))]
        for kind in kinds:
            if kind not in self._marks:
                self._marks[kind] = newest_version(self._http, kind)
        marks = None if parts is None else {kind: self._marks[kind] for kind in kinds}
        sent = SentWrite(one_line(f"{request.method} {request.path or '/'}", 200), marks)
        before = [one for some in states for one in some]
        self._journal.note(sent, before)
        self._log += before
        return sent

    def _before(self, request: Request) -> tuple[list[RequestPart] | None, list[list[ResourceStates]]]:
        """Return the parts of a write, and the resources that each part may change.

        The parts are None for an unreadable bundle. If the server accepts such a bundle, the bundle's writes cannot be
        undone.
        """
        try:
            parts = request_parts(request, self.base_url)
        except (ValueError, RecursionError):
            return None, []
        wanted = [list(targets(one)) for one in parts]
        keys = [(target.type, target.id) for some in wanted for target in some if target.id]
        current = read_all(self._http, keys, self._now)
        return parts, [[state for target in some for state in self._states(target, current)] for some in wanted]

    def _states(self, target: WriteTarget, current: Mapping[Key, Resource | None]) -> list[ResourceStates]:
        """Return the current state of the resources that a write may change; `current` are those with known ids."""
        if target.id:
            return [ResourceStates(target.type, target.id, current[target.type, target.id])]
        try:
            matches = self._http.matches(f"/{quote(target.type)}?{target.query}&_count={_PAGE}")
        except FhirError:
            return []  # the server will refuse the write as well
        return [ResourceStates(target.type, match["id"], match) for match in matches]

    def _now(self, resource_type: str, id: str) -> Resource | None:
        """Return the current resource with an id; None if no resource has the id, or the id is invalid."""
        response = self._http.read(f"/{quote(resource_type)}/{quote(id)}")
        if response.status >= 500:
            raise FhirServerError(f"{self.base_url} answered {response.status} for {resource_type}/{id}")
        return self._http.json(response) if response.status == 200 else None

    @override
    def load(self, resources: Iterable[Resource], *, next_id: int | None = None, normal: bool = False) -> None:
        """PUT resources at their ids, in transactions; HAPI refuses ids that consist of digits only."""
        for batch in batches_by_reference(list(resources), _BATCH):
            entries = [
                {"resource": one, "request": {"method": "PUT", "url": f"{one['resourceType']}/{one['id']}"}}
                for one in batch
            ]
            bundle = {"resourceType": "Bundle", "type": "transaction", "entry": entries}
            headers = {"content-type": "application/fhir+json"}
            response = self._write(Request("POST", "", headers=headers, body=serialization.dumps(bundle)), logged=False)
            if response.status != 200:
                raise FhirError(response.status, f"{self.base_url} refuses the set-up: {response.text[:500]}")

    @override
    def checkpoint(self) -> RemoteCheckpoint:
        return RemoteCheckpoint(len(self._log), self._journal.position)

    @override
    def rollback(self, to: RemoteCheckpoint | None = None) -> None:
        """Undo this session's writes since a checkpoint, or since the session began.

        Changed resources get their earlier content as a new version; created resources are deleted.

        Raises:
            FhirServerError: A write could not be undone; the message names it.
        """
        self._roll_back(to or RemoteCheckpoint(0, 0))

    def _roll_back(self, to: RemoteCheckpoint) -> list[str]:
        """Undo writes and return the resources that had changed."""
        wrong = self._find_lost()
        written = self._written(to.writes)
        current = read_all(self._http, [one.key for one in written], self.read)
        changed = [(old, now) for old in written if content(old.before) != content(now := current[old.key])]
        put_back(self._http, changed)
        restored = read_all(self._http, [old.key for old, _ in changed], self.read)
        for old, _ in changed:
            if content(restored[old.key]) != content(old.before):
                wrong.append(f"{old.type}/{old.id} still differs")
        if wrong:
            raise FhirServerError(
                f"{self.base_url} could not be restored: {'; '.join(wrong)}; to compare all resources with those "
                f"of the world, run `fhir-gym worlds restore {self.world.name} {self.base_url} --from-world`"
            )
        if self._lost:
            self._journal.keep()  # the server may carry out such a write later; the next session looks again
            self._lost.clear()
        del self._log[to.writes :]
        self._journal.truncate(to.journal, self._log)
        self._marks.clear()
        return [f"{old.type}/{old.id}" for old, _ in changed]

    def _find_lost(self) -> list[str]:
        """Log what the writes without an answer have created; describe the writes of which the server does not tell."""
        if not self._lost:
            return []
        sleep(SETTLING)
        unknown = []
        known = {(one.type, one.id) for one in self._log}
        for write in self._lost:
            marks = write.marks or {}
            new = {
                kind: None if mark is None else created_since(self._http, kind, mark) for kind, mark in marks.items()
            }
            for kind, ids in new.items():
                found = [id for id in ids or () if (kind, id) not in known and not self.world.holds(kind, id)]
                self._log += [ResourceStates(kind, id, None) for id in found]
                known |= {(kind, id) for id in found}
            if write.marks is None or None in new.values():
                unknown.append(f"{write.request} has an unknown outcome")
        return unknown

    def _restore(self, states: Sequence[ResourceStates], unanswered: Sequence[SentWrite]) -> None:
        """Undo the changes of an interrupted session, and say so."""
        self._log, self._lost = list(states), list(unanswered)
        if self._log or self._lost:
            self.restored = tuple(self._roll_back(RemoteCheckpoint(0, 0)))
        if self.restored:
            number = f"{len(self.restored)} resource{'s' if len(self.restored) > 1 else ''}"
            _logger.warning("%s: restored %s that an interrupted episode had changed", self.base_url, number)

    @override
    def changes(self, since: RemoteCheckpoint | None = None) -> list[Change]:
        found = []
        start = since.writes if since else 0
        written = self._written(start)
        current = read_all(self._http, [one.key for one in written], self.read)
        for kind, id, before, _ in written:
            after = current[kind, id]
            seen = [one.after for one in self._log[start:] if (one.type, one.id) == (kind, id) and one.effect]
            if before == after and (before is None or not seen):
                continue
            what: Literal["created", "updated", "deleted"] = (
                "created" if before is None else "deleted" if after is None else "updated"
            )
            found.append(Change(what, kind, id, before, after, self._versions(kind, id, before, seen)))
        return found

    def _versions(
        self, resource_type: str, id: str, before: Resource | None, seen: list[Resource | None]
    ) -> tuple[Resource | None, ...]:
        """Return the versions of a resource after `before`; empty if the server has no history.

        `before` is the version before this session's writes. `seen` are the states that the session read after its
        writes. Some writes, such as `$meta-add`, make no new version, so the history lacks their states.
        """
        history = self._history(resource_type, id, _PAGE)
        if history is None:
            return ()
        versions: list[Resource | None] = []
        for resource in history:
            if before is not None and resource and _version(resource) == _version(before):
                break
            versions.append(resource)
        known = {one and _version(one) for one in versions}
        unlisted = [one for one in seen if (one and _version(one)) not in known]
        return (*unlisted, *reversed(versions))

    def _history(self, resource_type: str, id: str, count: int) -> list[Resource | None] | None:
        """Return the latest versions of a resource, newest first; None if the server has no history."""
        response = self._http.send(Request("GET", f"/{quote(resource_type)}/{quote(id)}/_history", f"_count={count}"))
        if response.status != 200:
            return None
        return [entry.get("resource") for entry in self._http.json(response).get("entry", [])]

    @override
    def get(self, url: str) -> Json:
        parts = urlsplit(url.removeprefix(self.base_url))
        return self._http.json(self.handle(Request("GET", parts.path, parts.query)))

    @override
    def read(self, resource_type: str, id: str) -> Resource | None:
        return self._resource(f"/{resource_type}/{id}")

    @override
    def versions(self, resource_type: str, id: str, count: int) -> list[Resource | None]:
        history = self._history(resource_type, id, count) if count > 1 else None
        return [self.read(resource_type, id)] if history is None else history

    @override
    def search(self, resource_type: str, **params: object) -> list[Resource]:
        return self._http.matches(f"/{resource_type}?{search_query(params, _PAGE)}")

    @override
    def close(self) -> None:
        if not self._http.is_closed:
            with self._resources:
                self.rollback()

    def _check_world(self, changed_states: Sequence[ResourceStates]) -> None:
        """Check some patients, but none that an interrupted session may have deleted."""
        changed = {one.id for one in changed_states if one.type == "Patient"}
        ids = [id for id in self.world.ids("Patient") if id not in changed]
        for id in ids[:1] + ids[-1:]:
            if self.read("Patient", id) is None:
                if b"CapabilityStatement" not in self._http.send(Request("GET", "/metadata")).body:
                    raise FhirServerError(f"{self.base_url} is not the base URL of a FHIR server: it has no /metadata")
                raise FhirServerError(
                    f"{self.base_url} does not contain the world {self.world.name!r}: it has no Patient/{id}; "
                    "put it there with `fhir-gym worlds upload`, or name the world that it contains"
                )

    def _written(self, start: int) -> list[ResourceStates]:
        """Return each resource that was written since a position of the log, with its earliest state."""
        first: dict[tuple[str, str], ResourceStates] = {}
        for written in self._log[start:]:
            first.setdefault((written.type, written.id), written)
        return list(first.values())

    def _resource(self, path: str) -> Resource | None:
        response = self._http.read(path)
        if response.status in (404, 410):
            return None
        if response.status in (401, 403):
            raise FhirServerError(
                f"{self.base_url} requires other credentials (status {response.status}): pass fhir_credentials, "
                "on the command line --fhir-token-from-env, --fhir-user or --fhir-header"
            )
        if response.status != 200:
            raise FhirServerError(f"{self.base_url}{path} answered {response.status}: {response.text[:300]}")
        return self._http.json(response)


def _version(resource: Resource) -> Json:
    return resource.get("meta", {}).get("versionId")
