"""Route a request to the handler of its interaction."""

from __future__ import annotations

from fhir_gym.fhir import search, serialization
from fhir_gym.fhir.context import RequestContext
from fhir_gym.fhir.costs import STEPS_OF_A_VALUE, json_values
from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET, RESOURCE_TYPES
from fhir_gym.fhir.interactions import batch, write
from fhir_gym.fhir.interactions.history import history
from fhir_gym.fhir.interactions.operations import operate
from fhir_gym.fhir.interactions.read import read, shape, vread
from fhir_gym.fhir.messages import Response
from fhir_gym.fhir.outcome import FhirError, unroutable
from fhir_gym.fhir.urls import decode, decode_query

_STEPS_OF_METADATA = 20_000
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})


def dispatch(ctx: RequestContext) -> Response:
    """Answer the request and log its interactions in the context.

    Raises:
        FhirError: The request is answered with an error.
    """
    request = ctx.request
    _check_size(ctx)
    rest = request.path.removeprefix("/")
    segments = [decode(part) for part in rest.split("/") if part]
    ctx.pairs = decode_query(request.query)
    if not segments:
        return _base(ctx, rest)
    if request.method == "TRACE":
        raise FhirError(405, "TRACE is not allowed", code="not-supported")
    if request.method not in _METHODS:
        raise unroutable(request.method, "/".join(segments), ctx.pairs)
    if segments[0] in RESOURCE_TYPE_SET:
        return _on_type(ctx, segments)
    if segments[0] == "metadata":
        if request.method not in ("GET", "HEAD"):
            raise FhirError(405, "HAPI-0388: /metadata request must use HTTP GET or HTTP HEAD")
        return _metadata(ctx)
    if segments == ["_history"]:
        ctx.doing("history")
        return history(ctx)
    if segments[0].startswith("$"):
        return operate(ctx, None, None, segments)
    if segments == ["_search"]:
        raise unroutable(request.method, "_search", ctx.pairs)
    known = ", ".join(RESOURCE_TYPES)
    raise FhirError(404, f"HAPI-0302: Unknown resource type '{segments[0]}' - Server knows how to handle: [{known}]")


def _check_size(ctx: RequestContext) -> None:
    limits, request = ctx.limits, ctx.request
    if len(request.path) + len(request.query) > limits.url_chars:
        raise FhirError(414, f"The URL is longer than the {limits.url_chars} characters this server reads")
    if len(request.body) > limits.body_bytes:
        raise FhirError(413, f"The body is larger than the {limits.body_bytes} bytes this server reads")
    if not request.body or request.path.startswith(("/Binary", "Binary")):
        return
    if (values := json_values(request.body)) > limits.json_values:
        raise FhirError(413, f"The body holds more than the {limits.json_values} values this server reads")
    ctx.store.spend(STEPS_OF_A_VALUE * values)


def _metadata(ctx: RequestContext) -> Response:
    from fhir_gym.fhir.interactions.capability import capability_statement  # a large table, which is rarely used

    ctx.doing("capabilities")
    ctx.store.spend(_STEPS_OF_METADATA)
    statement = capability_statement(ctx.base_url, ctx.now_text)
    headers = {"Content-Location": f"{ctx.base_url}/CapabilityStatement/{statement['id']}"}
    pairs = [] if ctx.request.method == "OPTIONS" else ctx.pairs
    return Response(200, headers, shape(ctx, serialization.dumps(statement), pairs).body)


def _base(ctx: RequestContext, rest: str) -> Response:
    method = ctx.request.method
    if rest:  # the path consists of slashes only
        raise unroutable(method, rest, ctx.pairs)
    if method == "POST":
        return batch.bundle(ctx)
    if method == "GET" and any(name == "_getpages" for name, _ in ctx.pairs):
        ctx.doing("search")
        return search.page(ctx)
    if method == "OPTIONS":
        return _metadata(ctx)
    raise FhirError(
        400,
        "HAPI-0287: This is the base URL of FHIR server. Unable to handle this request, "
        "as it does not contain a resource type or operation name.",
    )


def _on_type(ctx: RequestContext, segments: list[str]) -> Response:
    method, kind, second = ctx.request.method, segments[0], segments[1] if len(segments) > 1 else None
    if second is None:
        return _type_level(ctx, kind)
    if second == "_history" and len(segments) == 2 and method in ("GET", "HEAD"):
        ctx.doing("history", kind)
        return history(ctx, kind)
    if second == "_search" and len(segments) == 2 and method in ("GET", "POST"):
        ctx.doing("search", kind)
        return search.search(ctx, kind, f"{kind}/_search")
    if second.startswith("$") and len(segments) == 2:
        return operate(ctx, kind, None, segments)
    if second.startswith("_") and method in ("GET", "HEAD", "POST"):
        raise unroutable(method, "/".join(segments), ctx.pairs)
    return _instance_level(ctx, kind, second, segments[2:])


def _type_level(ctx: RequestContext, kind: str) -> Response:
    match ctx.request.method:
        case "GET":
            ctx.doing("search", kind)
            return search.search(ctx, kind, kind)
        case "POST":
            return write.create(ctx, kind)
        case "PUT":
            return write.update_where(ctx, kind)
        case "PATCH":
            return write.patch_where(ctx, kind)
        case "DELETE":
            return write.delete_where(ctx, kind)
    raise FhirError(400, f"HEAD is not answered for a search of {kind}; use GET", code="not-supported")


def _instance_level(ctx: RequestContext, kind: str, id: str, rest: list[str]) -> Response:
    method = ctx.request.method
    if method in ("GET", "HEAD") and not rest:
        ctx.doing("read", kind, id)
        return read(ctx, kind, id)
    if rest and rest[0].startswith("$") and len(rest) == 1:
        return operate(ctx, kind, id, [kind, id, *rest])
    if method == "PUT":
        return write.update(ctx, kind, id)
    if method == "PATCH":
        return write.patch(ctx, kind, id)
    if method == "DELETE":
        return write.delete(ctx, kind, id)
    if rest == ["_history"]:
        ctx.doing("history", kind, id)
        return history(ctx, kind, id)
    if method == "POST" and not rest:
        return write.create(ctx, kind)
    if method in ("GET", "HEAD") and len(rest) == 2 and rest[0] == "_history":
        ctx.doing("vread", kind, id)
        return vread(ctx, kind, id, rest[1])
    raise unroutable(method, "/".join([kind, id, *rest]), ctx.pairs)
