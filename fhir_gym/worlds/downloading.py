"""All resources of a FHIR server into a spool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from fhir_gym.errors import UnknownNameError, WorldError
from fhir_gym.fhir.definitions import RESOURCE_TYPES
from fhir_gym.worlds.files import Record, lines
from fhir_gym.worlds.loading import Progress
from fhir_gym.worlds.rewriting import rewrite
from fhir_gym.worlds.server import ExpiredError, Server
from fhir_gym.worlds.spool import Spool, State
from fhir_gym.worlds.survey import Survey

__all__ = ["Download"]

_RESTARTS = 3  # of one type, in one run


class Download:
    """One download, which continues where an earlier one of the same server was interrupted.

    Args:
        server: Where from.
        folder: Folder of the spool.
        types: Resource types; None for all the server tells of.
        page_size: How many resources to ask for at once.
        progress: Told how many are there, of how many.

    Raises:
        UnknownNameError: There is no such resource type.
        WorldError: The server cannot be reached or is not one of FHIR R4.
    """

    def __init__(
        self, server: Server, folder: Path, types: Sequence[str] | None, page_size: int, progress: Progress | None
    ) -> None:
        for name in types or ():
            if name not in RESOURCE_TYPES:
                raise UnknownNameError("resource type", name, RESOURCE_TYPES)
        told = server.types()
        self.server, self.page_size, self.progress = server, page_size, progress
        self.types = sorted(set(told if types is None else types) & set(RESOURCE_TYPES))
        self.unknown = sorted(set(told) - set(RESOURCE_TYPES)) if types is None else []
        self.unverified: list[str] = []
        self.spool = Spool(folder, server.base)

    def run(self) -> None:
        """Fetch everything that is not there yet."""
        expected = {name: self._count(name) for name in self.types}
        total = sum(count or 0 for count in expected.values())
        for name, count in expected.items():
            if count != 0 or self.spool.state(name):
                self._fetch(name, total)

    def records(self) -> Iterator[Record]:
        """What was fetched, type by type; absolute references to the server itself made relative."""
        relative = partial(_relative, self.server.base + "/")
        for name in self.types:
            if self.spool.state(name) and self.spool.file(name).exists():
                for record in lines(self.spool.file(name), f"{self.server.base}/{name}"):
                    rewrite(record.value, relative)
                    yield record

    def verify(self, survey: Survey) -> None:
        """Compare how many there are with what the server says now.

        Raises:
            WorldError: Not as many came as there are; those types will be fetched again.
        """
        wrong: dict[str, str] = {}
        for name in self.types:
            told = self._count(name)
            if told is None:
                self.unverified.append(name)
            elif told != survey.counts[name]:
                wrong[name] = f"{name}: {survey.counts[name]:,} came, the server has {told:,}"
        if wrong:
            self.spool.forget(wrong)
            found = "\n  ".join(wrong.values())
            raise WorldError(
                f"the server {self.server.base} changed while it was read, or its pages are incomplete; nothing was "
                f"imported, another attempt fetches these types again:\n  {found}"
            )

    def notes(self) -> tuple[str, ...]:
        """What a user should know of it."""
        notes = []
        if self.unknown:
            notes.append(f"left out, as they are not of R4: {', '.join(self.unknown)}")
        if self.unverified:
            notes.append(f"the server does not say how many there are of: {', '.join(self.unverified)}")
        return tuple(notes)

    def _count(self, resource_type: str) -> int | None:
        try:
            return self.server.count(resource_type)
        except ExpiredError as error:
            raise WorldError(f"{self.server.base} cannot be searched for {resource_type}: {error}") from error

    def _fetch(self, resource_type: str, total: int) -> None:
        first = self.server.first(resource_type, self.page_size)
        state = self.spool.state(resource_type) or self.spool.begin(resource_type, first)
        for _ in range(_RESTARTS):
            try:
                return self._go_on(state, total)
            except ExpiredError:
                reached = self.spool.state(resource_type)
                if reached is None or reached.next == first:
                    raise
                state = self.spool.begin(resource_type, first)
        raise WorldError(f"{self.server.base} forgot the search for {resource_type} {_RESTARTS} times")

    def _go_on(self, state: State, total: int) -> None:
        while state.next is not None:
            page = self.server.page(state.next, state.type)
            state = self.spool.add(state, page.resources, page.next)
            if self.progress:
                done = sum(known.resources for name in self.types if (known := self.spool.state(name)))
                self.progress(done, max(done, total))


def _relative(own: str, target: str) -> str:
    return target.removeprefix(own)
