"""URLs of the viewer's pages: paths on the server, or names of files in an export."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from hashlib import blake2b
from types import MappingProxyType
from typing import Protocol
from urllib.parse import quote, urlencode

from typing_extensions import override

_UNSAFE = re.compile(r"[^A-Za-z0-9.-]")
_EMPTY: Mapping[str, object] = MappingProxyType({})


class Links(Protocol):
    """The URLs that templates use. A link is None if the page does not exist, as some pages do not in an export."""

    is_export: bool
    """Whether the links are those of an export, which has no forms."""

    def asset(self, name: str) -> str:
        """Return the URL of a static file, such as ``viewer.css``."""

    def episodes(self, **query: object) -> str | None:
        """Return the URL of the table of episodes; `query` contains filters, the order and the page."""

    def comparison(self, **query: object) -> str | None:
        """Return the URL of the comparison of two runs."""

    def episode(self, file: int, line: int, query: Mapping[str, object] = _EMPTY) -> str | None:
        """Return the URL of an episode; `query` is that of the table from which the link comes."""

    def gold(self, file: int, line: int) -> str | None:
        """Return the URL of an episode's gold solution."""

    def record(self, file: int, line: int) -> str | None:
        """Return the URL of an episode's record as JSON."""

    def pair(self, first: tuple[int, int], second: tuple[int, int]) -> str | None:
        """Return the URL of two episodes side by side, each given by its file and line."""

    def worlds(self) -> str | None:
        """Return the URL of the list of worlds."""

    def world(self, world: str) -> str | None:
        """Return the URL of a world."""

    def search(self, world: str, request: str) -> str | None:
        """Return the URL of the answer to a search such as ``Patient?name=x``."""

    def resource(self, world: str, resource_type: str, id: str) -> str | None:
        """Return the URL of a resource."""

    def patient(self, world: str, id: str) -> str | None:
        """Return the URL of a patient's timeline."""

    def play(self) -> str | None:
        """Return the URL of the page on which a person starts to play a task."""


class ServerLinks(Links):
    """The URLs of the running viewer."""

    is_export = False

    @override
    def asset(self, name: str) -> str:
        return f"/static/{name}"

    @override
    def episodes(self, **query: object) -> str:
        return _with_query("/", query)

    @override
    def comparison(self, **query: object) -> str:
        return _with_query("/compare", query)

    @override
    def episode(self, file: int, line: int, query: Mapping[str, object] = _EMPTY) -> str:
        return _with_query(f"/episodes/{file}/{line}", query)

    @override
    def gold(self, file: int, line: int) -> str:
        return f"/episodes/{file}/{line}/gold"

    @override
    def record(self, file: int, line: int) -> str:
        return f"/episodes/{file}/{line}/record"

    @override
    def pair(self, first: tuple[int, int], second: tuple[int, int]) -> str:
        return f"/episodes/{first[0]}/{first[1]}/beside/{second[0]}/{second[1]}"

    @override
    def worlds(self) -> str:
        return "/worlds"

    @override
    def world(self, world: str) -> str:
        return f"/worlds/{_segment(world)}"

    @override
    def search(self, world: str, request: str) -> str:
        return _with_query(f"/worlds/{_segment(world)}/search", {"request": request})

    @override
    def resource(self, world: str, resource_type: str, id: str) -> str:
        return f"/worlds/{_segment(world)}/{_segment(resource_type)}/{_segment(id)}"

    @override
    def patient(self, world: str, id: str) -> str:
        return f"/worlds/{_segment(world)}/Patient/{_segment(id)}/timeline"

    @override
    def play(self) -> str:
        return "/play"


class FileLinks(Links):
    """The names of the files of an export, which are all in one folder.

    Attributes:
        exported: Names of the files that the export contains; other links are None. None if all are wanted, as while
            the export's files are listed.
    """

    is_export = True

    def __init__(self, exported: Collection[str] | None = None) -> None:
        self.exported = exported

    def _file(self, *parts: object) -> str | None:
        """Return the name of a page; parts with unusual characters get a digest, so that names stay unique."""
        name = "-".join(map(_part, parts)) + ".html"
        return name if self.exported is None or name in self.exported else None

    @override
    def asset(self, name: str) -> str:
        return name

    @override
    def episodes(self, **query: object) -> str | None:
        parts = [f"{name}_{_part(value)}" for name, value in sorted(query.items()) if value not in (None, "")]
        return self._file("episodes", *parts) if parts else self._file("index")

    @override
    def comparison(self, **query: object) -> str | None:
        return self._file("compare", *(f"{name}_{_part(value)}" for name, value in sorted(query.items())))

    @override
    def episode(self, file: int, line: int, query: Mapping[str, object] = _EMPTY) -> str | None:
        return self._file("episode", file, line)

    @override
    def gold(self, file: int, line: int) -> str | None:
        return self._file("gold", file, line)

    @override
    def record(self, file: int, line: int) -> str | None:
        return None

    @override
    def pair(self, first: tuple[int, int], second: tuple[int, int]) -> str | None:
        return None

    @override
    def worlds(self) -> str | None:
        return self._file("worlds")

    @override
    def world(self, world: str) -> str | None:
        return self._file("world", world)

    @override
    def search(self, world: str, request: str) -> str | None:
        return self._file("search", world, request)

    @override
    def resource(self, world: str, resource_type: str, id: str) -> str | None:
        return self._file("resource", world, resource_type, id)

    @override
    def patient(self, world: str, id: str) -> str | None:
        return self._file("patient", world, id)

    @override
    def play(self) -> str | None:
        return None


def _segment(text: str) -> str:
    """Return a text as one segment of a path; a dot segment would be removed by clients."""
    return quote(text, safe="", errors="replace") if text.strip(".") else text.replace(".", "%2E")


def _with_query(path: str, query: Mapping[str, object]) -> str:
    given = [(name, value) for name, value in query.items() if value not in (None, "")]
    return f"{path}?{urlencode(given, errors='replace')}" if given else path


def _part(value: object) -> str:
    text = str(value)
    safe = _UNSAFE.sub("_", text)[:60]
    return safe if safe == text else f"{safe}_{blake2b(text.encode('utf-8', 'replace'), digest_size=6).hexdigest()}"
