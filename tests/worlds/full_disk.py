"""A database connection with a full disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest


class FullDisk:
    """A connection that fails after it has written `left` batches."""

    def __init__(self, db: sqlite3.Connection, left: int) -> None:
        self._db, self._left = db, left

    def executemany(self, sql: str, rows: list[tuple[object, ...]]) -> sqlite3.Cursor:
        self._left -= 1
        if self._left < 0:
            raise sqlite3.OperationalError("database or disk is full")
        return self._db.executemany(sql, rows)

    def execute(self, *args: Any) -> sqlite3.Cursor:
        return self._db.execute(*args)

    def close(self) -> None:
        self._db.close()


def fill_after(batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every connection of this process fail after this number of written batches."""
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **more: FullDisk(connect(*args, **more), batches))
