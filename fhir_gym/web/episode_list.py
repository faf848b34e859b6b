"""The table of episodes."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from fhir_gym.web.context import ViewerContext


def routes(context: ViewerContext) -> list[BaseRoute]:
    """Return the routes of the table."""

    def episodes(_: Request) -> Response:
        return HTMLResponse(render(context))

    return [Route("/", episodes, name="episodes")]


def render(context: ViewerContext) -> str:
    """Return the page with the table."""
    sql = "SELECT file, line, task, variation, success FROM episode ORDER BY file, line LIMIT 100"
    rows = context.index.select(sql)
    return context.render("episodes.html.j2", rows=rows, state=context.index.state)
