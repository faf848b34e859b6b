"""Find episodes by a text of their prompts, actions, observations and model replies."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

from fhir_gym.web.episode_row import parse_line
from fhir_gym.web.rollout_index import RolloutIndex

_MAX_SEARCHES = 8
"""Number of searches whose results are kept."""
_PLAIN = re.compile(r"[A-Za-z0-9 _.,:;=?&()+-]+")
"""Characters that JSON never escapes."""


class TextSearch:
    """Searches the files, and keeps the results of the last searches. All methods may be called from any thread.

    A repeated search reads only the episodes that have been added since.
    """

    def __init__(self, index: RolloutIndex) -> None:
        self._index = index
        self._lock = threading.Lock()
        self._searches: dict[str, tuple[int, int]] = {}  # id, and last episode searched; the latest search comes last
        self._ids = 0

    def find(self, text: str) -> int:
        """Search for a text, without distinction of case.

        Returns:
            Number of the search. The table ``hit`` has the episodes that contain the text.
        """
        needle = text.lower()
        with self._lock:
            if needle in self._searches:
                search, last = self._searches.pop(needle)
            else:
                self._ids += 1
                search, last = self._ids, 0
            while len(self._searches) >= _MAX_SEARCHES:
                oldest, _ = self._searches.pop(next(iter(self._searches)))
                with self._index.changing() as db:
                    db.execute("DELETE FROM hit WHERE search = ?", (oldest,))
            sql = "SELECT file, start, length, id FROM episode WHERE id > ? ORDER BY file, line"
            rows = self._index.select(sql, (last,))
            lines = self._index.lines((file, start, length) for file, start, length, _ in rows)
            hits = [(search, row[3]) for row, line in zip(rows, lines, strict=True) if _contains(line, needle)]
            with self._index.changing() as db:
                db.executemany("INSERT OR IGNORE INTO hit VALUES (?, ?)", hits)
            self._searches[needle] = search, max((row[3] for row in rows), default=last)
            return search


def _contains(line: bytes, needle: str) -> bool:
    """Return whether a text of an episode contains the wanted text, which is in lower case."""
    plain: str = max(_PLAIN.findall(needle), key=len, default="")
    if plain.encode() not in line.lower():  # much faster than parsing all lines
        return False
    try:
        return any(needle in text.lower() for text in _texts(parse_line(line)))
    except (ValueError, KeyError, TypeError, AttributeError):  # the line has changed, or is not a whole rollout
        return False


def _texts(record: dict[str, Any]) -> Iterator[str]:
    """Yield the texts of an episode that people search."""
    yield from _strings([record["prompt"], record.get("error")])
    for turn in record["turns"]:
        yield from _strings([turn["action"], turn["observation"], turn.get("text"), turn.get("error")])
        yield from _of_reply(turn.get("reply"))
        for lookup in turn.get("lookups", ()):
            yield from _of_lookup(lookup)
    for lookup in record.get("final_lookups", ()):
        yield from _of_lookup(lookup)


def _of_lookup(lookup: dict[str, Any]) -> Iterator[str]:
    yield from _strings([lookup.get("tool"), lookup.get("arguments"), lookup.get("result")])
    yield from _of_reply(lookup.get("reply"))


def _of_reply(reply: dict[str, Any] | None) -> Iterator[str]:
    if reply is not None:
        yield from _strings([reply["message"].get("content"), reply.get("reasoning")])


def _strings(values: list[Any]) -> Iterator[str]:
    return (value for value in values if isinstance(value, str))
