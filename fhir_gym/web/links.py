"""URLs of the viewer's pages: paths on the server, or names of files in an export."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from hashlib import blake2b
from types import MappingProxyType
from urllib.parse import quote, urlencode

from typing_extensions import override

_UNSAFE = re.compile(r"[^A-Za-z0-9.-]")
_EMPTY: Mapping[str, object] = MappingProxyType({})


class Links:
    """The URLs on the running viewer, for templates. A link is None if the page does not exist, as in an export."""

    is_export = False
    """Whether the links are those of an export, which has no forms."""

    def asset(self, name: str) -> str:
        """Return the URL of a static file, such as ``viewer.css``."""
        return f"/static/{name}"

    def episodes(self, **query: object) -> str | None:
        """Return the URL of the table of episodes; `query` contains filters, the order and the page."""
        return _with_query("/", query)

    def comparison(self, **query: object) -> str | None:
        """Return the URL of the comparison of two runs."""
        return _with_query("/compare", query)

    def episode(self, file: int, line: int, query: Mapping[str, object] = _EMPTY, part: int = 1) -> str | None:
        """Return the URL of an episode.

        Args:
            file: Index of the file.
            line: Number of the line, from 1.
            query: The query of the table from which the link comes.
            part: Which part of a long episode to show.
        """
        return _with_query(f"/episodes/{file}/{line}", {**query, **({"part": part} if part > 1 else {})})

    def gold(self, file: int, line: int) -> str | None:
        """Return the URL of an episode's gold solution."""
        return f"/episodes/{file}/{line}/gold"

    def record(self, file: int, line: int) -> str | None:
        """Return the URL of an episode's record as JSON."""
        return f"/episodes/{file}/{line}/record"

    def pair(self, first: tuple[int, int], second: tuple[int, int]) -> str | None:
        """Return the URL of two episodes side by side, each given by its file and line."""
        return f"/episodes/{first[0]}/{first[1]}/beside/{second[0]}/{second[1]}"

    def worlds(self) -> str | None:
        """Return the URL of the list of worlds."""
        return "/worlds"

    def world(self, world: str) -> str | None:
        """Return the URL of a world."""
        return f"/worlds/{_segment(world)}"

    def search(self, world: str, request: str) -> str | None:
        """Return the URL of the answer to a search such as ``Patient?name=x``."""
        return _with_query(f"/worlds/{_segment(world)}/search", {"request": request})

    def resource(self, world: str, resource_type: str, id: str) -> str | None:
        """Return the URL of a resource."""
        return f"/worlds/{_segment(world)}/{_segment(resource_type)}/{_segment(id)}"

    def patient(self, world: str, id: str) -> str | None:
        """Return the URL of a patient's timeline."""
        return f"/worlds/{_segment(world)}/Patient/{_segment(id)}/timeline"

    def play(self) -> str | None:
        """Return the URL of the page on which a person starts to play a task."""
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
    def episode(self, file: int, line: int, query: Mapping[str, object] = _EMPTY, part: int = 1) -> str | None:
        return self._file("episode", file, line, *([part] if part > 1 else []))

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
    pairs = [(name, value) for name, value in query.items() if value not in (None, "")]
    return f"{path}?{urlencode(pairs, errors='replace')}" if pairs else path


def _part(value: object) -> str:
    text = str(value)
    safe = _UNSAFE.sub("_", text)[:60]
    return safe if safe == text else f"{safe}_{blake2b(text.encode('utf-8', 'replace'), digest_size=6).hexdigest()}"
