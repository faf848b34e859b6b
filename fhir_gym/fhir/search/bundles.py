"""Searchset bundles, put together from stored JSON without parsing it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from json import dumps as quoted

from fhir_gym.fhir import parsing
from fhir_gym.fhir.context import Context
from fhir_gym.fhir.headers import bundle_headers
from fhir_gym.fhir.messages import Response
from fhir_gym.fhir.search.options import Shape
from fhir_gym.fhir.subset import subset

__all__ = ["Link", "searchset"]

Link = tuple[str, str]
"""Relation and url."""

_CHUNK = 500
_SUMMARY_TAG = (
    b'"tag":[{"system":"http://terminology.hl7.org/CodeSystem/v3-ObservationValue","code":"SUBSETTED",'
    b'"display":"Resource encoded in summary mode"}]'
)


def searchset(
    ctx: Context,
    *,
    token: str,
    matches: Sequence[int] = (),
    included: Sequence[int] = (),
    total: int | None = None,
    links: Iterable[Link] = (),
    shape: Shape = Shape(),  # noqa: B008 - frozen
) -> Response:
    """A page of a search as a response.

    Args:
        ctx: Surroundings of the request.
        token: Bundle.id.
        matches: What matched, in order.
        included: What is shown beside.
        total: Number of all matches; None leaves it out.
        links: Links in order.
        shape: How resources are shown.
    """
    meta = f'"lastUpdated":"{ctx.now_text}"'.encode()
    if shape.summary in ("true", "data", "count"):
        meta += b"," + _SUMMARY_TAG
    parts = [b'{"resourceType":"Bundle","id":"%s","meta":{%s},"type":"searchset"' % (token.encode(), meta)]
    if total is not None:
        parts.append(b',"total":%d' % total)
    shown = [f'{{"relation":{quoted(relation)},"url":{quoted(url, ensure_ascii=False)}}}' for relation, url in links]
    if shown:
        parts.append(f',"link":[{",".join(shown)}]'.encode())
    entries = [*_entries(ctx, matches, shape, b"match"), *_entries(ctx, included, shape, b"include")]
    if entries:
        parts.append(b',"entry":[%s]' % b",".join(entries))
    parts.append(b"}")
    headers = {"Last-Modified": bundle_headers(ctx, token)["Last-Modified"]}
    return Response(200, headers, b"".join(parts))


def _entries(ctx: Context, rids: Sequence[int], shape: Shape, mode: bytes) -> list[bytes]:
    if not rids:
        return []
    base = ctx.base_url.encode()
    tail = b',"search":{"mode":"%s"}}' % mode
    found: dict[int, bytes] = {}
    for rid, type_, id, body in _stored(ctx, rids):
        if body:
            shown = body if shape.whole else _subset(body, shape)
            found[rid] = b'{"fullUrl":"%s/%s/%s","resource":%s%s' % (base, type_.encode(), id.encode(), shown, tail)
        else:
            found.pop(rid, None)  # deleted since the search
    return [found[rid] for rid in rids if rid in found]


def _stored(ctx: Context, rids: Sequence[int]) -> Iterable[tuple[int, str, str, bytes]]:
    """Number, type, id and body of resources; the overlay's row of a number comes after the world's."""
    for start in range(0, len(rids), _CHUNK):
        chunk = tuple(rids[start : start + _CHUNK])
        marks = ",".join("?" * len(chunk))
        for db in ("main", "overlay"):
            query = f"SELECT rid, type, id, body FROM {db}.resource WHERE rid IN ({marks})"
            yield from ctx.store.db.execute(query, chunk)


def _subset(body: bytes, shape: Shape) -> bytes:
    resource = parsing.loads(body)
    return parsing.dumps(subset(resource, elements=shape.elements, summary=shape.summary))
