"""The same session on a running FHIR server, HAPI for one: set up, act, compare and undo over HTTP.

Before a write is sent, what it may change is read: the resource its url names, the matches of its conditional url, or
those of every entry of a bundle. What it creates is read off the answer. So every write can be compared and undone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple
from urllib.parse import urlencode, urlsplit

import httpx

from fhir_gym.errors import InfraError
from fhir_gym.fhir import parsing
from fhir_gym.fhir.headers import JSON
from fhir_gym.fhir.messages import Request, Response
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.session import Change
from fhir_gym.fhir.store import World
from fhir_gym.types import Json, Resource

__all__ = ["RemoteCheckpoint", "RemoteSession"]

_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_VERSIONED = re.compile(r"([A-Z][A-Za-z]+)/([A-Za-z0-9\-.]{1,64})/_history/(\d+)$")
_DOWN = frozenset({502, 503, 504})
_BATCH = 200
_PAGE = 500


@dataclass(frozen=True, slots=True)
class RemoteCheckpoint:
    """A place in a remote session's log of writes."""

    writes: int


class _Written(NamedTuple):
    """One resource a write touched: what it was before, None if it was not there."""

    type: str
    id: str
    before: Resource | None


class RemoteSession:
    """`Session` on a server elsewhere.

    Args:
        url: The server's base (``http://localhost:8080/fhir``).
        world: What the server is expected to hold: tasks are drawn from it, its `now` is the episode's clock.
        client: An httpx client to use; its own if None.
        timeout: Seconds for one answer.

    Raises:
        InfraError: The server does not answer, or does not hold the world.
    """

    def __init__(self, url: str, world: World, *, client: httpx.Client | None = None, timeout: float = 60.0) -> None:
        self.base_url = url.rstrip("/")
        self.world = world
        self._client = client or httpx.Client(timeout=timeout)
        self._log: list[_Written] = []
        try:
            self._check_world()
        except BaseException:
            self._client.close()
            raise

    @property
    def now(self) -> datetime:
        """The world's present: what prompts call now. The server stamps its own times."""
        return self.world.now

    def handle(self, request: Request) -> Response:
        """Send a request and note what it wrote.

        Raises:
            InfraError: No answer came, or the server says it is down.
        """
        path = request.path if request.path.startswith("/") or not request.path else f"/{request.path}"
        writes = request.method in _WRITES and "_search" not in path
        before = list(self._targets(request)) if writes else []
        response = self._send(request, path)
        if writes and 200 <= response.status < 300:
            self._log += [*before, *_created(response)]
        return response

    def _send(self, request: Request, path: str) -> Response:
        url = f"{self.base_url}{path}" + (f"?{request.query}" if request.query else "")
        headers = {"Accept": "application/fhir+json", "Cache-Control": "no-cache", **request.headers}
        headers.pop("host", None)
        try:
            answer = self._client.request(request.method, url, headers=headers, content=request.body or None)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise InfraError(f"{self.base_url} does not answer: {type(error).__name__}: {error}") from error
        if answer.status_code in _DOWN:
            raise InfraError(f"{self.base_url} is down: it answered {answer.status_code}")
        body = _compact(answer)
        kept = ("Content-Type", "Location", "Content-Location", "ETag", "Last-Modified")
        return Response(answer.status_code, {k: answer.headers[k] for k in kept if k in answer.headers}, body)

    def _targets(self, request: Request) -> Iterator[_Written]:
        """What a write may change, as it is now."""
        if request.method == "POST" and not request.path.strip("/"):
            try:
                entries = json.loads(request.body).get("entry", [])
                asked = [(e["request"]["method"], e["request"]["url"]) for e in entries]
            except (ValueError, TypeError, KeyError, AttributeError):
                return  # the server refuses such a bundle
        else:
            asked = [(request.method, f"{request.path.strip('/')}?{request.query}")]
        for method, url in asked:
            path, _, query = str(url).removeprefix(self.base_url).strip("/").partition("?")
            kind, _, rest = path.partition("/")
            if method == "POST" or not kind:
                continue
            if rest:
                id = rest.partition("/")[0]
                yield _Written(kind, id, self.read(kind, id))
            elif query:
                for match in self.get(f"/{kind}?{query}").get("entry", []):
                    yield _Written(kind, match["resource"]["id"], match["resource"])

    def load(self, resources: Iterable[Resource], *, next_id: int | None = None) -> None:
        """PUT resources at their ids, in transactions, so that their references may come in any order.

        Args:
            resources: Each with `resourceType` and `id`.
            next_id: Not used: a server elsewhere counts its own ids.

        Raises:
            FhirError: The server refuses them (HAPI takes no ids made of digits only).
        """
        pending = list(resources)
        for start in range(0, len(pending), _BATCH):
            entries = [
                {"resource": r, "request": {"method": "PUT", "url": f"{r['resourceType']}/{r['id']}"}}
                for r in pending[start : start + _BATCH]
            ]
            bundle = {"resourceType": "Bundle", "type": "transaction", "entry": entries}
            headers = {"content-type": "application/fhir+json"}
            response = self.handle(Request("POST", "", headers=headers, body=parsing.dumps(bundle)))
            if response.status != 200:
                raise FhirError(response.status, f"{self.base_url} refuses the set-up: {response.text[:500]}")

    def checkpoint(self) -> RemoteCheckpoint:
        """Remember this state."""
        return RemoteCheckpoint(len(self._log))

    def rollback(self, to: RemoteCheckpoint | None = None) -> None:
        """Undo what this session wrote since the checkpoint, or since it began.

        Resources come back with their earlier content, as new versions; created ones are deleted.

        Raises:
            InfraError: Something could not be undone; the message says what.
        """
        start = to.writes if to else 0
        restored: list[Resource] = []
        created: list[str] = []
        for kind, id, before in self._touched(start):
            now = self.read(kind, id)
            if before is None and now is not None:
                created.append(f"{kind}/{id}")
            elif before is not None and _content(before) != _content(now):
                restored.append({k: v for k, v in before.items() if k != "meta"} | _tags(before))
        self._undo(restored, list(reversed(created)))
        del self._log[start:]

    def changes(self, since: RemoteCheckpoint | None = None) -> list[Change]:
        """What differs from a checkpoint, in order of first write."""
        found = []
        for kind, id, before in self._touched(since.writes if since else 0):
            after = self.read(kind, id)
            if before == after:
                continue
            what: Literal["created", "updated", "deleted"] = (
                "created" if before is None else "deleted" if after is None else "updated"
            )
            found.append(Change(what, kind, id, before, after))
        return found

    def get(self, url: str) -> Json:
        """The parsed body of a GET; `url` relative to the base or absolute."""
        parts = urlsplit(url.removeprefix(self.base_url))
        return self.handle(Request("GET", parts.path, parts.query)).json()

    def read(self, resource_type: str, id: str) -> Resource | None:
        """The current resource; None if unknown or deleted."""
        return self._resource(f"/{resource_type}/{id}")

    def search(self, resource_type: str, **params: object) -> list[Resource]:
        """All matches of a search; parameters as for `Session.search`."""
        pairs = [
            (name[0] + name[1:].replace("_", "-"), str(value))
            for name, values in params.items()
            for value in (values if isinstance(values, (list, tuple)) else [values])
        ]
        url: str | None = f"/{resource_type}?{urlencode([*pairs, ('_count', _PAGE)])}"
        found: list[Resource] = []
        while url:
            parts = urlsplit(url.removeprefix(self.base_url))
            response = self.handle(Request("GET", parts.path, parts.query))
            bundle = response.json()
            if response.status != 200:
                raise FhirError(response.status, bundle["issue"][0]["diagnostics"])
            entries = bundle.get("entry", [])
            found += [e["resource"] for e in entries if e.get("search", {}).get("mode") == "match"]
            url = next((link["url"] for link in bundle.get("link", []) if link["relation"] == "next"), None)
        return found

    def close(self) -> None:
        """Undo everything this session wrote and close the connection; may be called twice."""
        if not self._client.is_closed:
            try:
                self.rollback()
            finally:
                self._client.close()

    def _check_world(self) -> None:
        ids = self.world.ids("Patient")
        for id in ids[:1] + ids[-1:]:
            if self.read("Patient", id) is None:
                raise InfraError(
                    f"{self.base_url} does not hold the world {self.world.name!r}: it knows no Patient/{id}; "
                    "load the world's resources there, or name the world it holds"
                )

    def _touched(self, start: int) -> list[_Written]:
        """Each resource written since, once, as it was before the first such write."""
        first: dict[tuple[str, str], _Written] = {}
        for written in self._log[start:]:
            first.setdefault((written.type, written.id), written)
        return list(first.values())

    def _undo(self, restored: list[Resource], created: list[str]) -> None:
        entries: list[dict[str, Any]] = [
            {"resource": r, "request": {"method": "PUT", "url": f"{r['resourceType']}/{r['id']}"}} for r in restored
        ]
        entries += [{"request": {"method": "DELETE", "url": url}} for url in created]
        if not entries:
            return
        bundle = {"resourceType": "Bundle", "type": "transaction", "entry": entries}
        headers = {"content-type": "application/fhir+json"}
        response = self.handle(Request("POST", "", headers=headers, body=parsing.dumps(bundle)))
        if response.status != 200:
            names = ", ".join(e["request"]["url"] for e in entries[:10])
            raise InfraError(f"{self.base_url} could not undo writes to {names}: {response.text[:300]}")

    def _resource(self, path: str) -> Resource | None:
        response = self.handle(Request("GET", path))
        if response.status in (404, 410):
            return None
        if response.status != 200:
            raise InfraError(f"{self.base_url}{path} answered {response.status}: {response.text[:300]}")
        resource: Resource = response.json()
        return resource


def _compact(answer: httpx.Response) -> bytes:
    """The body as the embedded server would print it: one line of JSON."""
    if answer.headers.get("Content-Type", "").startswith(JSON.partition(";")[0]) and answer.content:
        return parsing.dumps(parsing.loads(answer.content))
    return answer.content


def _created(response: Response) -> Iterator[_Written]:
    """What a successful write says it created."""
    body = response.json() if response.body.startswith(b"{") else {}
    if body.get("type") in ("transaction-response", "batch-response"):
        answers = [entry.get("response", {}) for entry in body.get("entry", [])]
        places = [a.get("location") for a in answers if str(a.get("status", "")).startswith("201")]
    else:
        places = [response.headers.get("Content-Location")] if response.status == 201 else []
    for place in places:
        if place and (match := _VERSIONED.search(place)):
            yield _Written(match[1], match[2], None)


def _content(resource: Resource | None) -> Resource | None:
    return None if resource is None else {k: v for k, v in resource.items() if k != "meta"}


def _tags(resource: Resource) -> Resource:
    kept = {k: v for k, v in resource.get("meta", {}).items() if k in ("profile", "security", "tag")}
    return {"meta": kept} if kept else {}
