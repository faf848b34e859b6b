"""A running FHIR server that one environment or run uses alone."""

from __future__ import annotations

from contextlib import AbstractContextManager

from typing_extensions import override

from fhir_gym.fhir.adapters.base_url_rewriting import RenamedSession
from fhir_gym.fhir.adapters.credentials import Credentials
from fhir_gym.fhir.adapters.server_lock import ServerLock
from fhir_gym.fhir.protocol import FhirSession
from fhir_gym.fhir.world import World


class RunningServer(AbstractContextManager["RunningServer"]):
    """A running FHIR server, locked until `release`.

    Args:
        url: Base URL of the server.
        credentials: Headers and certificate authority; None for a server that needs none.
        shown_url: Base URL that agents see and use; None for the server's own.

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
