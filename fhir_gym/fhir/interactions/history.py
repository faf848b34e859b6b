"""The history interactions on an instance, a type or the whole server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from fhir_gym.fhir import serialization
from fhir_gym.fhir.context import RequestContext
from fhir_gym.fhir.costs import steps_of_subset
from fhir_gym.fhir.interactions.read import known, shape
from fhir_gym.fhir.messages import Response
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.search.conditions.dates import parse_bounds
from fhir_gym.fhir.serialization.subset import SUBSETTED, subset
from fhir_gym.fhir.store import ResourceRow, stored, versions
from fhir_gym.fhir.urls import encode_pairs

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
