"""Did the agent look before it answered?

A record counts as retrieved if one of the agent's reads or searches returned it. That something is *absent* cannot be
retrieved, so there the task names phantoms, records that would have been there if it were present: on a scratch server
that holds them, the agent's own requests must show them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import orjson
from pydantic import BaseModel, ConfigDict

from fhir_gym.fhir.messages import Request, Response
from fhir_gym.tasks.endstate import LoggedRequest
from fhir_gym.types import Json, Resource

if TYPE_CHECKING:
    from fhir_gym.fhir.session import Session

__all__ = ["Evidence", "shown", "unread", "would_have_seen"]

_MAX_PAGES = 200
_PAGE_TOKEN = re.compile(r"_getpages=([^&]+)")
_FORM_OF_RESULT = frozenset({"_count", "_elements", "_summary", "_total"})


class Evidence(BaseModel):
    """Whether the agent saw what its answer rests on.

    Attributes:
        sufficient: Whether it did.
        missing: Records it never retrieved.
        looked: For an answer that something is absent, whether the look-up would have found it; None elsewhere.
        note: The same in words.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    sufficient: bool
    missing: tuple[str, ...] = ()
    looked: bool | None = None
    note: str

    @classmethod
    def of(cls, missing: Iterable[str], looked: bool | None, when: str = "") -> Evidence:
        """The finding in words, from its parts; `when`: by when it had to be looked up, if that matters."""
        missing = tuple(missing)
        lines = []
        if missing:
            lines.append(f"never retrieved {', '.join(missing)}{when}")
        if looked is False:
            lines.append(f"no request{when} would have shown the record, had there been one")
        sufficient = not missing and looked is not False
        note = "; ".join(lines) if lines else "every record the answer rests on was looked up"
        return cls(sufficient=sufficient, missing=missing, looked=looked, note=note + ".")


def shown(logged: Iterable[LoggedRequest]) -> dict[str, Resource]:
    """All resources that the agent's reads and searches returned, by reference.

    Of one that was returned several times (once with `_elements`, say), each element is there that any of them
    showed, as it was returned last.
    """
    found: dict[str, Resource] = {}
    for one in logged:
        for reference, resource in _shown(one.response).items():
            found[reference] = {**found.get(reference, {}), **resource}
    return found


def unread(
    logged: Iterable[LoggedRequest], records: Iterable[str], decisive: Mapping[str, Collection[str]]
) -> list[str]:
    """Those of some records that the agent's reads and searches did not return, or without what decides.

    Args:
        logged: The agent's requests with the answers it got.
        records: References.
        decisive: Elements, by type, without which a record says nothing of what matters.
    """
    found = shown(logged)
    return [one for one in records if one not in found or not {*decisive.get(_type_of(one), ())} <= found[one].keys()]


def would_have_seen(
    logged: Sequence[LoggedRequest], phantoms: Sequence[Resource], scratch: Session, known: Collection[str] = ()
) -> bool:
    """Whether the agent's requests, sent again to a server that holds the phantoms, show one of them.

    A search whose answer had no further page is followed to its end, for the phantom may start a page the agent could
    not have known of. A search that matched nothing and now matches shows the phantom too, even if it only asks for the
    count. A phantom that looks the same as what the agent got (`_elements=id`) is not seen unless the agent then looked
    at each of those by another request that told it apart. Where records like the phantom are there and known, a search
    that would have matched the phantom and else matches only those shows it by its total alone.

    Args:
        logged: The agent's requests with the answers it got.
        phantoms: The records.
        scratch: A session that holds the episode's start and the phantoms; it is written to.
        known: References of the records like the phantoms that are there.
    """
    wanted = {f"{phantom['resourceType']}/{phantom['id']}" for phantom in phantoms}
    tokens: dict[str, str] = {}
    for index, one in enumerate(logged):
        request = _with_token(one.request, tokens)
        response = scratch.handle(request)
        tokens.update(_paired_tokens(one.response, response))
        now = _shown(response)
        if _is_look(response):
            if _count_rises(one.response, response) and (
                _total(one.response) == 0 or (known and _matches(request, scratch) <= wanted.union(known))
            ):
                return True
            if not _next_link(one.response):
                now |= _on_further_pages(response, scratch)
        alike = _alike([now[found] for found in now.keys() & wanted], _shown(one.response))
        others = [*logged[:index], *logged[index + 1 :]]
        if alike is not None and alike <= _told_apart(others, phantoms).union(known):
            return True
    return False


def _told_apart(logged: Iterable[LoggedRequest], phantoms: Sequence[Resource]) -> set[str]:
    """What requests returned with something of it that is otherwise in every phantom."""
    return {
        reference
        for one in logged
        for reference, resource in _shown(one.response).items()
        if all(any(phantom.get(name) != value for name, value in _content(resource).items()) for phantom in phantoms)
    }


def _type_of(reference: str) -> str:
    return reference.partition("/")[0]


def _alike(phantoms: list[Resource], seen: dict[str, Resource]) -> set[str] | None:
    """What the agent got that looks the same as the phantom it would have got; None if it would have got none."""
    if not phantoms:
        return None
    looks = [_content(phantom) for phantom in phantoms]
    return {reference for reference, resource in seen.items() if _content(resource) in looks}


def _content(resource: Resource) -> Resource:
    return {name: value for name, value in resource.items() if name not in ("id", "meta")}


def _is_look(response: Response) -> bool:
    """Whether a request that came alone only looked something up."""
    return any(one.looks and one.entry is None for one in response.done)


def _shown(response: Response) -> dict[str, Resource]:
    """What a look-up returned, by reference; for a batch, what those of its entries returned that only looked."""
    if response.status >= 300 or not any(one.looks for one in response.done):
        return {}
    body = _parsed(response)
    if _is_look(response):
        return dict(_resources(body))
    return {
        found: one
        for done, answer in zip(response.done, _entries(body), strict=False)
        if done.looks and isinstance(answer, dict)
        for found, one in _resources(answer.get("resource"))
    }


def _resources(body: Json) -> Iterator[tuple[str, Resource]]:
    if not isinstance(body, dict):
        return
    if body.get("resourceType") == "Bundle":
        for entry in _entries(body):
            yield from _resources(entry.get("resource") if isinstance(entry, dict) else None)
    elif isinstance(body.get("id"), str):
        yield f"{body.get('resourceType')}/{body['id']}", body


def _entries(bundle: Json) -> list[Json]:
    entries = bundle.get("entry") if isinstance(bundle, dict) else None
    return entries if isinstance(entries, list) else []


def _parsed(response: Response) -> Json:
    try:
        return orjson.loads(response.body)
    except orjson.JSONDecodeError:
        return None


def _total(response: Response) -> int | None:
    body = _parsed(response)
    total = body.get("total") if isinstance(body, dict) else None
    return total if isinstance(total, int) else None


def _count_rises(seen: Response, now: Response) -> bool:
    first, second = _total(seen), _total(now)
    return first is not None and second is not None and first < second


def _matches(request: Request, scratch: Session) -> set[str]:
    """What a search finds that may have asked for the count, or a page, only."""
    query = _in_full(request.query)
    body = _in_full(request.body.decode()).encode() if request.method == "POST" else request.body
    whole = Request(request.method, request.path, query, request.headers, body)
    response = scratch.handle(whole)
    return {*_shown(response), *_on_further_pages(response, scratch)}


def _in_full(query: str) -> str:
    pairs = parse_qsl(query, keep_blank_values=True)
    return urlencode([(name, value) for name, value in pairs if name not in _FORM_OF_RESULT])


def _next_link(response: Response) -> str | None:
    body = _parsed(response)
    links = body.get("link") if isinstance(body, dict) else None
    for link in links if isinstance(links, list) else []:
        if isinstance(link, dict) and link.get("relation") == "next":
            return str(link.get("url"))
    return None


def _on_further_pages(response: Response, scratch: Session) -> dict[str, Resource]:
    found: dict[str, Resource] = {}
    for _ in range(_MAX_PAGES):
        link = _next_link(response)
        if link is None:
            break
        request = Request("GET", "/", urlsplit(link).query)
        response = scratch.handle(request)
        found |= _shown(response)
    return found


def _paired_tokens(seen: Response, now: Response) -> dict[str, str]:
    """The page token the agent was given, and the one the scratch server gives for the same page."""
    old, new = _next_link(seen), _next_link(now)
    if old is None or new is None:
        return {}
    old_tokens, new_tokens = (parse_qs(urlsplit(link).query).get("_getpages", []) for link in (old, new))
    return dict(zip(old_tokens, new_tokens, strict=False))


def _with_token(request: Request, tokens: dict[str, str]) -> Request:
    match = _PAGE_TOKEN.search(request.query)
    if match is None or match[1] not in tokens:
        return request
    query = request.query.replace(match[0], f"_getpages={tokens[match[1]]}")
    return Request(request.method, request.path, query, request.headers, request.body)
