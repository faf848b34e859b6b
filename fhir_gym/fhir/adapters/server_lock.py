"""A lock that gives one environment or run the only access to a running FHIR server, on this machine."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from platformdirs import user_state_path

from fhir_gym.errors import InfraError
from fhir_gym.fhir.adapters.credentials import ServerAddress
from fhir_gym.files import FileLock

VARIABLE = "FHIR_GYM_STATE"
"""Environment variable that names another state folder."""

_LOCK = "lock"
_PORTS = {"http": 80, "https": 443}
_LOOPBACK = ("127.0.0.1", "::1")


def state_dir() -> Path:
    """Return the state folder: `FHIR_GYM_STATE` if set, otherwise the platform's folder for state.

    It holds the journals of servers, so it must not be deleted while changes are to be undone.
    """
    chosen = os.environ.get(VARIABLE)
    return Path(chosen).expanduser() if chosen else user_state_path("fhir_gym", appauthor=False)


class ServerLock:
    """The only access to a server. The operating system releases it when the process ends, even if it is killed.

    Attributes:
        folder: The folder with this machine's files about the server.

    Raises:
        InfraError: Another process, environment or run uses the server; or the folder is not writable.
    """

    def __init__(self, url: str) -> None:
        address = ServerAddress.of(url)
        known_as = _key(address.base)
        digest = sha256(known_as.encode()).hexdigest()
        self.folder = state_dir() / "servers" / f"{ServerAddress.of(known_as).name}-{digest[:16]}"
        path = self.folder / _LOCK
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = FileLock(path)
        except BlockingIOError:
            holder = FileLock.holder(path)
            user = "another environment or run of this process" if holder == os.getpid() else f"process {holder}"
            raise InfraError(
                f"{address.base} is in use by {user}: a running FHIR server serves one environment or run at a time"
            ) from None
        except OSError as error:
            raise InfraError(
                f"{self.folder} cannot be written: {error.strerror or error}; set {VARIABLE} to use another folder"
            ) from error

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        self._file.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _key(base: str) -> str:
    """Return a text that is the same for all ways to write a base URL."""
    parts = urlsplit(base)
    host = "localhost" if parts.hostname in _LOOPBACK else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or _PORTS[parts.scheme]}{parts.path}"
