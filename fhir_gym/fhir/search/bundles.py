"""Searchset Bundles, assembled from the stored JSON without parsing it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from json.encoder import encode_basestring as quoted

from fhir_gym.fhir import serialization
from fhir_gym.fhir.context import RequestContext
from fhir_gym.fhir.costs import steps_of_subset
from fhir_gym.fhir.messages import Response
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.search.query import WHOLE, Shape
from fhir_gym.fhir.serialization.subset import subset
from fhir_gym.fhir.store import stored

Link = tuple[str, str]
"""Relation and URL of a Bundle's link."""

Pieces = Sequence[bytes]
"""Pieces of JSON, joined once for the whole answer."""

_AROUND = 200  # upper bound of the bytes that an entry adds to its resource
_SUMMARY_TAG = (
    b'"tag":[{"system":"http://terminology.hl7.org/CodeSystem/v3-ObservationValue","code":"SUBSETTED",'
    b'"display":"Resource encoded in summary mode"}]'
)


def searchset(
    ctx: RequestContext,
    *,
    token: str,
    matches: Pieces = (),
    included: Sequence[int] = (),
    total: int | None = None,
    links: Iterable[Link] = (),
    shape: Shape = WHOLE,
) -> Response:
    """Return a page of a search as a response.

    `matches` are entries from `fill`, `included` are the rids of included resources.
    """
    meta = f'"lastUpdated":"{ctx.now_text}"'.encode()
    if shape.summary in ("true", "data", "count"):
        meta += b"," + _SUMMARY_TAG
    parts = [b'{"resourceType":"Bundle","id":"%s","meta":{%s},"type":"searchset"' % (token.encode(), meta)]
    if total is not None:
        parts.append(b',"total":%d' % total)
    shown = [f'{{"relation":{quoted(relation)},"url":{quoted(url)}}}' for relation, url in links]
    if shown:
        parts.append(f',"link":[{",".join(shown)}]'.encode())
    room = ctx.limits.answer_bytes - sum(map(len, matches))
    beside, _ = _entries(ctx, included, shape, b"include", room)
    if matches or beside:
        parts += (b',"entry":[', *matches, *((b",",) if matches and beside else ()), *beside, b"]")
    parts.append(b"}")
    return Response(200, {"Last-Modified": ctx.now_http}, b"".join(parts))


def fill(ctx: RequestContext, rids: Sequence[int], shape: Shape) -> tuple[Pieces, int]:
    """Return the entries of as many matches as fit on a page, and the number of these matches."""
    room = ctx.limits.answer_bytes // 2
    entries, complete = _entries(ctx, rids, shape, b"match", room)
    if complete:
        return entries, len(rids)
    ends = accumulate(size + _AROUND for size in ctx.store.sizes(rids))
    most = max(1, sum(1 for end in ends if end <= room))
    return _entries(ctx, rids[:most], shape, b"match", ctx.limits.answer_bytes)[0], most


def _entries(ctx: RequestContext, rids: Sequence[int], shape: Shape, mode: bytes, room: int) -> tuple[Pieces, bool]:
    """Return the entries of these resources separated by commas, and whether all fit; deleted resources are left out.

    Raises:
        FhirError: 413 if included resources do not fit.
    """
    tail = b',"search":{"mode":"%s"}}' % mode
    bodies: dict[int, bytes] = {}
    size = 0
    for rid, head, body, deleted in ctx.store.entries(rids, ctx.base_url, whole=shape.whole):
        if deleted:
            bodies.pop(rid, None)
            continue
        bodies[rid] = entry = head if body is None else head + _subset(ctx, body, shape)
        size += len(entry)
        if size > room and len(rids) > 1:
            if mode == b"include":
                raise FhirError(413, "The included resources do not fit into an answer: ask for fewer")
            return (), False
    pieces = [piece for rid in rids if rid in bodies for piece in (bodies[rid], tail + b",")]
    pieces[-1:] = [tail] if pieces else []
    return pieces, True


def _subset(ctx: RequestContext, body: bytes, shape: Shape) -> bytes:
    ctx.store.spend(steps_of_subset(body))
    return serialization.dumps(subset(stored(body), elements=shape.elements, summary=shape.summary, scope=shape.scope))
