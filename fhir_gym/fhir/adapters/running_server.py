"""A running FHIR server that one environment or run uses alone, perhaps with another base URL for the agent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import quote

from typing_extensions import override

from fhir_gym.fhir import serialization
from fhir_gym.fhir.adapters.credentials import Credentials
from fhir_gym.fhir.adapters.server_lock import ServerLock
from fhir_gym.fhir.messages import Request, Response
from fhir_gym.fhir.protocol import Change, FhirSession
from fhir_gym.fhir.world import World
from fhir_gym.types import Json, Resource

_END = rb"(?![A-Za-z0-9._~-]|%(?!2F|3F|23))"  # http://host/fhir2 is another server than http://host/fhir


class RenamedSession(FhirSession):
    """A session under another base URL.

    Requests may contain the other URL, for example in a Bundle. Answers contain it instead of the server's URL.
    The results of `read`, `versions`, `search` and `changes` keep the server's URL.

    Args:
        base_url: The base URL that the agent sees.
    """

    def __init__(self, session: FhirSession, base_url: str) -> None:
        self._session, self.base_url = session, base_url
        self._outwards = _renamer(session.base_url, base_url)
        self._inwards = _renamer(base_url, session.base_url)

    @property
    @override
    def now(self) -> datetime:
        return self._session.now

    @override
    def set_clock(self, now: datetime) -> None:
        self._session.set_clock(now)

    @override
    def handle(self, request: Request) -> Response:
        query = self._inwards(request.query.encode()).decode()
        response = self._session.handle(replace(request, query=query, body=self._inwards(request.body)))
        headers = {name: self._outwards(value.encode()).decode() for name, value in response.headers.items()}
        return replace(response, headers=headers, body=self._outwards(response.body))

    @override
    def load(self, resources: Iterable[Resource], *, next_id: int | None = None, normal: bool = False) -> None:
        self._session.load(resources, next_id=next_id, normal=normal)

    @override
    def checkpoint(self) -> Any:
        return self._session.checkpoint()

    @override
    def rollback(self, to: Any = None) -> None:
        self._session.rollback(to)

    @override
    def changes(self, since: Any = None) -> list[Change]:
        return self._session.changes(since)

    @override
    def get(self, url: str) -> Json:
        return serialization.loads(self._outwards(serialization.dumps(self._session.get(self._own(url)))))

    @override
    def read(self, resource_type: str, id: str) -> Resource | None:
        return self._session.read(resource_type, id)

    @override
    def versions(self, resource_type: str, id: str, count: int) -> list[Resource | None]:
        return self._session.versions(resource_type, id, count)

    @override
    def search(self, resource_type: str, **params: object) -> list[Resource]:
        return self._session.search(resource_type, **params)

    @override
    def close(self) -> None:
        self._session.close()

    def _own(self, url: str) -> str:
        return self._inwards(url.encode()).decode()


def _renamer(old: str, new: str) -> Callable[[bytes], bytes]:
    """Return a function that replaces a base URL, also where it is percent-encoded."""
    forms = {old.encode(): new.encode(), quote(old, safe="").encode(): quote(new, safe="").encode()}
    pattern = re.compile(b"(" + b"|".join(map(re.escape, forms)) + b")" + _END)

    def rename(content: bytes) -> bytes:
        return pattern.sub(lambda match: forms[match.group()], content)

    return rename


class RunningServer(AbstractContextManager["RunningServer"]):
    """A running FHIR server, locked until `release`.

    Args:
        url: Base URL of the server.
        credentials: Headers and certificate authority; None if the server needs no credentials.
        shown_url: Base URL that agents see and use; None for the server's base URL.

    Raises:
        InfraError: Another process, environment or run uses the server.
    """

    def __init__(self, url: str, credentials: Credentials | None = None, *, shown_url: str | None = None) -> None:
        self.url = url
        self._credentials, self._shown_url = credentials, shown_url
        self._lock = ServerLock(url)

    def session(self, world: World, *, timeout: float = 60.0) -> FhirSession:
        """Start a session; see `RemoteSession`."""
        from fhir_gym.fhir.adapters.remote import RemoteSession

        session = RemoteSession(self.url, world, credentials=self._credentials, timeout=timeout, lock=self._lock)
        return session if self._shown_url in (None, session.base_url) else RenamedSession(session, self._shown_url)

    def release(self) -> None:
        """Unlock the server; a second call does nothing."""
        self._lock.release()

    @override
    def __exit__(self, *_: object) -> None:
        self.release()
