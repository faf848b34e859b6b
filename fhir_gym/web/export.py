"""Write the viewer's pages as static files, which a browser shows without a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from fhir_gym import processes
from fhir_gym.errors import FhirGymError
from fhir_gym.files import new_folder
from fhir_gym.web.context import ASSETS, PageTemplates, ViewerContext
from fhir_gym.web.links import FileLinks
from fhir_gym.web.pages import exported_pages
from fhir_gym.web.rollout_index import RolloutIndex
from fhir_gym.web.world_store import WorldStore

if TYPE_CHECKING:
    from fhir_gym.fhir import World

_PART = 50
"""Number of pages that a worker process writes at a time."""
_ALONE = 500
"""Number of pages up to which no worker processes are started, because each start takes a second."""
_Paths = Sequence[str | PathLike[str]]


def export_viewer(
    paths: _Paths,
    folder: str | PathLike[str],
    *,
    world: World | None = None,
    workers: int = 0,
    progress: Callable[[int, int], object] | None = None,
) -> int:
    """Write the pages of the viewer to a folder. Its first page is ``index.html``.

    Args:
        paths: Rollout files, and folders of experiments.
        folder: The folder, which must be new or empty.
        world: A world whose pages are written too. It is closed.
        workers: Number of worker processes; 0 to write all pages in this process, as a few pages always are.
        progress: Function that is called with the number of written pages and their total.

    Returns:
        The number of pages.

    Raises:
        FhirGymError: A file does not exist, or the folder is not empty or cannot be written.
        InfraError: A worker process died.
    """
    worlds = WorldStore([world] if world else [])
    with worlds, RolloutIndex(paths) as index, new_folder(Path(folder)) as new:
        context = _context(index, worlds)
        for asset, (path, _) in ASSETS.items():
            (new / asset).write_bytes(path.read_bytes())
        names = [page.name for page in exported_pages(context)]
        if workers == 0 or len(names) <= _ALONE:
            writing = _write_here(context, new, names)
        else:
            prepare = partial(_prepare, paths, world, new, names, _packed_packs(index))
            writing = _write_in_workers(prepare, names, workers)
        written = 0
        for pages in writing:
            written += pages
            if progress is not None:
                progress(written, len(names))
    return written


class PageWriter:
    """Writes pages of an export.

    Args:
        context: The viewer.
        names: Names of all pages, which decide which links lead somewhere.
    """

    def __init__(self, context: ViewerContext, folder: Path, names: Sequence[str]) -> None:
        self._context = replace(context, links=FileLinks(frozenset(names)))
        self._folder = folder
        self._pages = {page.name: page for page in exported_pages(self._context)}

    def write(self, name: str) -> None:
        """Write a page; instead of a page that cannot be made, such as that of a damaged record, write the reason."""
        try:
            if name not in self._pages:
                raise FhirGymError("the rollout files changed during the export")
            page = self._pages[name].render()
        except FhirGymError as error:
            page = self._context.render("error.html.j2", title="This page cannot be shown", message=str(error))
        (self._folder / name).write_text(page, "utf-8")


def _context(index: RolloutIndex, worlds: WorldStore) -> ViewerContext:
    """Return a viewer that has read its files, and whose links are those of an export."""
    index.update()
    return ViewerContext(index, worlds, FileLinks(), PageTemplates())


def _write_here(context: ViewerContext, folder: Path, names: Sequence[str]) -> Iterator[int]:
    """Write the pages; yield 1 after each."""
    writer = PageWriter(context, folder, names)
    for name in names:
        writer.write(name)
        yield 1


def _write_in_workers(prepare: Callable[[], PageWriter], names: Sequence[str], workers: int) -> Iterator[int]:
    """Write the pages in worker processes; yield numbers of written pages."""
    # Neighbouring pages stay together, because they show the same episode, which is replayed once.
    parts = [names[first : first + _PART] for first in range(0, len(names), _PART)]
    with processes.worker_pool(min(workers, len(parts)), prepare) as submit:
        yield from (future.result() for future in as_completed([submit(_write_part, part) for part in parts]))


def _packed_packs(index: RolloutIndex) -> bytes:
    """Return the packs of the episodes, which may be registered in this process only."""
    from fhir_gym.tasks import pack_ids
    from fhir_gym.tasks.core.registry import pickle_packs

    used = {env_id for (env_id,) in index.select("SELECT DISTINCT env_id FROM episode")}
    return pickle_packs(sorted(used.intersection(pack_ids())))


def _prepare(paths: _Paths, world: World | None, folder: Path, names: Sequence[str], packs: bytes) -> PageWriter:
    from fhir_gym.tasks.core.registry import unpickle_packs

    unpickle_packs(packs)
    return PageWriter(_context(RolloutIndex(paths), WorldStore([world] if world else [])), folder, names)


def _write_part(writer: PageWriter, names: Sequence[str]) -> int:
    for name in names:
        writer.write(name)
    return len(names)
