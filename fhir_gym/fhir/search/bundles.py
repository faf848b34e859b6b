"""Searchset bundles, put together from stored JSON without parsing it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from json.encoder import encode_basestring as quoted

from fhir_gym.fhir import parsing
from fhir_gym.fhir.context import Context
from fhir_gym.fhir.headers import bundle_headers
from fhir_gym.fhir.messages import Response
from fhir_gym.fhir.search.options import WHOLE, Shape
from fhir_gym.fhir.store import stored
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
    shape: Shape = WHOLE,
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
    shown = [f'{{"relation":{quoted(relation)},"url":{quoted(url)}}}' for relation, url in links]
    if shown:
        parts.append(f',"link":[{",".join(shown)}]'.encode())
    entries = [_entries(ctx, matches, shape, b"match"), _entries(ctx, included, shape, b"include")]
    if any(entries):
        parts.append(b',"entry":[%s]' % b",".join(filter(None, entries)))
    parts.append(b"}")
    headers = {"Last-Modified": bundle_headers(ctx, token)["Last-Modified"]}
    return Response(200, headers, b"".join(parts))


def _entries(ctx: Context, rids: Sequence[int], shape: Shape, mode: bytes) -> bytes:
    """The entries of these resources, joined by commas; empty if all have been deleted since."""
    tail = b',"search":{"mode":"%s"}}' % mode
    found: dict[int, bytes] = {}
    for start in range(0, len(rids), _CHUNK):
        chunk = tuple(rids[start : start + _CHUNK])
        ctx.store.examine(chunk)
        for db in ctx.store.schemas():
            for rid, head, body, gone in ctx.store.db.execute(
                _ENTRIES[shape.whole, db, len(chunk)], (ctx.base_url, *chunk)
            ):
                if gone:
                    found.pop(rid, None)
                elif body is None:
                    found[rid] = head
                else:
                    found[rid] = head + _subset(body, shape)
    shown = [found[rid] for rid in rids if rid in found]
    return (tail + b",").join(shown) + tail if shown else b""


class _Queries(dict[tuple[bool, str, int], str]):
    """The query for so many resources of a schema: rid, beginning of the entry, body to shorten, whether deleted."""

    def __missing__(self, key: tuple[bool, str, int]) -> str:
        whole, db, count = key
        head = """'{"fullUrl":' || json_quote(? || '/' || type || '/' || id) || ',"resource":'"""
        columns = f"CAST({head} || body AS BLOB), NULL" if whole else f"CAST({head} AS BLOB), body"
        marks = ",".join("?" * count)
        text = self[key] = f"SELECT rid, {columns}, deleted FROM {db}.resource WHERE rid IN ({marks})"
        return text


_ENTRIES = _Queries()


def _subset(body: bytes, shape: Shape) -> bytes:
    return parsing.dumps(subset(stored(body), elements=shape.elements, summary=shape.summary))
