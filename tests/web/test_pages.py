"""The routes of modules that are imported late."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.testclient import TestClient

from fhir_gym.web.context import ExportedPage, PageTemplates, ViewerContext
from fhir_gym.web.links import Links
from fhir_gym.web.pages import DeferredRoutes
from fhir_gym.web.rollout_index import RolloutIndex
from fhir_gym.web.world_store import WorldStore


class Module:
    """A module with one page, which counts its imports."""

    imports = 0

    def load(self) -> Module:
        self.imports += 1
        return self

    def routes(self, context: ViewerContext) -> list[BaseRoute]:
        def page(request: Request) -> Response:
            return PlainTextResponse(f"{request.path_params['name']}, {len(context.index.paths)} files")

        return [Route("/late/{name}", page)]

    def exported(self, context: ViewerContext) -> Iterator[ExportedPage]:
        return iter(())


def test_the_first_request_imports_the_module() -> None:
    module = Module()
    with RolloutIndex([]) as index, WorldStore() as worlds:
        context = ViewerContext(index, worlds, Links(), PageTemplates())
        client = TestClient(Starlette(routes=[DeferredRoutes("/late", module.load, context)]))
        assert [client.get(path).status_code for path in ("/", "/later", "/other/late")] == [404] * 3
        assert module.imports == 0
        assert [client.get(f"/late/{name}").text for name in "ab"] == ["a, 0 files", "b, 0 files"]
        assert [client.get(path).status_code for path in ("/late", "/late/a/b")] == [404] * 2
        assert module.imports == 1
