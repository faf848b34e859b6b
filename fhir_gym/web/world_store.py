"""The worlds that the viewer can show: worlds with a name whose files exist, and worlds that the user gave."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from fhir_gym.errors import UnknownNameError, WorldError

if TYPE_CHECKING:
    from fhir_gym.fhir import World
    from fhir_gym.rollouts.record import WorldRecord

_LISTING_SECONDS = 5.0
"""Time for which the list of worlds is kept, since making it takes longer than a page."""


class WorldStore(AbstractContextManager["WorldStore"]):
    """Opens worlds by name or content hash, each once. All methods may be called from any thread.

    A `World` may be used by any thread; a session of a world by one thread at a time. No world is built here, since a
    build may take minutes.

    Attributes:
        given: Names of the worlds that the user gave.

    Args:
        given: Worlds that the user gave. The store closes them.
    """

    def __init__(self, worlds: Sequence[World] = ()) -> None:
        self._opened = {world.manifest.name: world for world in worlds}
        self.given = tuple(self._opened)
        self._lock = threading.RLock()
        self._paths: dict[str, Path] = {}
        self._listed = -math.inf

    @override
    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all worlds."""
        with self._lock:
            for world in self._opened.values():
                world.close()
            self._opened.clear()

    def names(self) -> list[str]:
        """Return the names of the worlds: the given worlds first, then the others in alphabetical order."""
        return list(dict.fromkeys([*self.given, *sorted(self._built())]))

    def open(self, name: str) -> World:
        """Return a world.

        Raises:
            UnknownNameError: No world has this name. A path is not a name.
            WorldError: The world's file is damaged.
        """
        from fhir_gym.fhir import World

        with self._lock:
            if name not in self._opened:
                paths = self._built()
                if name not in paths:
                    raise UnknownNameError("world", name, self.names())
                self._opened[name] = World.open(paths[name])
            return self._opened[name]

    def of_record(self, record: WorldRecord) -> World:
        """Return the world in which an episode was recorded.

        Raises:
            WorldError: No installed world has this content.
        """
        names = self.names()
        for name in sorted(names, key=lambda name: (name != record.name, name not in self._opened)):
            try:
                world = self.open(name)
            except WorldError:  # a damaged file is not the world of the record
                continue
            if world.manifest.content_hash == record.hash:
                return world
        problem = "has other content here" if record.name in names else "is not installed"
        raise WorldError(f"the world {record.name} of this episode {problem}")

    def _built(self) -> dict[str, Path]:
        """Return the paths of the worlds whose files exist."""
        from fhir_gym import worlds

        with self._lock:
            if time.monotonic() > self._listed + _LISTING_SECONDS:
                self._paths = {info.name: info.path for info in worlds.available() if info.built}
                self._listed = time.monotonic()
            return self._paths
