"""The read and vread interactions, and the history of a resource, of a type or of the whole server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from fhir_gym.fhir import serialization
from fhir_gym.fhir.clock import instant
from fhir_gym.fhir.context import RequestContext
from fhir_gym.fhir.limits import steps_of_subset
from fhir_gym.fhir.messages import Request, Response
from fhir_gym.fhir.outcome import FhirError, unroutable
from fhir_gym.fhir.search.conditions.dates import parse_bounds
from fhir_gym.fhir.serialization.subset import SUBSETTED, subset
from fhir_gym.fhir.store import ResourceRow, stored, versions
from fhir_gym.fhir.urls import Pairs, element_names, encode_pairs

_ALLOWED = frozenset({"_elements", "_summary", "_format", "_pretty"})
_SEARCH_ONLY = frozenset({"_count", "_sort", "_total", "_include", "_revinclude", "_offset", "_contained", "_has"})


def read(ctx: RequestContext, resource_type: str, id: str) -> Response:
    """GET [type]/[id]."""
    _check_parameters(ctx, resource_type, id)
    return _answer(ctx, existing(ctx, resource_type, id))


def vread(ctx: RequestContext, resource_type: str, id: str, version: str) -> Response:
    """GET [type]/[id]/_history/[version]."""
    _check_parameters(ctx, resource_type, f"{id}/_history/{version}")
    return _answer(ctx, existing_version(ctx, resource_type, id, version))


def known(ctx: RequestContext, resource_type: str, id: str) -> ResourceRow:
    """Return the current version of a resource, deleted or not; raise 404 if it never existed."""
    row = ctx.store.find(resource_type, id)
    if row is None:
        raise FhirError(404, f"HAPI-2001: Resource {resource_type}/{id} is not known")
    return row


def existing(ctx: RequestContext, resource_type: str, id: str) -> ResourceRow:
    """Return the current version of a resource; raise 404 if it never existed, 410 if it is deleted."""
    row = known(ctx, resource_type, id)
    if row.deleted:
        raise _gone(ctx, row)
    return row


def existing_version(ctx: RequestContext, resource_type: str, id: str, version: str) -> ResourceRow:
    """Return a version of a resource; raise 404 if it never existed, 410 if it is a deletion."""
    current = known(ctx, resource_type, id)
    if not (version.isascii() and version.isdigit()):
        raise FhirError(404, f'HAPI-0978: Version "{version}" is not valid for resource {resource_type}/{id}')
    row = next((r for r in versions.versions(ctx.store, current.rid) if str(r.version) == version.lstrip("0")), None)
    if row is None:
        raise FhirError(404, f'HAPI-0979: Version "{version}" is not valid for resource {resource_type}/{id}')
    if row.deleted:
        raise _gone(ctx, row)
    return row


def _gone(ctx: RequestContext, row: ResourceRow) -> FhirError:
    """Return the error for a deleted resource."""
    moment = instant(datetime.fromtimestamp(row.updated / 1000, UTC))
    location = f"{ctx.base_url}/{row.type}/{row.id}/_history/{row.version}"
    return FhirError(410, f"Resource was deleted at {moment}", headers={"Location": location})


def shape(ctx: RequestContext, body: bytes, pairs: Pairs) -> Response:
    """Return a 200 response without headers, with the parts of a resource that `_elements` and `_summary` request."""
    elements = element_names(ctx.limits, (value for name, value in pairs if name == "_elements"))
    modes = {value.lower() for name, value in pairs if name == "_summary"} - {"", "false", "count"}
    if elements and modes:
        raise FhirError(400, "HAPI-0304: Cannot combine the _summary and _elements parameters")
    if "text" in modes and len(modes) > 1:
        raise FhirError(400, "HAPI-0380: Can not combine _summary=text with other values for _summary")
    if not elements and not modes:
        return Response(200, {}, body)
    ctx.store.spend(steps_of_subset(body))
    resource = stored(body)
    if modes == {"text"}:
        narrative = (resource.get("text") or {}).get("div")
        html = narrative.encode() if isinstance(narrative, str) else b"null"
        return Response(200, {"Content-Type": "text/html;charset=UTF-8"}, html)
    mode = next((m for m in ("true", "data") if m in modes), None)
    return Response(200, {}, serialization.dumps(subset(resource, elements=elements or None, summary=mode)))


def _check_parameters(ctx: RequestContext, resource_type: str, rest: str) -> None:
    for name, _ in ctx.pairs:
        if name in _SEARCH_ONLY:
            raise FhirError(400, f'HAPI-0384: Invalid query parameter(s) for this request: "[{name}]"')
        if name not in _ALLOWED and not name.startswith("_"):
            raise unroutable(ctx.request.method, f"{resource_type}/{rest}", ctx.pairs)
    query = ctx.request.query
    if query and any(piece.startswith("=") for piece in query.split("&")):  # a parameter without a name
        raise unroutable(ctx.request.method, f"{resource_type}/{rest}", ctx.pairs)


def _answer(ctx: RequestContext, row: ResourceRow) -> Response:
    if _unchanged(row, ctx.request):
        return Response(304)
    headers = ctx.version_headers(row.type, row.id, row.version, row.updated)
    if not ctx.pairs:
        return Response(200, headers, row.body)
    shaped = shape(ctx, row.body, ctx.pairs)
    return Response(200, {**headers, **shaped.headers}, shaped.body)


def _unchanged(row: ResourceRow, request: Request) -> bool:
    if tag := request.headers.get("if-none-match"):
        return tag.strip().removeprefix("W/").strip('"') == str(row.version)
    if since := request.headers.get("if-modified-since"):
        try:
            return parsedate_to_datetime(since).timestamp() * 1000 > row.updated
        except (TypeError, ValueError, OverflowError):
            raise FhirError(400, f"If-Modified-Since is not an HTTP date: {since}") from None
    return False


_PAGE = 20
_SHAPING = frozenset({"_elements", "_summary"})
_SUBSETS = frozenset({"true", "data", "count"})


def history(ctx: RequestContext, resource_type: str | None = None, id: str | None = None) -> Response:
    """GET [base]/_history, [type]/_history or [type]/[id]/_history. The newest version comes first."""
    values = {name: value for name, value in reversed(ctx.pairs)}
    offset = _number(values.get("_offset"), 0)
    if values.get("_summary", "").lower() == "count":
        count = 0
    elif (values.get("_count") or "").startswith("-"):
        count = max(-_number(values["_count"][1:], -_PAGE), -ctx.limits.page_entries)
    else:
        count = min(_number(values.get("_count"), _PAGE), ctx.limits.page_entries)
    span = _span(ctx, values.get("_since"))
    rows, total = _rows(ctx, resource_type, id, span, offset, max(count + 1, 0))
    entries = _entries(ctx, rows[: max(count, 0)])
    more = len(rows) > len(entries) if count > 0 else count < 0
    bundle_id = ctx.counters.new_token()
    tagged = count == 0 or {value.lower() for name, value in ctx.pairs if name == "_summary"} & _SUBSETS
    bundle = {
        "resourceType": "Bundle",
        "id": bundle_id,
        "meta": {"lastUpdated": ctx.now_text, **({"tag": [SUBSETTED]} if tagged else {})},
        "type": "history",
        **({"total": total} if span is None else {}),
    }
    if count:
        bundle["link"] = _links(ctx, count, offset, offset + (len(entries) or count) if more else None)
    head = serialization.dumps(bundle)
    if entries:
        head = head[:-1] + b',"entry":[' + b",".join(entries) + b"]}"
    return Response(200, ctx.bundle_headers(bundle_id), head)


class _Span(NamedTuple):
    """The times of the versions, in milliseconds; `current` includes the version that was current at the start."""

    since: int | None
    until: int | None
    current: bool


def _span(ctx: RequestContext, since: str | None) -> _Span | None:
    """Return the times that `_since` and `_at` select; None if neither is given.

    `_at` takes dates of any precision, with prefixes as in a search.
    """
    at = [value for name, value in ctx.pairs if name == "_at" and value]
    if not since and not at:
        return None
    start, end = [_instant(since)] if since else [], []
    bounds = parse_bounds(at)
    for bound in bounds:
        if bound.prefix in ("", "eq", "ne", "ge"):
            start.append(bound.span.low)
        elif bound.prefix in ("gt", "sa"):
            start.append(bound.end + 1)
        if bound.prefix in ("", "eq", "ne", "le"):
            end.append(bound.end)
        elif bound.prefix in ("lt", "eb"):
            end.append(bound.span.low - 1)
    return _Span(max(start, default=None), min(end, default=None), current=bool(bounds))


def _rows(
    ctx: RequestContext, resource_type: str | None, id: str | None, span: _Span | None, offset: int, limit: int
) -> tuple[Sequence[ResourceRow], int]:
    since, until, is_at = span or (None, None, False)
    if id is not None and resource_type is not None:
        current = known(ctx, resource_type, id)
        rows = versions.versions(ctx.store, current.rid, since=since, until=until, current=is_at)
        return rows[offset : offset + limit], len(rows)
    rows = versions.history(ctx.store, resource_type, limit=limit, offset=offset, since=since, until=until)
    return rows, versions.history_total(ctx.store, resource_type)


def _entries(ctx: RequestContext, rows: Sequence[ResourceRow]) -> list[bytes]:
    """Return the entries of as many versions as fit into an answer, but at least one entry."""
    entries: list[bytes] = []
    size = 0
    for row in rows:
        entry = _entry(ctx, row)
        size += len(entry)
        if entries and size > ctx.limits.answer_bytes // 2:
            break
        entries.append(entry)
    return entries


def _entry(ctx: RequestContext, row: ResourceRow) -> bytes:
    url = f"{row.type}/{row.id}"
    method = row.method if row.version > 1 else "POST"  # HAPI reports POST for every first version
    status = "201 Created" if row.version == 1 else "200 OK"
    tail = serialization.dumps(
        {
            "request": {"method": method, "url": f"{url}/_history/{row.version}"},
            "response": {"status": status, "etag": f'W/"{row.version}"'},
        }
    )
    head = serialization.dumps({"fullUrl": f"{ctx.base_url}/{url}"})[:-1]
    resource = b"" if row.deleted else b',"resource":' + _shown(ctx, row.body)
    return head + resource + b"," + tail[1:]


def _shown(ctx: RequestContext, body: bytes) -> bytes:
    asked = [(name, value) for name, value in ctx.pairs if name in _SHAPING]
    if not asked:
        return body
    if any(name == "_summary" and value.lower() == "text" for name, value in asked):  # a read answers with HTML
        ctx.store.spend(steps_of_subset(body))
        return serialization.dumps(subset(stored(body), elements=None, summary="text"))
    return shape(ctx, body, asked).body


def _links(ctx: RequestContext, count: int, offset: int, following: int | None) -> list[dict[str, str]]:
    path = ctx.request.path.removeprefix("/")

    def url(**changes: str) -> str:
        query = encode_pairs([*(pair for pair in ctx.pairs if pair[0] not in changes), *changes.items()])
        return f"{ctx.base_url}/{path}" + (f"?{query}" if query else "")

    links = [{"relation": "self", "url": url()}]
    if following is not None:
        links.append({"relation": "next", "url": url(_count=str(count), _offset=str(following))})
    if offset:
        links.append({"relation": "previous", "url": url(_count=str(count), _offset=str(max(0, offset - count)))})
    return links


def _number(value: str | None, default: int) -> int:
    """Parse a number; for an invalid number, return the default, as HAPI does."""
    return int(value) if value and value.isascii() and value.isdigit() and len(value) < 10 else default


def _instant(value: str) -> int:
    if len(value) <= 10:
        precision = {4: "YEAR", 7: "MONTH", 10: "DAY"}.get(len(value), "")
        try:
            datetime.fromisoformat(value + {4: "-01-01", 7: "-01"}.get(len(value), ""))
        except ValueError:
            precision = ""
        if precision:
            raise FhirError(
                400,
                "HAPI-1885: Invalid date/time string "
                f"(datatype InstantDt does not support {precision} precision): {value}",
            )
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise FhirError(400, f'HAPI-1882: Invalid date/time format: "{value}"') from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
