"""A session that remembers responses, because most policies send the same requests in the same states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

from typing_extensions import override

from fhir_gym.fhir import Session, World
from fhir_gym.fhir.messages import Request, Response
from fhir_gym.fhir.serialization import dumps
from fhir_gym.fhir.session import Checkpoint
from fhir_gym.tasks.grading.plain_requests import parse_plain
from fhir_gym.types import Resource

_MOST_REMEMBERED = 128 * 1024 * 1024
"""Total size in bytes of the responses that a session remembers. If it is exceeded, the session forgets all of them."""

_EVERY_TYPE = ""
"""Stands for all resource types."""

_Key: TypeAlias = tuple[object, ...]


class _Known(NamedTuple):
    """The response to a read or search, and the number of tokens that it took."""

    response: Response
    tokens: int


class MemoizedSession(Session):
    """A session that answers a read or search from memory if it has answered it before and nothing relevant changed.

    A plain read or search depends on the writes of its types, another one on all writes. A response from memory has the
    time of the first such response, and takes no work budget. The session remembers what follows from one checkpoint,
    the latest that it made or returned to.

    Args:
        world: The world.
        settings: Arguments of `Session`.
    """

    def __init__(self, world: World, **settings: Any) -> None:
        self._known: dict[_Key, _Known] = {}
        self._versions: dict[str, int] = {}
        """A number for what has been written of each type since the checkpoint; 0 if nothing was."""
        self._numbers: dict[_Key, int] = {}
        self._remembered = 0
        super().__init__(world, **settings)

    @override
    def handle(self, request: Request) -> Response:
        sent = (request.method, request.path, request.query, tuple(request.headers.items()), request.body)
        plain = parse_plain(request)
        versions = (self._versions.get(one, 0) for one in ((_EVERY_TYPE,) if plain is None else sorted(plain.types)))
        key = (*versions, *sent)
        known = self._known.get(key)
        if known is not None:
            self._counters.tokens += known.tokens
            return known.response
        tokens, now = self._counters.tokens, self.now
        response = super().handle(request)
        if not all(one.looks for one in response.done):
            written = {one.resource_type for one in response.done if one.effect}
            self._count(written, (now, *sent, response.status, response.done, response.content))
        elif b"_getpages" not in response.body:  # a paged search stores its result on the server
            self._known[key] = _Known(response, self._counters.tokens - tokens)
            self._remembered += len(response.content)
        return response

    @override
    def load(self, resources: Iterable[Resource], **settings: Any) -> None:
        given, now = list(resources), self.now
        super().load(given, **settings)
        self._count({one["resourceType"] for one in given}, (now, dumps(given), *settings.items()))

    @override
    def checkpoint(self) -> Checkpoint:
        made = self._checkpoint = super().checkpoint()
        self._forget()
        return made

    @override
    def rollback(self, to: Checkpoint | None = None) -> None:
        to = to or self._bare
        super().rollback(to)
        if to is not self._checkpoint or self._remembered > _MOST_REMEMBERED:
            self._checkpoint = to
            self._forget()
        self._versions = {}

    @override
    @contextmanager
    def returned_to(self, checkpoint: Checkpoint) -> Iterator[None]:
        known, versions = self._known, self._versions
        with super().returned_to(checkpoint):
            self._known, self._versions = {}, {}
            yield
        self._known, self._versions = known, versions

    def _forget(self) -> None:
        self._known, self._versions, self._numbers, self._remembered = {}, {}, {}, 0

    def _count(self, types: Iterable[str], write: _Key) -> None:
        """Number what has been written after a further write of some types."""
        digest = blake2b(repr(write).encode("utf-8", "surrogatepass"), digest_size=16).digest()  # bodies take memory
        for one in (_EVERY_TYPE, *types):
            history = (one, self._versions.get(one, 0), digest)
            self._versions[one] = self._numbers.setdefault(history, len(self._numbers) + 1)
