"""A session on a running FHIR server, such as HAPI. The session sends requests over HTTP and can undo its writes.

Before and after each write, the session reads the resources that the write may change: the resource that the URL names,
the matches of a conditional URL, or the resources of all entries of a bundle. The server's answer names the resources
that the write created. So the session can log, compare and undo every write.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import httpx
from typing_extensions import override

from fhir_gym.errors import InfraError
from fhir_gym.fhir import serialization
from fhir_gym.fhir.adapters.credentials import Credentials
from fhir_gym.fhir.adapters.remote_client import NotSentError, RemoteClient
from fhir_gym.fhir.adapters.remote_interactions import ResourceStates, created, interactions
from fhir_gym.fhir.adapters.write_targets import RequestPart, WriteTarget, is_write, request_parts, targets
from fhir_gym.fhir.messages import JSON, Request, Response
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.protocol import Change, FhirSession
from fhir_gym.fhir.urls import search_query
from fhir_gym.fhir.world import World
from fhir_gym.types import Json, Resource

_BATCH = 200
_PAGE = 500


@dataclass(frozen=True, slots=True)
class RemoteCheckpoint:
    """A position in a remote session's log of writes."""

    writes: int


class RemoteSession(FhirSession):
    """A session on a remote server.

    Args:
        url: The server's base URL (``http://localhost:8080/fhir``).
        world: The world that the server must contain. Tasks use the world's records, and the world's `now` is the
            episode's clock.
        credentials: Headers and certificate authority; None for a server that needs none.
        client: The HTTP client; a new one with the credentials if None.
        timeout: The time to wait for an answer, in seconds.

    Raises:
        InfraError: The server does not answer, or does not contain the world, or the CA file cannot be used.
    """

    def __init__(
        self,
        url: str,
        world: World,
        *,
        credentials: Credentials | None = None,
        client: httpx.Client | None = None,
        timeout: float = 60.0,
    ) -> None:
        self._http = RemoteClient(url, credentials=credentials, client=client, timeout=timeout)
        self.base_url = self._http.base_url
        self.world = world
        self._log: list[ResourceStates] = []
        self._lost: list[str] = []
        try:
            self._check_world()
        except BaseException:
            self._http.close()
            raise

    @property
    @override
    def now(self) -> datetime:
        """The world's present, which prompts state; the server's own timestamps may differ."""
        return self.world.now

    @override
    def handle(self, request: Request) -> Response:
        """Send a request and log its writes.

        Raises:
            InfraError: The server does not answer or reports that it is down.
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
        try:
            response = self._http.send(request)
        except InfraError as error:
            if not isinstance(error, NotSentError):
                self._log += [one for some in states for one in some]
                self._lost.append(f"{request.method} {request.path or '/'}")
            raise
        if logged:
            states = [[one._replace(after=self._now(one.type, one.id)) for one in some] for some in states]
        self._log += [one for some in states for one in some if response.status < 300 or one.effect]
        if 200 <= response.status < 300:
            self._log += [ResourceStates(kind, id, None) for kind, id in created(response)]
            if parts is None:
                self._lost.append(f"{request.method} {request.path or '/'}")
        return replace(response, done=interactions(request, response, parts or [], states))

    def _before(self, request: Request) -> tuple[list[RequestPart] | None, list[list[ResourceStates]]]:
        """Return the parts of a write, and the resources that each part may change.

        The parts are None for an unreadable bundle. If the server accepts such a bundle, the bundle's writes cannot be
        undone.
        """
        try:
            parts = request_parts(request, self.base_url)
        except (ValueError, RecursionError):
            return None, []
        return parts, [[state for target in targets(one) for state in self._states(target)] for one in parts]

    def _states(self, target: WriteTarget) -> list[ResourceStates]:
        """Return the current state of the resources that a write may change."""
        if target.id:
            return [ResourceStates(target.type, target.id, self._now(target.type, target.id))]
        try:
            matches = self._http.matches(f"/{quote(target.type)}?{target.query}&_count={_PAGE}")
        except FhirError:
            return []  # the server will refuse the write as well
        return [ResourceStates(target.type, match["id"], match) for match in matches]

    def _now(self, resource_type: str, id: str) -> Resource | None:
        """Return the current resource with an id; None if no resource has the id, or the id is invalid."""
        response = self._http.read(f"/{quote(resource_type)}/{quote(id)}")
        if response.status >= 500:
            raise InfraError(f"{self.base_url} answered {response.status} for {resource_type}/{id}")
        return self._http.json(response) if response.status == 200 else None

    @override
    def load(self, resources: Iterable[Resource], *, next_id: int | None = None, normal: bool = False) -> None:
        """PUT resources at their ids, in transactions; HAPI refuses ids that consist of digits only."""
        pending = list(resources)
        for start in range(0, len(pending), _BATCH):
            entries = [
                {"resource": r, "request": {"method": "PUT", "url": f"{r['resourceType']}/{r['id']}"}}
                for r in pending[start : start + _BATCH]
            ]
            bundle = {"resourceType": "Bundle", "type": "transaction", "entry": entries}
            headers = {"content-type": "application/fhir+json"}
            response = self._write(Request("POST", "", headers=headers, body=serialization.dumps(bundle)), logged=False)
            if response.status != 200:
                raise FhirError(response.status, f"{self.base_url} refuses the set-up: {response.text[:500]}")

    @override
    def checkpoint(self) -> RemoteCheckpoint:
        return RemoteCheckpoint(len(self._log))

    @override
    def rollback(self, to: RemoteCheckpoint | None = None) -> None:
        """Undo this session's writes since a checkpoint, or since the session began.

        Changed resources get their earlier content as a new version; created resources are deleted.

        Raises:
            InfraError: A write could not be undone; the message names it.
        """
        start = to.writes if to else 0
        written = [(one, self.read(one.type, one.id)) for one in self._written(start)]
        changed = [(old, now) for old, now in written if _content(old.before) != _content(now)]
        self._undo(changed)
        wrong = [f"{what} has an unknown outcome" for what in self._lost]
        for old, _ in changed:
            if _content(self.read(old.type, old.id)) != _content(old.before):
                wrong.append(f"{old.type}/{old.id} still differs")
        if wrong:
            raise InfraError(f"{self.base_url} could not be restored: {'; '.join(wrong)}")
        del self._log[start:]

    @override
    def changes(self, since: RemoteCheckpoint | None = None) -> list[Change]:
        found = []
        start = since.writes if since else 0
        for kind, id, before, _ in self._written(start):
            after = self.read(kind, id)
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
        writes that made no new version.
        """
        response = self._http.send(Request("GET", f"/{quote(resource_type)}/{quote(id)}/_history", f"_count={_PAGE}"))
        if response.status != 200:
            return ()
        versions: list[Resource | None] = []
        for entry in self._http.json(response).get("entry", []):
            resource = entry.get("resource")
            if before is not None and resource and _version(resource) == _version(before):
                break
            versions.append(resource)
        return (*seen, *reversed(versions))

    @override
    def get(self, url: str) -> Json:
        parts = urlsplit(url.removeprefix(self.base_url))
        return self._http.json(self.handle(Request("GET", parts.path, parts.query)))

    @override
    def read(self, resource_type: str, id: str) -> Resource | None:
        return self._resource(f"/{resource_type}/{id}")

    @override
    def search(self, resource_type: str, **params: object) -> list[Resource]:
        return self._http.matches(f"/{resource_type}?{search_query(params, _PAGE)}")

    @override
    def close(self) -> None:
        if not self._http.is_closed:
            try:
                self.rollback()
            finally:
                self._http.close()

    def _check_world(self) -> None:
        ids = self.world.ids("Patient")
        for id in ids[:1] + ids[-1:]:
            if self.read("Patient", id) is None:
                if b"CapabilityStatement" not in self._http.send(Request("GET", "/metadata")).body:
                    raise InfraError(f"{self.base_url} is not the base URL of a FHIR server: it has no /metadata")
                raise InfraError(
                    f"{self.base_url} does not contain the world {self.world.name!r}: it has no Patient/{id}; "
                    "put it there with `fhir-gym worlds upload`, or name the world that it contains"
                )

    def _written(self, start: int) -> list[ResourceStates]:
        """Return each resource that was written since a position of the log, with its earliest state."""
        first: dict[tuple[str, str], ResourceStates] = {}
        for written in self._log[start:]:
            first.setdefault((written.type, written.id), written)
        return list(first.values())

    def _undo(self, changed: list[tuple[ResourceStates, Resource | None]]) -> None:
        """Restore changed resources, delete new resources, and remove labels that a PUT would keep."""
        entries: list[dict[str, Any]] = []
        for old, now in changed:
            url = f"{old.type}/{old.id}"
            if old.before is None:
                entries.insert(0, {"request": {"method": "DELETE", "url": url}})  # undo the newest creation first
            else:
                body = {name: value for name, value in old.before.items() if name != "meta"} | _labels(old.before)
                entries.append({"resource": body, "request": {"method": "PUT", "url": url}})
                self._remove_labels(url, _added(_labels(old.before), _labels(now or {})))
        if entries:
            self._post("", {"resourceType": "Bundle", "type": "transaction", "entry": entries})

    def _remove_labels(self, url: str, meta: Resource) -> None:
        if meta:
            parameter = {"name": "meta", "valueMeta": meta}
            self._post(f"/{url}/$meta-delete", {"resourceType": "Parameters", "parameter": [parameter]})

    def _post(self, path: str, resource: Resource) -> None:
        body = serialization.dumps(resource)
        response = self._http.send(Request("POST", path, headers={"content-type": JSON}, body=body))
        if response.status != 200:
            asked = ", ".join(e["request"]["url"] for e in resource.get("entry", [])[:10]) or path
            raise InfraError(f"{self.base_url} could not undo writes to {asked}: {response.text[:300]}")

    def _resource(self, path: str) -> Resource | None:
        response = self._http.read(path)
        if response.status in (404, 410):
            return None
        if response.status in (401, 403):
            raise InfraError(
                f"{self.base_url} requires other credentials (status {response.status}): pass fhir_credentials, "
                "on the command line --fhir-token-from-env, --fhir-user or --fhir-header"
            )
        if response.status != 200:
            raise InfraError(f"{self.base_url}{path} answered {response.status}: {response.text[:300]}")
        return self._http.json(response)


def _content(resource: Resource | None) -> bytes:
    """Return the content to compare, without version and time and with labels in a fixed order; empty for None."""
    if resource is None:
        return b""
    labels = {
        name: sorted(map(serialization.dumps, values)) for name, values in _labels(resource).get("meta", {}).items()
    }
    return serialization.dumps({**resource, "meta": None}) + repr(labels).encode()


def _version(resource: Resource) -> Json:
    return resource.get("meta", {}).get("versionId")


def _labels(resource: Resource) -> Resource:
    kept = {k: v for k, v in resource.get("meta", {}).items() if k in ("profile", "security", "tag")}
    return {"meta": kept} if kept else {}


def _added(before: Resource, now: Resource) -> Resource:
    """Return the labels that were added."""
    old = before.get("meta", {})
    added = {name: [v for v in values if v not in old.get(name, [])] for name, values in now.get("meta", {}).items()}
    return {name: values for name, values in added.items() if values}
