"""Route a request to the handler of its interaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fhir_gym.fhir import search, serialization
from fhir_gym.fhir.context import RequestContext
from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET, RESOURCE_TYPES
from fhir_gym.fhir.interactions import batch, write
from fhir_gym.fhir.interactions.operations import operate
from fhir_gym.fhir.interactions.read import history, read, shape, vread
from fhir_gym.fhir.limits import STEPS_OF_A_VALUE, json_values
from fhir_gym.fhir.messages import Kind, Response
from fhir_gym.fhir.outcome import FhirError, unroutable
from fhir_gym.fhir.routes import Target, parse_path, route
from fhir_gym.fhir.urls import decode, decode_form, decode_query

_STEPS_OF_METADATA = 20_000
_NO_TARGET = Target()
_ON_SERVER = frozenset({"capabilities", "history", "operation"})
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})


def dispatch(ctx: RequestContext) -> Response:
    """Answer the request and log its interactions in the context.

    Raises:
        FhirError: The request is answered with an error.
    """
    request = ctx.request
    _check_size(ctx)
    rest = request.path.removeprefix("/")
    if request.method == "TRACE":
        raise FhirError(405, "TRACE is not allowed", code="not-supported")
    if "#" in rest or "\0" in rest or "%00" in rest:
        raise FhirError(400, "The path contains a character that no URL can contain: '#' or a zero byte")
    segments = [part for part in rest.split("/") if part]
    if "%" in rest:
        segments = [decode(segment) for segment in segments]
    ctx.pairs = decode_query(request.query)
    if not segments:
        return _base(ctx, rest)
    target = parse_path(segments)
    kind = target.resource_type
    if kind and kind not in RESOURCE_TYPE_SET:
        type_names = ", ".join(RESOURCE_TYPES)
        raise FhirError(404, f"HAPI-0302: Unknown resource type '{kind}' - Server knows how to handle: [{type_names}]")
    interaction = route(request.method, target) if request.method in _METHODS else None
    if interaction is not None and (kind or interaction in _ON_SERVER):
        return _HANDLERS[interaction](ctx, target)
    if request.method == "HEAD" and segments == [kind]:
        raise FhirError(400, f"HEAD is not answered for a search of {kind}; use GET", code="not-supported")
    posted = request.body if request.method == "POST" and len(request.body) <= ctx.limits.form_bytes else b""
    form = decode_form(request.headers.get("content-type", ""), posted)
    raise unroutable(request.method, rest, [*ctx.pairs, *form])


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


def _metadata(ctx: RequestContext, _: Target = _NO_TARGET) -> Response:
    if ctx.request.method not in ("GET", "HEAD", "OPTIONS"):
        raise FhirError(405, "HAPI-0388: /metadata request must use HTTP GET or HTTP HEAD")
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
    if method == "POST" and "text/html" in ctx.request.headers.get("accept", ""):  # even with a low quality
        return Response(302, {"Location": f"{ctx.base_url}/swagger-ui/"})
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


def _search(ctx: RequestContext, target: Target) -> Response:
    kind = target.resource_type
    ctx.doing("search", kind)
    return search.search(ctx, kind, f"{kind}/_search" if target.operation else kind)


def _history(ctx: RequestContext, target: Target) -> Response:
    ctx.doing("history", target.resource_type, target.id if target.resource_type else "")
    return history(ctx, target.resource_type or None, (target.id or None) if target.resource_type else None)


def _read(ctx: RequestContext, target: Target) -> Response:
    ctx.doing("read", target.resource_type, target.id)
    return read(ctx, target.resource_type, target.id)


def _vread(ctx: RequestContext, target: Target) -> Response:
    ctx.doing("vread", target.resource_type, target.id)
    return vread(ctx, target.resource_type, target.id, target.version)


def _update(ctx: RequestContext, target: Target) -> Response:
    return write.update(ctx, target) if target.id else write.update_where(ctx, target.resource_type)


def _patch(ctx: RequestContext, target: Target) -> Response:
    return write.patch(ctx, target) if target.id else write.patch_where(ctx, target.resource_type)


def _delete(ctx: RequestContext, target: Target) -> Response:
    return write.delete(ctx, target) if target.id else write.delete_where(ctx, target.resource_type)


_HANDLERS: Mapping[Kind, Callable[[RequestContext, Target], Response]] = {
    "capabilities": _metadata,
    "create": write.create,
    "delete": _delete,
    "history": _history,
    "operation": operate,
    "patch": _patch,
    "read": _read,
    "search": _search,
    "update": _update,
    "vread": _vread,
}
