"""A world: a file of resources on which sessions start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typing_extensions import override

from fhir_gym.fhir.session import Session
from fhir_gym.fhir.store import Manifest, WorldFile
from fhir_gym.fhir.store.world_file import PerThread
from fhir_gym.types import Resource


class World(WorldFile):
    """An opened world file that starts sessions and answers searches.

    `read`, `search` and `ids` return the world's own resources, without the writes of any session.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        super().__init__(path, manifest)
        self._readers = PerThread(self.session)

    def session(self, **settings: Any) -> Session:
        """Start a session on this world; `settings` are the arguments of `Session`."""
        return Session(self, **settings)

    def search(self, resource_type: str, **params: object) -> list[Resource]:
        """Return all matches of a search. For a parameter with several values, pass a list."""
        return self._readers.get().search(resource_type, **params)

    @override
    def close(self) -> None:
        super().close()
        self._readers.close()
