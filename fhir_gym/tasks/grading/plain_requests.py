"""The resource types that plain reads and searches can return, and whether they may return a certain resource."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET, search_parameters
from fhir_gym.fhir.index import IndexField, index_rows, index_spec
from fhir_gym.fhir.index.values import normalise
from fhir_gym.fhir.messages import Request
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.urls import decode_query
from fhir_gym.types import Resource

_PLAIN_PATH = re.compile(r"/?([A-Z][A-Za-z]+)(?:/([A-Za-z0-9.-]+))?/?$")
"""Path of a search or a read, relative to the base URL."""
_PLAIN_PARAMETER = re.compile(r"(?:[a-z][a-z-]*|_id|_count|_sort|_elements|_summary|_total|_lastUpdated)$")
"""Name of a search parameter, without chains and modifiers, that neither includes nor depends on other types."""
_CHAIN = re.compile(r"([a-z][a-z-]*)(?::([A-Z][A-Za-z]+))?\.[a-z][a-z-]*$")
"""Name of a parameter of the resources that a reference parameter refers to."""
_INCLUDE = re.compile(r"([A-Z][A-Za-z]+):([a-z][a-z-]*)(?::([A-Z][A-Za-z]+))?$")
"""Value of `_include` or `_revinclude` that names one parameter of one type."""
_SHORT = 512
"""Maximum length of the paths with queries in the cache."""
_SIMPLE_REFERENCE = re.compile(r"(?:[A-Za-z]+/)?([A-Za-z0-9.-]+)$")


@dataclass(frozen=True, slots=True)
class PlainRequest:
    """A read or search whose response depends only on resources of certain types, and contains no others.

    Attributes:
        resource_type: The type in the path.
        id: The id of a read; None for a search.
        parameters: Names and values in the query, decoded.
        referring: The types that `_revinclude` adds.
        referred: The types that `_include` may add.
        types: The resource types on which the response depends.
    """

    resource_type: str
    id: str | None
    parameters: tuple[tuple[str, str], ...]
    referring: frozenset[str]
    referred: frozenset[str]
    types: frozenset[str]


def parse_plain(request: Request) -> PlainRequest | None:
    """Parse a plain read or search; None for another request."""
    if request.method != "GET":
        return None
    is_short = len(request.path) + len(request.query) <= _SHORT
    return (_parsed if is_short else _parsed.__wrapped__)(request.path, request.query)


@lru_cache(maxsize=4096)
def _parsed(path: str, query: str) -> PlainRequest | None:
    plain = _PLAIN_PATH.match(path)
    if plain is None:
        return None
    try:
        parameters = decode_query(query)
    except (FhirError, UnicodeError):  # an agent may send any bytes
        return None
    referring, referred, chained = set[str](), set[str](), set[str]()
    for name, value in parameters:
        if name in ("_include", "_revinclude"):
            include = _INCLUDE.match(value)
            if include is None:
                return None
            if name == "_include":
                referred.update(_targets(*include.groups()))
            else:
                referring.add(include[1])
        elif chain := _CHAIN.match(name):
            chained.update(_targets(plain[1], chain[1], chain[2]))
        elif not _PLAIN_PARAMETER.match(name):
            return None
    types = frozenset({plain[1], *referring, *referred, *chained})
    return PlainRequest(plain[1], plain[2], tuple(parameters), frozenset(referring), frozenset(referred), types)


def _targets(resource_type: str, parameter: str, target: str | None) -> Collection[str]:
    """Return the types to which a reference parameter may refer; an unknown parameter refers to nothing."""
    search_parameter = search_parameters(resource_type).get(parameter) if resource_type in RESOURCE_TYPE_SET else None
    return () if search_parameter is None else search_parameter.targets if target is None else (target,)


class SearchedResource:
    """A resource, and whether plain requests may return it.

    The references, tokens and strings in it are compared. All other parameters are taken to match.

    Args:
        is_referred_to: Function that tells whether other resources may refer to it.
    """

    def __init__(self, resource: Resource, is_referred_to: Callable[[], bool] = lambda: True) -> None:
        self._type: str = resource["resourceType"]
        self._id: str = resource["id"]
        self._resource = resource
        self._is_referred_to = is_referred_to

    def may_be_returned(self, request: PlainRequest) -> bool:
        """Whether the response to a request may contain the resource."""
        if self._type in request.referring or (self._type in request.referred and self._is_referred_to()):
            return True
        if self._type != request.resource_type:
            return False
        if request.id is not None:
            return request.id == self._id
        return all(self._may_match(name, value) for name, value in request.parameters)

    def _may_match(self, name: str, value: str) -> bool:
        field = index_spec(self._type).fields.get(name)
        if field is None or "\\" in value:
            return True
        options = [text for text in value.split(",") if text]
        return not options or any(self._may_be(field, option) for option in options)

    def _may_be(self, field: IndexField, option: str) -> bool:
        """Whether a value under a search parameter may match one of the alternatives in a query."""
        values = [value for pid in field.pids for value in self._values.get((field.table, pid), ())]
        if field.kind == "reference":
            simple = _SIMPLE_REFERENCE.match(option)
            return simple is None or simple[1] in values
        if field.kind == "token":
            code = option.lstrip().rpartition("|")[2]
            return not code or code in values
        if field.kind == "string":
            start = normalise(option).partition("_")[0]  # the underscore matches any character
            return any(value.startswith(start) for value in values)
        return True

    @cached_property
    def _values(self) -> Mapping[tuple[str, int], set[str]]:
        """The values in the index by table and path id."""
        rows = index_rows(self._resource, 0)
        values: dict[tuple[str, int], set[str]] = {}
        for table in ("reference", "token", "string"):
            for pid, value, *_ in rows[table]:
                values.setdefault((table, pid), set()).add(value)
        return values
