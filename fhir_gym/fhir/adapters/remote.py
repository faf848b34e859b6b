"""A session on a running FHIR server, such as HAPI. The session sends requests over HTTP and can undo its writes.

The session sends what the embedded server understands of a request, and nothing else (`outgoing`). Before and after
each write, it reads the resources that the write may change: the resource that the URL names, the matches of a
conditional URL, or the resources of all entries of a bundle. The server's answer names the resources that the write
created, and the server's history tells whether the write changed anything else. So the session can log, compare and
undo every write.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from time import sleep
from typing import Literal
from urllib.parse import quote, urlsplit

import httpx
from typing_extensions import override

from fhir_gym.errors import FhirServerError
from fhir_gym.fhir import serialization
from fhir_gym.fhir.adapters.credentials import Credentials
from fhir_gym.fhir.adapters.outgoing import FHIR_JSON, Outgoing, RequestPart, WriteTarget, in_requested_format
from fhir_gym.fhir.adapters.remote_client import Key, NotSentError, RemoteClient, read_all
from fhir_gym.fhir.adapters.remote_interactions import (
    ResourceStates,
    accepted_targets,
    answers,
    created,
    difference,
    interactions,
)
from fhir_gym.fhir.adapters.request_reader import RequestReader
from fhir_gym.fhir.adapters.server_lock import ServerLock
from fhir_gym.fhir.adapters.undo import SentWrite, UndoJournal, batches_by_reference, content, put_back
from fhir_gym.fhir.adapters.version_history import Version, present, state_before, versions_since
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
_SHOWN = 10
_logger = logging.getLogger(__name__)


class _UnreadableError(FhirServerError):
    """The answer neither contains the resource nor says that it does not exist."""


class _LeftError(FhirServerError):
    """Some changes cannot be undone."""

    def __init__(self, text: str, left: Sequence[str], restored: Sequence[str]) -> None:
        super().__init__(text)
        self.left, self.restored = left, restored


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
        credentials: Headers and certificate authority; None if the server needs no credentials.
        client: The HTTP client; a new one with the credentials if None.
        timeout: The time to wait for an answer, in seconds.
        lock: The lock of the server, if the caller holds it; None to hold one until the session is closed.
        undo: Earlier states of resources to restore first; None for the states in the journal.
        force: Whether to drop changes that cannot be undone from the journal, instead of raising.

    Attributes:
        restored: The resources that the constructor has restored.
        left: The changes that the constructor could not undo and has dropped from the journal.

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
        force: bool = False,
    ) -> None:
        self._http = RemoteClient(url, credentials=credentials, client=client, timeout=timeout)
        self.base_url = self._http.base_url
        self.world = world
        self.restored: tuple[str, ...] = ()
        self.left: tuple[str, ...] = ()
        self._log: list[ResourceStates] = []
        self._lost: list[SentWrite] = []
        self._time: str | None = None
        self._is_timed = False
        with ExitStack() as stack:
            stack.callback(self._http.close)
            self._reader = RequestReader(world, self.base_url)
            stack.callback(self._reader.close)
            if lock is None:
                lock = stack.enter_context(ServerLock(self.base_url))
            self._journal = UndoJournal(lock.folder, world, self.base_url, discard=undo is not None, force=force)
            states = self._journal.states if undo is None else undo
            self._check_world(states)
            self._restore(states, self._journal.unanswered, force)
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
        """Send what the embedded server understands of a request, and log its writes.

        Raises:
            FhirServerError: The server does not answer or reports that it is down, or does something else than the
                request asks for.
        """
        outgoing = self._reader.read(request)
        if isinstance(outgoing, Response):
            return outgoing
        if outgoing.writes:
            response = self._write(outgoing)
        else:
            response = self._http.send(outgoing.request, repeatable=True)
            done = interactions(outgoing.request, response, outgoing.parts, [[]] * len(outgoing.parts))
            response = replace(response, done=done)
        response = in_requested_format(request, outgoing.complete(response))
        return replace(response, body=self._http.credentials.hide_in_data(response.body))

    def _write(self, outgoing: Outgoing) -> Response:
        """Send a write, compare what the server says about it with the request, and read the changed resources."""
        request, parts = outgoing.request, outgoing.parts
        if not self._is_timed:
            self._time, self._is_timed = present(self._http), True
        states = self._before(parts)
        position = len(self._log)
        with self._noted(request, parts, states) as sent:
            response = self._http.send(request)
            told = answers(request, response)
            named = {state.key for changed in states for state in changed}
            new = [key for key in created(told, parts) if key not in named]
            if doubt := difference(response, told, parts, states) or self._unforeseen(
                sent, accepted_targets(told, states) | {*new}
            ):
                self._journal.doubt(doubt)
                self._lost[-1] = replace(sent, doubt=doubt)
                raise FhirServerError(f"{self.base_url} {doubt}, which {sent.request} does not ask for")
            self._log += [ResourceStates(kind, id, None) for kind, id in new]
            self._journal.answered(new)
        after = read_all(self._http, [state.key for changed in states for state in changed], self._now)
        states = [[state._replace(after=after[state.key]) for state in changed] for changed in states]
        kept_states = [state for changed in states for state in changed if response.status < 300 or state.effect]
        self._log[position:] = kept_states + [ResourceStates(kind, id, None) for kind, id in new]
        return replace(response, done=interactions(request, response, parts, states))

    @contextmanager
    def _noted(
        self, request: Request, parts: Sequence[RequestPart], states: Sequence[Sequence[ResourceStates]]
    ) -> Iterator[SentWrite]:
        """Note in the log and in the journal what undoes a write. Whatever fails in the block, `rollback` undoes it."""
        creates = any(part.created_type for part in parts)
        sent = SentWrite(one_line(f"{request.method} {request.path or '/'}", 200), creates, self._time)
        before = [state for changed in states for state in changed]
        self._journal.note(sent, before)
        self._log += before
        self._lost.append(sent)
        try:
            yield sent
        except NotSentError:
            del self._log[len(self._log) - len(before) :]
            self._journal.answered()
            self._lost.pop()
            raise
        self._lost.pop()

    def _unforeseen(self, sent: SentWrite, foreseen: Set[Key]) -> str | None:
        """Describe the unforeseen versions that the server has written since a write; None if there are none."""
        told = versions_since(self._http, sent.time) if sent.time else None
        if told is None:
            return None
        versions, self._time = told
        others = [f"{kind}/{id}" for kind, id in dict.fromkeys(version.key for version in versions)]
        others = [name for name in others if tuple(name.split("/")) not in foreseen]
        return f"wrote {', '.join(others[:_SHOWN])}" if others else None

    def _before(self, parts: Sequence[RequestPart]) -> list[list[ResourceStates]]:
        """Return the resources that each part of a write may change."""
        targets = [part.target for part in parts]
        current = read_all(
            self._http, [(target.type, target.id) for target in targets if target and target.id], self._now
        )
        return [self._states(target, current) if target else [] for target in targets]

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
                {
                    "resource": resource,
                    "request": {"method": "PUT", "url": f"{resource['resourceType']}/{resource['id']}"},
                }
                for resource in batch
            ]
            bundle = {"resourceType": "Bundle", "type": "transaction", "entry": entries}
            request = Request("POST", "", headers={"content-type": FHIR_JSON}, body=serialization.dumps(bundle))
            parts = [RequestPart("PUT", f"/{entry['request']['url']}") for entry in entries]
            states = self._before(parts)
            with self._noted(request, parts, states):
                response = self._http.send(request)
                self._journal.answered()
            if response.status != 200:
                raise FhirError(response.status, f"{self.base_url} refuses the set-up: {response.text[:500]}")
        self._is_timed = False

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
        self._time, self._is_timed = None, False
        left = self._find_lost()
        written = self._written(to.writes)
        current = read_all(self._http, [old.key for old in written], self._readable)
        changed = [(old, now) for old in written if content(old.before) != content(now := current[old.key])]
        refusals = put_back(self._http, changed)
        current = read_all(self._http, [old.key for old, _ in changed], self._readable)
        differing = [old for old, _ in changed if content(current[old.key]) != content(old.before)]
        left += [f"{old.type}/{old.id} still differs" for old in differing]
        restored = [f"{old.type}/{old.id}" for old, _ in changed if old not in differing]
        if left:
            raise _LeftError(self._left_over(left, refusals if differing else []), left, restored)
        if self._lost:
            self._journal.keep()  # the server may carry out such a write later; the next session looks again
            self._lost.clear()
        del self._log[to.writes :]
        self._journal.truncate(to.journal, self._log)
        return restored

    def _left_over(self, left: Sequence[str], refusals: Sequence[str]) -> str:
        """Return the message about changes that cannot be undone."""
        more = f"; and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
        why = f" (it answers {one_line(refusals[0], 300)})" if refusals else ""
        command = f"fhir-gym servers restore {self.world.name} {self.base_url}"
        return (
            f"{self.base_url} could not be restored: {'; '.join(left[:_SHOWN])}{more}{why}; everything else is as "
            f"before. To compare all resources with those of the world, run `{command} --from-world`; to leave the "
            f"rest as it is, run `{command} --force`"
        )

    def _readable(self, resource_type: str, id: str) -> Resource | None:
        """Read a resource. If the server refuses the read, return a placeholder that equals no state."""
        try:
            return self.read(resource_type, id)
        except _UnreadableError:
            return {"resourceType": resource_type, "id": id, "unreadable": True}

    def _find_lost(self) -> list[str]:
        """Log the changes of the writes without a clear answer; describe the writes whose changes remain unknown."""
        if not self._lost:
            return []
        sleep(SETTLING)
        unknown: list[str] = []
        for write in self._lost:
            told = versions_since(self._http, write.time) if write.time else None
            if told is None:
                unknown += [write.problem] if write.creates or write.doubt else []
                continue
            logged_keys = {state.key for state in self._log}
            others: dict[Key, list[Version]] = {}
            for version in told[0]:
                if version.key not in logged_keys:
                    others.setdefault(version.key, []).append(version)
            for (kind, id), versions in others.items():
                try:
                    self._log.append(ResourceStates(kind, id, state_before(self._http, versions)))
                except FhirError:
                    unknown.append(f"{write.request} changed {kind}/{id}, of which the server has no history")
        return unknown

    def _restore(self, states: Sequence[ResourceStates], unanswered: Sequence[SentWrite], force: bool) -> None:
        """Undo the changes of an interrupted session, and say so."""
        self._log, self._lost = list(states), list(unanswered)
        try:
            if self._log or self._lost:
                self.restored = tuple(self._roll_back(RemoteCheckpoint(0, 0)))
        except _LeftError as error:
            if not force:
                raise
            self.restored, self.left = tuple(error.restored), tuple(error.left)
        if force:
            self._log, self._lost = [], []
            self._journal.truncate(0, [])
        if self.restored:
            number = f"{len(self.restored)} resource{'s' if len(self.restored) > 1 else ''}"
            _logger.warning("%s: restored %s that an interrupted episode had changed", self.base_url, number)

    @override
    def changes(self, since: RemoteCheckpoint | None = None) -> list[Change]:
        listed = []
        start = since.writes if since else 0
        written = self._written(start)
        current = read_all(self._http, [states.key for states in written], self.read)
        for kind, id, before, _ in written:
            after = current[kind, id]
            seen = [
                states.after for states in self._log[start:] if (states.type, states.id) == (kind, id) and states.effect
            ]
            if before == after and (before is None or not seen):
                continue
            what: Literal["created", "updated", "deleted"] = (
                "created" if before is None else "deleted" if after is None else "updated"
            )
            listed.append(Change(what, kind, id, before, after, self._versions(kind, id, before, seen)))
        return listed

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
        version_ids = {version and _version(version) for version in versions}
        unlisted = [resource for resource in seen if (resource and _version(resource)) not in version_ids]
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
        return self._resource(f"/{quote(resource_type, safe='')}/{quote(id, safe='')}")

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
        changed = {changed_state.id for changed_state in changed_states if changed_state.type == "Patient"}
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
            raise _UnreadableError(f"{self.base_url}{path} answered {response.status}: {response.text[:300]}")
        return self._http.json(response)


def _version(resource: Resource) -> Json:
    return resource.get("meta", {}).get("versionId")
