"""Write the viewer's pages as static files, which a browser shows without a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

from fhir_gym.errors import FhirGymError
from fhir_gym.fhir import World
from fhir_gym.files import new_folder
from fhir_gym.web.context import ExportedPage, ViewerContext
from fhir_gym.web.html import ASSETS, PageTemplates
from fhir_gym.web.links import FileLinks
from fhir_gym.web.pages import PAGES
from fhir_gym.web.rollout_index import RolloutIndex
from fhir_gym.web.world_store import WorldStore


def export_viewer(
    paths: Sequence[str | PathLike[str]],
    folder: str | PathLike[str],
    *,
    world: World | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> int:
    """Write the pages of the viewer to a folder. Its first page is ``index.html``.

    Args:
        paths: Rollout files, and folders of experiments.
        folder: The folder, which must be new or empty.
        world: A world whose pages are written too. It is closed.
        progress: Function that is called with the number of written pages and their total.

    Returns:
        The number of pages.

    Raises:
        FhirGymError: A file does not exist, or the folder is not empty or cannot be written.
    """
    templates, name = PageTemplates(), world.manifest.name if world else None
    with WorldStore([world] if world else []) as worlds, RolloutIndex(paths) as index:
        index.update()
        # The first pass lists the pages, so that the second knows which links lead somewhere.
        listing = ViewerContext(index, worlds, FileLinks(), templates, name)
        names = frozenset(page.name for module in PAGES for page in module.exported(listing))
        context = replace(listing, links=FileLinks(names))
        with new_folder(Path(folder)) as new:
            for asset, (path, _) in ASSETS.items():
                (new / asset).write_bytes(path.read_bytes())
            written = 0
            for module in PAGES:
                for page in module.exported(context):
                    (new / page.name).write_text(_html(context, page), "utf-8")
                    written += 1
                    if progress is not None:
                        progress(written, len(names))
    return written


def _html(context: ViewerContext, page: ExportedPage) -> str:
    """Return a page; of a page that cannot be made, such as that of a damaged record, the reason."""
    try:
        return page.render()
    except FhirGymError as error:
        return context.render("error.html.j2", title="This page cannot be shown", message=str(error))
