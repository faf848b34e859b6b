"""Forms that a page sends to the viewer."""

from __future__ import annotations

from collections.abc import Callable
from secrets import compare_digest
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fhir_gym.http_server import read_body
from fhir_gym.web.context import ViewerContext

_MAX_BODY = 4 * 1024 * 1024
_MAX_FIELDS = 1_000


def form_route(
    context: ViewerContext, path: str, answer: Callable[[Request, dict[str, str]], Response], name: str | None = None
) -> Route:
    """Return a route for a form that is sent by POST.

    The form must have a hidden field ``token`` with `ViewerContext.form_token`; the macro ``form_token`` writes it.

    Args:
        context: The viewer.
        path: Path of the route.
        answer: Function from the request and the form's fields to the answer. It runs in a thread.
        name: Name of the route.
    """

    async def endpoint(request: Request) -> Response:
        body = await read_body(request, _MAX_BODY)
        if len(body) > _MAX_BODY:
            raise HTTPException(413, "The form is too large.")
        try:
            fields = dict(parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=_MAX_FIELDS))
        except ValueError as error:
            raise HTTPException(400, "The form cannot be read.") from error
        if not compare_digest(fields.pop("token", "").encode(), context.form_token.encode()):
            raise HTTPException(
                403, "This form is from another run of the viewer. Go back, reload the page, try again."
            )
        return await run_in_threadpool(answer, request, fields)

    return Route(path, endpoint, methods=["POST"], name=name)
