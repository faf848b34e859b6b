"""Did the agent look before it answered?

A record counts as retrieved if one of the agent's reads or searches returned it. That something is *absent* cannot be
retrieved, so there the task names phantoms, records that would have been there if it were present: on a scratch server
that holds them, the agent's own requests must show them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import orjson
from pydantic import BaseModel, ConfigDict

from fhir_gym.fhir.messages import Request, Response
from fhir_gym.tasks.endstate import LoggedRequest
from fhir_gym.types import Json, Resource

if TYPE_CHECKING:
    from fhir_gym.fhir.session import Session

__all__ = ["Evidence", "resembles", "shown", "unread", "would_have_seen"]

_MAX_PAGES = 200
_PAGE_TOKEN = re.compile(r"_getpages=([^&]+)")
_FORM_OF_RESULT = frozenset({"_count", "_elements", "_summary", "_total"})
_PAGING = frozenset({"_count", "_offset", "_getpages", "_getpagesoffset", "_bundletype"})
_INCIDENTAL = frozenset(
    {"id", "meta", "text", "identifier", "telecom", "address", "comment", "note", "description", "start", "end"}
    | {"created", "issued", "period", "authoredOn", "recordedDate", "minutesDuration"}
)
_INCIDENTAL_ENDINGS = ("DateTime", "Period", "Quantity", "Instant")


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

    A conditional create that found a record instead of creating one has looked it up.

    Args:
        logged: The agent's requests with the answers it got.
        records: References.
        decisive: Elements, by type, without which a record says nothing of what matters.
    """
    logged = list(logged)
    found, matched = shown(logged), _matched_by_creates(logged)
    return [
        one
        for one in records
        if one not in matched and (one not in found or not {*decisive.get(_type_of(one), ())} <= found[one].keys())
    ]


def _matched_by_creates(logged: Iterable[LoggedRequest]) -> set[str]:
    return {
        f"{done.resource_type}/{done.id}"
        for one in logged
        for done in one.response.done
        if done.kind == "create" and done.id and not done.effect and done.status < 300
    }


def resembles(seen: Resource, phantom: Resource) -> bool:
    """Whether what was seen of a record does not rule out that it is like a phantom.

    A code, a reference, a name, a date of birth that differs rules it out. Dates, quantities, contacts and remarks do
    not: they differ between records that would do equally well.
    """
    return all(
        name not in phantom or phantom[name] == value
        for name, value in seen.items()
        if name not in _INCIDENTAL and not name.endswith(_INCIDENTAL_ENDINGS)
    )


def would_have_seen(
    logged: Sequence[LoggedRequest],
    phantoms: Sequence[Resource],
    scratch: Session,
    known: Collection[str] = (),
    possible: Callable[[Resource], bool] | None = None,
) -> bool:
    """Whether the agent's requests, sent again to a server that holds the phantoms, show one of them.

    - A page counts if the agent saw all pages before it: an empty page far behind the end shows nothing.
    - A search whose answer had no further page is followed to its end, for the phantom may start a page the agent could
      not have known of.
    - A phantom that differs from a record on file in some elements is shown if one of these is.
    - Each other record of the search must have been told apart: some request showed it in full, or enough of it to rule
      it out. So a search that matched nothing shows the phantom whatever form of result it asks for.
    - Where records like the phantom are there and known, a total shows the phantom if the search matches only those.

    Args:
        logged: The agent's requests with the answers it got.
        phantoms: The records.
        scratch: A session that holds the episode's start and the phantoms; it is written to.
        known: References of the records like the phantoms that are there.
        possible: Whether a record may be what is asked for, judged by the elements of it that the agent saw; by
            default whether it `resembles` a phantom.
    """
    look = _Counterfactual(phantoms, scratch, known, possible or (lambda one: any(resembles(one, p) for p in phantoms)))
    seen = shown(logged)
    return any(look.shows(one, seen) for one in logged)


class _Counterfactual:
    """The server with the phantoms, asked again what the agent asked, in the same order."""

    def __init__(
        self,
        phantoms: Sequence[Resource],
        scratch: Session,
        known: Collection[str],
        possible: Callable[[Resource], bool],
    ) -> None:
        self._wanted = {f"{phantom['resourceType']}/{phantom['id']}" for phantom in phantoms}
        self._types = {phantom["resourceType"] for phantom in phantoms}
        self._scratch, self._known, self._possible = scratch, set(known), possible
        self._tokens: dict[str, str] = {}
        self._pages = _Pages()

    def shows(self, one: LoggedRequest, seen: Mapping[str, Resource]) -> bool:
        """Whether one request shows a phantom; `seen` is what all of them returned."""
        response = self._scratch.handle(_with_token(one.request, self._tokens))
        self._tokens.update(_paired_tokens(one.response, response))
        before = self._pages.before(one.response)
        if before is None:
            return False
        now = _shown(response)
        if _is_look(response):
            if not now.keys() & self._wanted and _count_rises(one.response, response):
                return _total(one.response) == 0 or self._only_known(one.request)
            if not _next_link(one.response):
                now |= _on_further_pages(response, self._scratch)
        if not _changed(now, _shown(one.response)) & self._wanted:
            return False
        others = {found for found in (*now, *before) if _type_of(found) in self._types} - self._wanted - self._known
        return all(self._told_apart(found, seen.get(found, {})) for found in sorted(others))

    def _only_known(self, request: Request) -> bool:
        """Whether the phantoms and what is like them and known are all that a search matches."""
        return bool(self._known) and _matches(_with_token(request, self._tokens), self._scratch) <= (
            self._wanted | self._known
        )

    def _told_apart(self, reference: str, seen: Resource) -> bool:
        """Whether the agent saw enough of a record to know that it is not asked for."""
        if not self._possible(seen):
            return True
        kind, _, id = reference.partition("/")
        whole = self._scratch.read(kind, id)
        return whole is not None and all(seen.get(name) == value for name, value in whole.items() if name != "meta")


def _changed(now: Mapping[str, Resource], then: Mapping[str, Resource]) -> set[str]:
    """The records that look another way now than then, beyond their `meta`, or were not shown then."""
    return {
        found
        for found, resource in now.items()
        if found not in then or {**resource, "meta": None} != {**then[found], "meta": None}
    }


class _Pages:
    """Which pages of which searches an agent has seen, by what the server said of each."""

    def __init__(self) -> None:
        self._reached: dict[str, int] = {}
        self._seen: dict[str, set[str]] = {}
        self._search: dict[str, str] = {}

    def before(self, response: Response) -> set[str] | None:
        """What the pages before this one showed; None if the agent has not seen all of them."""
        answers = [body for body in _searchsets(response) if _self_link(body)]
        found: set[str] = set()
        for body in answers:
            search, offset = self._place(body)
            if self._reached.get(search, 0) < offset:
                return None
            found |= self._seen.get(search, set())
            self._seen.setdefault(search, set()).update(name for name, _ in _resources(body))
            self._reached[search] = max(self._reached.get(search, 0), offset + _matches_on(body))
        return found

    def _place(self, body: Resource) -> tuple[str, int]:
        """A search, and how many matches lie before the page."""
        address, _, query = _self_link(body).partition("?")
        pairs = parse_qsl(query, keep_blank_values=True)
        values = dict(pairs)
        token = values.get("_getpages")
        rest = sorted((name, value) for name, value in pairs if name not in _PAGING)
        search = self._search.get(token, token) if token else f"{address}?{urlencode(rest)}"
        following = _link(body, "next")
        for match in _PAGE_TOKEN.finditer(following or ""):
            self._search.setdefault(match[1], search)
        offset = values.get("_getpagesoffset" if token else "_offset", "")
        return search, int(offset) if offset.isdecimal() else 0


def _type_of(reference: str) -> str:
    return reference.partition("/")[0]


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
    return _link(_parsed(response), "next")


def _self_link(body: Json) -> str:
    return _link(body, "self") or ""


def _link(body: Json, relation: str) -> str | None:
    links = body.get("link") if isinstance(body, dict) else None
    for link in links if isinstance(links, list) else []:
        if isinstance(link, dict) and link.get("relation") == relation:
            return str(link.get("url"))
    return None


def _searchsets(response: Response) -> Iterator[Resource]:
    """The Bundles of an answer: itself, or those of the entries of a batch."""
    body = _parsed(response)
    if not isinstance(body, dict) or body.get("resourceType") != "Bundle":
        return
    if str(body.get("type")).endswith("-response"):
        inner = (entry.get("resource") for entry in _entries(body) if isinstance(entry, dict))
        yield from (one for one in inner if isinstance(one, dict) and one.get("resourceType") == "Bundle")
    else:
        yield body


def _matches_on(body: Resource) -> int:
    """How many matches a page has; what is included beside them does not count."""
    modes = (entry.get("search") for entry in _entries(body) if isinstance(entry, dict))
    return sum(not (isinstance(mode, dict) and mode.get("mode") == "include") for mode in modes)


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
