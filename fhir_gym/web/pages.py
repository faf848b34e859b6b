"""All pages of the viewer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from starlette.routing import BaseRoute

from fhir_gym.web import comparison, episode_list, episode_page, play_page, world_page
from fhir_gym.web.context import ExportedPage, ViewerContext


class PageModule(Protocol):
    """A module with pages."""

    def routes(self, context: ViewerContext) -> list[BaseRoute]:
        """Return the routes of the pages."""

    def exported(self, context: ViewerContext) -> Iterator[ExportedPage]:
        """Yield the pages that an export contains."""


PAGES: tuple[PageModule, ...] = (episode_list, comparison, episode_page, world_page, play_page)
"""The modules with pages."""
