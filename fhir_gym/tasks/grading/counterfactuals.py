"""Counterfactuals: whether one of the agent's requests would have returned a record that does not exist.

The grader adds such records to a scratch server with the start state and repeats the agent's requests there. What the
agent and others wrote in between is stored there, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import groupby
from typing import TYPE_CHECKING, Protocol, TypeAlias
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from fhir_gym.fhir.limits import WorkBudget
from fhir_gym.fhir.messages import Request, Response
from fhir_gym.fhir.serialization.subset import SUBSETTED
from fhir_gym.tasks.grading.end_state import LoggedRequest, read_by_verdicts, returned_resources
from fhir_gym.tasks.grading.plain_requests import SearchedResource, parse_plain
from fhir_gym.tasks.grading.responses import PAGE_TOKEN, ParsedResponse, ParsedResponses, SeenPages
from fhir_gym.types import Resource

if TYPE_CHECKING:
    from fhir_gym.fhir.session import Session

_MAX_PAGES = 200
_TOKEN_IN_JSON = re.compile(rb'_getpages=([^&"\\]+)')
_FORM_OF_RESULT = frozenset({"_count", "_elements", "_summary", "_total"})
_INCIDENTAL = frozenset(
    {"id", "meta", "text", "identifier", "telecom", "address", "comment", "note", "description", "start", "end"}
    | {"created", "issued", "period", "authoredOn", "recordedDate", "minutesDuration"}
)
_INCIDENTAL_ENDINGS = ("DateTime", "Period", "Quantity", "Instant")


def may_be_like(seen: Resource, counterfactual: Resource) -> bool:
    """Whether the visible elements of a record are compatible with a counterfactual.

    A different code, reference, name or date of birth makes the record incompatible. Other dates, quantities, contacts
    and remarks are ignored, because they also differ between equally right records.
    """
    return all(
        name not in counterfactual or counterfactual[name] == value
        for name, value in seen.items()
        if name not in _INCIDENTAL and not name.endswith(_INCIDENTAL_ENDINGS)
    )


Version: TypeAlias = "tuple[str, str, Resource | None]"
"""The type and id of a resource, and the version that a request left; None for a deletion."""


class ScratchServer(Protocol):
    """A server on which the agent's requests are replayed."""

    def handle(self, request: Request) -> Response:
        """Answer a request."""
        ...

    def read(self, resource_type: str, id: str) -> Resource | None:
        """Read the current version of a resource; None for an unknown resource."""
        ...

    def write(self, versions: Iterable[Version]) -> None:
        """Store versions of resources in order."""
        ...


_REQUESTS = 5
"""Minimum work budget of a verdict, as a multiple of the work budget of one request."""
_FRACTION = 20
"""In a long episode, the work budget of a verdict is this fraction of what all requests may cost."""


class BudgetedSession:
    """A session with one work budget for all its requests. It refuses further requests when the budget is used up.

    Args:
        requests: Number of requests in the episode.
    """

    def __init__(self, session: Session, requests: int = 0) -> None:
        self.read = session.read
        self._session = session
        self._allowed = WorkBudget(max(_REQUESTS, requests // _FRACTION) * session.limits.sql_steps)

    def handle(self, request: Request) -> Response:
        """Answer a request."""
        if not self._allowed:
            return Response(400)
        with self._session.store.budget(self._allowed):
            return self._session.handle(request)

    def write(self, versions: Iterable[Version]) -> None:
        """Store versions of resources in order, at no cost."""
        for deleted, some in groupby(versions, lambda version: version[2] is None):
            if deleted:
                for resource_type, id, _ in some:
                    self._session.handle(Request("DELETE", f"/{resource_type}/{id}"))
            else:
                self._session.load((version[2] for version in some if version[2]), normal=True)


def shows_counterfactual(
    logged: Sequence[LoggedRequest],
    counterfactual: Resource,
    scratch: ScratchServer,
    known_records: Collection[str] = (),
    may_match: Callable[[Resource, Resource], bool] = may_be_like,
    parsed: ParsedResponses | None = None,
) -> bool:
    """Whether one of the agent's requests would have shown a counterfactual; see `counterfactuals_shown`."""
    return any(
        shown for _, shown in counterfactuals_shown(logged, [counterfactual], scratch, known_records, may_match, parsed)
    )


def counterfactuals_shown(
    logged: Sequence[LoggedRequest],
    counterfactuals: Sequence[Resource],
    scratch: ScratchServer,
    known_records: Collection[str] = (),
    may_match: Callable[[Resource, Resource], bool] = may_be_like,
    parsed: ParsedResponses | None = None,
    written: Mapping[int, Sequence[Version]] | None = None,
) -> Iterator[tuple[int, frozenset[str]]]:
    """Replay the agent's requests on a server with counterfactuals, and yield which of them each request shows.

    - A search page counts if the agent saw all pages before it. An empty page after the last page does not count.
    - If the agent's response had no link to a next page, all pages of the replayed search count. The counterfactual may
      be on a page that did not exist for the agent.
    - If a counterfactual replaces a stored record, the response must contain an element in which the two differ.
    - The agent must have seen enough of every other match to exclude it. If there are no other matches, any form of the
      result counts, even a total without records.
    - If `known_records` lists similar existing records, a total also counts if the search matches only these records
      and the counterfactuals.

    Args:
        logged: The agent's requests with their responses.
        counterfactuals: The counterfactual records.
        scratch: A server with the start state and the counterfactuals; replayed requests may change it.
        known_records: References to existing records that are similar to the counterfactuals.
        may_match: Function of a record, with only the elements that the agent saw, and a counterfactual. It decides
            whether the record may be what the counterfactual stands for.
        parsed: Responses that are parsed already.
        written: The versions that requests left, by position in `logged`. They are stored instead of repeating the
            request. None if they are not known, and all requests are repeated.

    Yields:
        For each request that shows a counterfactual: its position in `logged`, and the references to the
        counterfactuals.
    """
    looks = {id(by_verdict) for by_verdict in read_by_verdicts(logged)}
    read = [request for request in logged if id(request) in looks]
    replay = _Counterfactual(read, counterfactuals, scratch, known_records, may_match, parsed or ParsedResponses())
    for position, request in enumerate(logged):
        versions = None if written is None else written.get(position, _no_versions(request))
        if id(request) in looks and (versions is None or any(done.looks for done in request.response.done)):
            shown = replay.shown_by(request)
            if shown:
                yield position, shown
        replay.write_later(versions or ())


def _no_versions(request: LoggedRequest) -> tuple[Version, ...] | None:
    """Nothing if a request wrote nothing; None if it wrote something unknown."""
    return None if any(done.effect for done in request.response.done) else ()


class _Counterfactual:
    """Replays the agent's requests in order on a server with the counterfactuals."""

    def __init__(
        self,
        logged: Sequence[LoggedRequest],
        counterfactuals: Sequence[Resource],
        scratch: ScratchServer,
        known_records: Collection[str],
        may_match: Callable[[Resource, Resource], bool],
        parsed: ParsedResponses,
    ) -> None:
        self._wanted = {
            f"{counterfactual['resourceType']}/{counterfactual['id']}": counterfactual
            for counterfactual in counterfactuals
        }
        self._types = {counterfactual["resourceType"] for counterfactual in counterfactuals}
        self._scratch, self._known, self._may_match = scratch, set(known_records), may_match
        self._later: list[Version] = []
        """Versions to store before the next request that may read them."""
        self._tokens: dict[str, str] = {}
        self._parsed = parsed
        self._pages = SeenPages(parsed)
        self._logged = logged
        self._skipped_tokens: set[str] = set()
        self._searched: dict[str, list[SearchedResource]] = {}
        for counterfactual in counterfactuals:
            searched = SearchedResource(counterfactual, partial(self._is_stored, counterfactual))
            self._searched.setdefault(counterfactual["resourceType"], []).append(searched)
        self._changed_types: set[str] = set()
        """The types of counterfactuals that the agent or others have written again."""
        self._compared: dict[str, set[str]] = {record: set() for record in self._wanted}
        self._alike: dict[str, set[str]] = {record: set() for record in self._wanted}
        self._seen_in_full: dict[str, bool] = {}

    def shown_by(self, logged_request: LoggedRequest) -> frozenset[str]:
        """References to the counterfactuals that one request shows."""
        if self._cannot_show(logged_request.request):
            self._skipped_tokens.update(map(bytes.decode, _TOKEN_IN_JSON.findall(logged_request.response.content)))
            self._pages.pass_over(logged_request.response)
            return frozenset()
        then, now = (
            self._parsed.parse(logged_request.response),
            self._parsed.parse(self._repeat(logged_request.request)),
        )
        parts, shown = now.parts(), frozenset[str]()
        for place, part in then.parts().items():
            before = self._pages.before(part)
            if before is not None and place in parts:
                self._tokens.update(_paired_tokens(part, parts[place]))
                request = logged_request.request if part is then else part.search
                shown |= self._shown_in(request, part, parts[place], before)
        return shown

    def write_later(self, versions: Iterable[Version]) -> None:
        """Store versions of resources before the next request that may read them."""
        for version in versions:
            self._later.append(version)
            self._note_changed(*version[:2])

    def _shown_in(
        self, request: Request, then: ParsedResponse, now: ParsedResponse, before: set[str]
    ) -> frozenset[str]:
        """References to the counterfactuals that a read or search shows.

        Args:
            request: The request.
            then: The response that the agent received.
            now: The response with the counterfactuals.
            before: The records on earlier pages.
        """
        returned, here = now.returned_resources, then.returned_resources
        if now.is_look:
            if not then.next_link:
                returned = {**returned, **_on_further_pages(now, self._scratch)}
            if not returned.keys() & self._wanted.keys() and _count_rises(then, now):
                return self._counted(request, then.total == 0, now.total)
        shown = _changed(returned, here, self._wanted)
        if not shown:
            return frozenset()
        others = (
            {record for record in (*returned, *before) if _type_of(record) in self._types}
            - self._wanted.keys()
            - self._known
        )
        others -= {
            record
            for record in others & here.keys()
            if here[record] == returned.get(record) and _is_whole(here[record])
        }
        unknown = {
            record
            for record in others
            if not (self._is_known(record) or self._is_in_full(record, here.get(record, {})))
        }
        return frozenset(name for name in shown if not unknown & self._records_like(name, unknown))

    def _repeat(self, request: Request) -> Response:
        """Send a request to the server, after everything that was written before and that it may read."""
        plain = parse_plain(request)
        types = None if plain is None else plain.types
        due = [write for write in self._later if types is None or write[0] in types]
        if due:
            self._later = [write for write in self._later if types is not None and write[0] not in types]
            self._scratch.write(due)
            for resource_type, id, _ in due:
                self._seen_in_full.pop(f"{resource_type}/{id}", None)
        response = self._scratch.handle(_with_token(request, self._tokens))
        for done in response.done:
            if done.effect:
                self._seen_in_full.pop(f"{done.resource_type}/{done.id}", None)
                self._note_changed(done.resource_type, done.id)
        return response

    def _cannot_show(self, request: Request) -> bool:
        """Whether a request cannot show a counterfactual, so that it is not repeated.

        It is a plain read or search that matches no counterfactual, or a further page of such a search.
        """
        plain = parse_plain(request)
        if plain is None:
            page = PAGE_TOKEN.search(request.query) if request.method == "GET" else None
            return page is not None and page[1] in self._skipped_tokens
        if not self._changed_types.isdisjoint(plain.types):
            return False
        return not any(
            searched.may_be_returned(plain) for kind in plain.types for searched in self._searched.get(kind, ())
        )

    def _is_stored(self, counterfactual: Resource) -> bool:
        """Whether a counterfactual replaces a stored record, to which other records may refer."""
        stored = self._scratch.read(counterfactual["resourceType"], counterfactual["id"])
        return stored is None or stored.get("meta", {}).get("versionId") != "1"

    def _note_changed(self, resource_type: str, id: str | None) -> None:
        if f"{resource_type}/{id}" in self._wanted:
            self._changed_types.add(resource_type)

    @cached_property
    def _seen(self) -> Mapping[str, Resource]:
        """All returned resources that have the type of a counterfactual."""
        plain = ((request, parse_plain(request.request)) for request in self._logged)
        logged = (request for request, search in plain if search is None or not search.types.isdisjoint(self._types))
        returned = returned_resources(logged, parsed=self._parsed)
        return {
            name: returned_resource for name, returned_resource in returned.items() if _type_of(name) in self._types
        }

    def _counted(self, request: Request, was_empty: bool, total: int | None) -> frozenset[str]:
        """References to the counterfactuals that a search counts without showing them.

        The search counts if it found nothing before, or matches only counterfactuals and records in `known`.
        """
        expected = self._wanted.keys() | self._known
        if was_empty and len(self._wanted) == 1:
            return frozenset(self._wanted)
        if not was_empty and (not self._known or total is None or total > len(expected)):
            return frozenset()
        matches = _matches(_with_token(request, self._tokens), self._scratch)
        return frozenset(matches & self._wanted.keys() if was_empty or matches <= expected else ())

    def _records_like(self, name: str, records: set[str]) -> set[str]:
        """The records of its type that what the agent saw of them does not tell apart from a counterfactual."""
        new = {record for record in records if _type_of(record) == _type_of(name)} - self._compared[name]
        self._compared[name] |= new
        self._alike[name] |= {
            record for record in new if self._may_match(self._seen.get(record, {}), self._wanted[name])
        }
        return self._alike[name]

    def _is_known(self, reference: str) -> bool:
        """Whether the agent saw the whole current record during the episode."""
        if reference not in self._seen_in_full:
            self._seen_in_full[reference] = self._is_in_full(reference, self._seen.get(reference, {}))
        return self._seen_in_full[reference]

    def _is_in_full(self, reference: str, seen: Resource) -> bool:
        """Whether a response showed the whole current record."""
        whole = self._scratch.read(*reference.split("/"))
        return whole is not None and all(seen.get(name) == value for name, value in whole.items() if name != "meta")


def _is_whole(seen: Resource) -> bool:
    """Whether a response certainly showed all elements of a record."""
    meta = seen.get("meta")
    if not isinstance(meta, dict):
        return False
    tags = meta.get("tag", [])
    return isinstance(tags, list) and not any(tag == SUBSETTED for tag in tags)


def _changed(now: Mapping[str, Resource], then: Mapping[str, Resource], names: Iterable[str]) -> set[str]:
    """References to the wanted records that are new, or that differ in elements other than `meta`."""
    return {
        record
        for record in names
        if record in now and (record not in then or {**now[record], "meta": None} != {**then[record], "meta": None})
    }


def _type_of(reference: str) -> str:
    return reference.partition("/")[0]


def _count_rises(seen: ParsedResponse, now: ParsedResponse) -> bool:
    return seen.total is not None and now.total is not None and seen.total < now.total


def _matches(request: Request, scratch: ScratchServer) -> set[str]:
    """Return all matches of a search, from all its pages and with all elements."""
    query = _in_full(request.query)
    body = _in_full(request.body.decode()).encode() if request.method == "POST" else request.body
    whole = Request(request.method, request.path, query, request.headers, body)
    answer = ParsedResponse(scratch.handle(whole))
    return {*answer.returned_resources, *_on_further_pages(answer, scratch)}


def _in_full(query: str) -> str:
    pairs = parse_qsl(query, keep_blank_values=True)
    return urlencode([(name, value) for name, value in pairs if name not in _FORM_OF_RESULT])


def _on_further_pages(answer: ParsedResponse, scratch: ScratchServer) -> dict[str, Resource]:
    further: dict[str, Resource] = {}
    for _ in range(_MAX_PAGES):
        link = answer.next_link
        if link is None:
            break
        answer = ParsedResponse(scratch.handle(Request("GET", "/", urlsplit(link).query)))
        further |= answer.returned_resources
    return further


def _paired_tokens(seen: ParsedResponse, now: ParsedResponse) -> dict[str, str]:
    """Map the page token that the agent received to the scratch server's token for the same page."""
    old, new = seen.next_link, now.next_link
    if old is None or new is None:
        return {}
    old_tokens, new_tokens = (parse_qs(urlsplit(link).query).get("_getpages", []) for link in (old, new))
    return dict(zip(old_tokens, new_tokens, strict=False))


def _with_token(request: Request, tokens: dict[str, str]) -> Request:
    """Replace the agent's page tokens, also in the entries of a batch, by those of the scratch server."""
    if not tokens:
        return request

    def replaced(match: re.Match[bytes]) -> bytes:
        token = match[1].decode("latin-1")  # an agent may send any bytes
        return b"_getpages=" + tokens.get(token, token).encode("latin-1")

    query = _TOKEN_IN_JSON.sub(replaced, request.query.encode("utf-8", "surrogatepass"))
    body = _TOKEN_IN_JSON.sub(replaced, request.body)
    return replace(request, query=query.decode("utf-8", "surrogatepass"), body=body)
