"""All pages of the viewer. Modules whose imports take long are imported when somebody first asks for their pages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from starlette.concurrency import run_in_threadpool
from starlette.routing import BaseRoute, Match, Router
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from fhir_gym.web import comparison, episode_list
from fhir_gym.web.context import ExportedPage, ViewerContext


class PageModule(Protocol):
    """A module with pages."""

    def routes(self, context: ViewerContext) -> list[BaseRoute]:
        """Return the routes of the pages."""

    def exported(self, context: ViewerContext) -> Iterator[ExportedPage]:
        """Yield the pages that an export contains."""


def page_routes(context: ViewerContext) -> list[BaseRoute]:
    """Return the routes of all pages."""
    deferred = [DeferredRoutes(path, load, context) for path, load in _DEFERRED.items()]
    return [*episode_list.routes(context), *comparison.routes(context), *deferred]


def exported_pages(context: ViewerContext) -> Iterator[ExportedPage]:
    """Yield all pages of an export."""
    for module in (episode_list, comparison, *(load() for load in _DEFERRED.values())):
        yield from module.exported(context)


class DeferredRoutes(BaseRoute):
    """The routes of a module that is imported by the first request.

    Args:
        path: The first segment of the routes' paths.
        load: Function that imports the module.
        context: The viewer.
    """

    def __init__(self, path: str, load: Callable[[], PageModule], context: ViewerContext) -> None:
        self._path, self._load, self._context = path, load, context
        self._router: Router | None = None
        self._lock = threading.Lock()

    @override
    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        is_below = scope["type"] == "http" and f"{scope['path']}/".startswith(f"{self._path}/")
        return (Match.FULL, {}) if is_below else (Match.NONE, {})

    @override
    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        router = await run_in_threadpool(self._made_router) if self._router is None else self._router
        await router(scope, receive, send)

    def _made_router(self) -> Router:
        with self._lock:
            if self._router is None:
                self._router = Router(self._load().routes(self._context))
            return self._router


def _episode_page() -> PageModule:
    from fhir_gym.web import episode_page

    return episode_page


def _world_page() -> PageModule:
    from fhir_gym.web import world_page

    return world_page


def _play_page() -> PageModule:
    from fhir_gym.web import play_page

    return play_page


_DEFERRED: dict[str, Callable[[], PageModule]] = {
    "/episodes": _episode_page,
    "/worlds": _world_page,
    "/play": _play_page,
}
"""The first segment of the paths of each deferred module, and the function that imports the module."""
