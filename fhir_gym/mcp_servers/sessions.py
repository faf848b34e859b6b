"""A bounded table of sessions, which clients use by id and which are closed when they are idle."""

from __future__ import annotations

import hmac
import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Generic, Protocol, TypeVar

from fhir_gym.arguments import require_whole
from fhir_gym.errors import ArgumentError, FhirGymError, in_one_line
from fhir_gym.types import Json

_log = logging.getLogger(__name__)

_REMEMBERED = 4_096
"""Number of ended sessions whose ending is kept; the oldest endings are dropped first."""
_DIGEST_BYTES = 6


class Closable(Protocol):
    """The content of a session."""

    def close(self) -> None:
        """Release all resources. The table calls this method once, while no call uses the session."""


S = TypeVar("S", bound=Closable)


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a session is over.

    Attributes:
        reason: A clause such as ``"has finished"``.
        result: The result of the session as plain data; None without a result.
    """

    reason: str
    result: Mapping[str, Json] | None = None


class SessionError(FhirGymError):
    """A session id is unknown, its session is over, or the table is full. The message is meant for the client.

    Attributes:
        ending: Why the session is over; None if it is not over, or if its ending was dropped.
    """

    def __init__(self, message: str, ending: Ending | None = None) -> None:
        super().__init__(message)
        self.ending = ending


@dataclass(slots=True, eq=False)
class _Entry(Generic[S]):
    """An open session. The lock is held by the running call; `content` is None before and after use."""

    used_at: float
    content: S | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class SessionTable(Generic[S]):
    """Open sessions by id.

    The table is thread-safe: the calls of one session run one after another, the calls of other sessions beside them.

    Args:
        noun: The word for a session in messages (``"episode"``).
        most: Maximum number of open sessions.
        idle_seconds: Seconds without a call after which a session is closed.
        seed: Seed of the ids; None for ids that clients cannot guess.
        clock: Clock in seconds.

    Raises:
        ArgumentError: A limit is not positive.
    """

    def __init__(
        self,
        noun: str,
        *,
        most: int,
        idle_seconds: float,
        seed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.noun, self.most, self.idle_seconds = noun, require_whole("max_sessions", most, 1), idle_seconds
        if not idle_seconds > 0:
            raise ArgumentError(f"idle_timeout must be positive, not {idle_seconds}")
        self._clock = clock
        self._key = secrets.token_bytes(32) if seed is None else blake2b(str(seed).encode()).digest()
        self._lock = threading.Lock()  # protects the attributes below; never waits for the lock of an entry
        self._open: OrderedDict[str, _Entry[S]] = OrderedDict()  # the least recently used session comes first
        self._endings: OrderedDict[str, Ending] = OrderedDict()
        self._issued = 0
        self._stopped = False

    def __len__(self) -> int:
        return len(self._open)

    def add(self, make: Callable[[], S]) -> tuple[str, S]:
        """Open a session; return its id and content.

        Args:
            make: Function that makes the content.

        Raises:
            SessionError: The table is full, or was closed.
        """
        self.reap()
        entry: _Entry[S] = _Entry(self._clock())
        with entry.lock:
            with self._lock:
                if self._stopped:
                    raise SessionError("the server is stopping")
                if len(self._open) >= self.most:
                    raise SessionError(
                        f"all {self.most} {self.noun}s of this server are in use: finish one, or try again later"
                    )
                self._issued += 1
                id = self._id(self._issued)
                self._open[id] = entry
            try:
                entry.content = content = make()
            except BaseException:
                with self._lock:
                    self._open.pop(id, None)
                raise
        return id, content

    @contextmanager
    def use(self, id: str) -> Iterator[S]:
        """Reserve a session for one call.

        Raises:
            SessionError: The id is unknown, or the session is over.
        """
        self.reap()
        with self._lock:
            entry = self._open.get(id)
            self._touch(id, entry)
        if entry is None:
            raise self._absent(id)
        with entry.lock:
            if entry.content is None:  # the session ended while this call waited
                raise self._absent(id)
            try:
                yield entry.content
            finally:
                with self._lock:
                    self._touch(id, entry)

    def end(self, id: str, ending: Ending) -> None:
        """Close a session. The caller uses the session, or knows that no call uses it."""
        with self._lock:
            entry = self._open.pop(id, None)
            if entry is None or entry.content is None:
                return
            self._endings[id] = ending
            if len(self._endings) > _REMEMBERED:
                self._endings.popitem(last=False)
            content, entry.content = entry.content, None
        content.close()

    def reap(self) -> None:
        """Close the idle sessions."""
        ending = Ending(f"was closed because it was idle for {self.idle_seconds:g} seconds")
        while (idle := self._lock_idle()) is not None:
            self._end_locked(*idle, ending)

    def close(self) -> None:
        """Close all sessions after their running calls. `add` and `use` then raise `SessionError`."""
        with self._lock:
            self._stopped = True
            remaining = list(self._open.items())
        for id, entry in remaining:
            entry.lock.acquire()
            self._end_locked(id, entry, Ending("was closed because the server stopped"))

    def _end_locked(self, id: str, entry: _Entry[S], ending: Ending) -> None:
        """End a session whose lock this thread holds. No client waits for the result, so errors are only logged."""
        try:
            self.end(id, ending)
        except Exception as error:
            _log.error("%s %s: %s", self.noun, id, in_one_line(error))
        finally:
            entry.lock.release()

    def _lock_idle(self) -> tuple[str, _Entry[S]] | None:
        """Return an idle session whose lock this thread now holds; None if no session is idle."""
        with self._lock:
            for id, entry in self._open.items():
                if self._clock() - entry.used_at < self.idle_seconds:
                    return None
                if entry.lock.acquire(blocking=False):  # otherwise a long call is running
                    return id, entry
        return None

    def _touch(self, id: str, entry: _Entry[S] | None) -> None:
        if entry is not None and id in self._open:
            entry.used_at = self._clock()
            self._open.move_to_end(id)

    def _id(self, number: int) -> str:
        """Return an id: a number, and a digest with a key, so that clients cannot guess ids of other clients."""
        digest = blake2b(str(number).encode(), key=self._key, digest_size=_DIGEST_BYTES).hexdigest()
        return f"{number}-{digest}"

    def _absent(self, id: str) -> SessionError:
        """Return the error for an id without an open session."""
        shown = repr(id[:60])
        number = id.partition("-")[0]
        plausible = number.isascii() and number.isdigit() and len(number) < 16 and 0 < int(number) <= self._issued
        if not plausible or not hmac.compare_digest(self._id(int(number)).encode(), id.encode("utf-8", "replace")):
            return SessionError(f"there is no {self.noun} {shown}")
        ending = self._endings.get(id)
        return SessionError(f"the {self.noun} {shown} {ending.reason if ending else 'is over'}", ending)
