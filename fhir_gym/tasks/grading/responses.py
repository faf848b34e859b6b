"""Read the responses that an agent received: their resources, and the pages of searches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from urllib.parse import parse_qsl, urlencode

import orjson

from fhir_gym.fhir.messages import Request, Response
from fhir_gym.fhir.paging import link
from fhir_gym.types import Json, Resource, as_list, as_object

PAGE_TOKEN = re.compile(r"_getpages=([^&]+)")
_MOST_PARSED = 8 * 1024 * 1024
"""Total size in bytes of the responses that stay in memory in parsed form."""
_PAGING = frozenset({"_count", "_offset", "_getpages", "_getpagesoffset", "_bundletype"})


class ParsedResponses:
    """Responses that are parsed once, up to a total size; beyond it, they are parsed at each use.

    Args:
        most: The total size in bytes.
    """

    def __init__(self, most: int = _MOST_PARSED) -> None:
        self._answers: dict[int, ParsedResponse] = {}
        self._left = most
        self.is_full = False
        """Whether a response did not fit."""

    def parse(self, response: Response) -> ParsedResponse:
        """Parse a response, or return the result of the last time."""
        parsed = self._answers.get(id(response))
        if parsed is None:
            parsed = ParsedResponse(response)  # it refers to the response, so the id stays taken
            if len(response.content) <= self._left:
                self._left -= len(response.content)
                self._answers[id(response)] = parsed
            else:
                self.is_full = True
        return parsed


class ParsedResponse:
    """A response with its parsed body."""

    def __init__(self, response: Response) -> None:
        self.response = response

    @cached_property
    def _body(self) -> Json:
        return _parsed(self.response)

    @property
    def is_look(self) -> bool:
        """Whether the request was a single read or search."""
        return any(interaction.looks and interaction.entry is None for interaction in self.response.done)

    @property
    def search(self) -> Request:
        """The search that the response answers, from its self link."""
        return Request("GET", f"/{self.response.done[0].resource_type}", _self_link(self._body).partition("?")[2])

    @property
    def next_link(self) -> str | None:
        """The link to the next page."""
        return link(self._body, "next")

    @property
    def total(self) -> int | None:
        """The number of matches that the response states."""
        total = self._body.get("total") if isinstance(self._body, dict) else None
        return total if isinstance(total, int) else None

    @cached_property
    def returned_resources(self) -> Mapping[str, Resource]:
        """The returned resources by reference; for a batch, the results of its reads and searches."""
        done = self.response.done
        if self.response.status >= 300 or not any(interaction.looks for interaction in done):
            return {}
        if self.is_look:
            return _resources_in(self._body)
        return {
            name: resource
            for interaction, answer in zip(done, _entries(self._body), strict=False)
            if interaction.looks and isinstance(answer, dict)
            for name, resource in _resources_in(answer.get("resource")).items()
        }

    def parts(self) -> Mapping[int, ParsedResponse]:
        """The reads and searches as responses of their own: the response itself, or entries of a batch by position."""
        if self.response.status >= 300 or self.is_look:
            return {0: self}
        return {
            place: ParsedResponse(
                Response(
                    interaction.status,
                    body=orjson.dumps(entry.get("resource")),
                    done=(interaction._replace(entry=None),),
                )
            )
            for place, (interaction, entry) in enumerate(zip(self.response.done, _entries(self._body), strict=False))
            if interaction.looks and isinstance(entry, dict)
        }

    def searchsets(self) -> Iterator[Resource]:
        """Yield the searchset Bundles: the response itself, or those in the entries of a batch."""
        body = self._body
        if not isinstance(body, dict) or body.get("resourceType") != "Bundle":
            return
        if str(body.get("type")).endswith("-response"):
            inner = (entry.get("resource") for entry in _entries(body) if isinstance(entry, dict))
            yield from (
                resource
                for resource in inner
                if isinstance(resource, dict) and resource.get("resourceType") == "Bundle"
            )
        else:
            yield body


def _resources_in(body: Json) -> dict[str, Resource]:
    """The resources in a response by reference, also those in Bundles inside of a Bundle."""
    if not isinstance(body, dict):
        return {}
    if body.get("resourceType") != "Bundle":
        return {f"{body.get('resourceType')}/{body['id']}": body} if isinstance(body.get("id"), str) else {}
    resources: dict[str, Resource] = {}
    for entry in _entries(body):
        resource = as_object(entry).get("resource")
        if isinstance(resource, dict) and resource.get("resourceType") != "Bundle":
            if isinstance(id := resource.get("id"), str):
                resources.setdefault(
                    f"{resource.get('resourceType')}/{id}", resource
                )  # a history starts with the latest
        else:
            resources |= _resources_in(resource)
    return resources


def _entries(bundle: Json) -> list[Json]:
    return as_list(as_object(bundle).get("entry"))


def _parsed(response: Response) -> Json:
    try:
        return orjson.loads(response.content)
    except orjson.JSONDecodeError:
        return None


class SeenPages:
    """The search pages that the agent has received."""

    def __init__(self, parsed: ParsedResponses) -> None:
        self._parsed = parsed
        self._reached: dict[str, int] = {}
        self._seen: dict[str, set[str]] = {}
        self._search: dict[str, str] = {}
        self._passed: list[Response] = []

    def pass_over(self, response: Response) -> None:
        """Remember a response. It is parsed only if a later page requires the earlier pages."""
        self._passed.append(response)

    def before(self, answer: ParsedResponse) -> set[str] | None:
        """The records on all earlier pages; None if the agent has not seen every page."""
        if not any(_offset(_query(body)) for body in answer.searchsets()):
            self.pass_over(answer.response)
            return set()
        while self._passed:
            self._take_in(self._parsed.parse(self._passed.pop(0)))
        return self._take_in(answer)

    def _take_in(self, answer: ParsedResponse) -> set[str] | None:
        answers = [body for body in answer.searchsets() if _self_link(body)]
        references: set[str] = set()
        for body in answers:
            search, offset = self._place(body)
            if self._reached.get(search, 0) < offset:
                return None
            if not offset:  # the same search again: what it found before may have changed since
                self._seen.pop(search, None)
            references |= self._seen.get(search, set())
            self._seen.setdefault(search, set()).update(_resources_in(body))
            self._reached[search] = max(self._reached.get(search, 0), offset + _matches_on(body))
        return references

    def _place(self, body: Resource) -> tuple[str, int]:
        """Return the search that a page belongs to, and the number of matches on earlier pages."""
        pairs = _query(body)
        token = dict(pairs).get("_getpages")
        address = _self_link(body).partition("?")[0]
        rest = sorted((name, value) for name, value in pairs if name not in _PAGING)
        search = self._search.get(token, token) if token else f"{address}?{urlencode(rest)}"
        following = link(body, "next")
        for match in PAGE_TOKEN.finditer(following or ""):
            self._search.setdefault(match[1], search)
        return search, _offset(pairs)


def _query(body: Resource) -> list[tuple[str, str]]:
    """The parameters in the self link of a search result."""
    return parse_qsl(_self_link(body).partition("?")[2], keep_blank_values=True)


def _offset(query: Iterable[tuple[str, str]]) -> int:
    """The number of matches on the pages before a page."""
    values = dict(query)
    offset = values.get("_getpagesoffset" if values.get("_getpages") else "_offset", "")
    return int(offset) if offset.isdecimal() else 0


def _self_link(body: Json) -> str:
    return link(body, "self") or ""


def _matches_on(body: Resource) -> int:
    """The number of matches on a page; included resources do not count."""
    modes = (entry.get("search") for entry in _entries(body) if isinstance(entry, dict))
    return sum(not (isinstance(mode, dict) and mode.get("mode") == "include") for mode in modes)
