"""Parse the query of a search: parameter names and values, result parameters, `_include` and `_revinclude`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET, search_parameters
from fhir_gym.fhir.limits import Limits
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.urls import Pairs, element_names

# names and values

_SHORT = 256
"""Maximum length of the names in the cache."""


class ParameterName(NamedTuple):
    """A parameter's name in a query.

    Attributes:
        base: The name of the search parameter.
        modifier: The text after ``:`` (a modifier or a target type); None if there is no ``:``.
        chain: The parameter of the reference's target, with its own modifier and chain; None if there is no chain.
    """

    base: str
    modifier: str | None
    chain: str | None


def parse_name(text: str) -> ParameterName:
    """Split a name such as ``actor:Practitioner.family:exact`` at the first ``:`` and ``.``."""
    return _parsed(text) if len(text) <= _SHORT else _parsed.__wrapped__(text)


@lru_cache(maxsize=1024)
def _parsed(text: str) -> ParameterName:
    head, dot, chain = text.partition(".")
    base, colon, modifier = head.partition(":")
    return ParameterName(base, modifier if colon else None, chain if dot else None)


def split(text: str, separator: str) -> list[str]:
    r"""Split text at separators without a ``\`` before them; escapes are kept."""
    if "\\" not in text:
        return text.split(separator)
    pieces, piece, escaped = [], "", False
    for char in text:
        if char == separator and not escaped:
            pieces.append(piece)
            piece = ""
        else:
            piece += char
        escaped = char == "\\" and not escaped
    return [*pieces, piece]


def unescape(text: str) -> str:
    r"""Replace ``\,``, ``\|``, ``\$`` and ``\\``; any other ``\`` is kept."""
    if "\\" not in text:
        return text
    plain, chars = "", iter(text)
    for char in chars:
        if char == "\\":
            following = next(chars, "")
            plain += following if following in ",|$\\" else char + following
        else:
            plain += char
    return plain


# prefixes

_PREFIXES = {p: p for p in ("eq", "ne", "gt", "lt", "ge", "le", "sa", "eb", "ap")} | {
    ">": "gt",
    ">=": "ge",
    "<": "lt",
    "<=": "le",
    "~": "ap",
}


def split_prefix(text: str) -> tuple[str, str]:
    """Split a value such as ``ge2023`` into its comparator (``""`` if there is none) and the rest.

    Raises:
        FhirError: There is no digit, or the text before the first digit is not a comparator.
    """
    end = next((i for i, c in enumerate(text) if c in "-%" or c.isdigit()), None)
    if end is None:
        raise FhirError(400, f'HAPI-1940: Invalid date/time/quantity format: "{text}"')
    prefix = text[:end]
    if not prefix.strip():
        return "", text[end:]
    if prefix not in _PREFIXES:
        raise FhirError(400, f'HAPI-1941: Invalid prefix: "{prefix.replace(" ", "+")}"')
    return _PREFIXES[prefix], text[end:]


# result parameters

DEFAULT_COUNT = 20

_RESULT = frozenset({"_count", "_offset", "_total", "_format", "_pretty", "_contained", "_containedType"})
_INCLUDES = ("_include", "_revinclude")
_MAX_JAVA_INT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Shape:
    """The parts of each resource that the answer contains.

    Attributes:
        elements: The requested elements; None if all are requested.
        summary: ``true``, ``data``, ``text`` or ``count``; None for the whole resource.
        scope: The type in the request's path, to which the elements apply; None means the resource's own type.
    """

    elements: tuple[str, ...] | None = None
    summary: str | None = None
    scope: str | None = None

    @property
    def whole(self) -> bool:
        """Whether resources are returned as stored."""
        return self.elements is None and self.summary in (None, "count")


WHOLE = Shape()


@dataclass(slots=True)
class SearchOptions:
    """The result parameters of a search, such as `_count` and `_sort`.

    `count` and `offset` are None if they are not in the query. `subsets` are the values of `_elements` and `_summary`.
    """

    count: int | None
    offset: int | None
    accurate: bool
    sorts: tuple[tuple[str, str], ...]
    includes: tuple[tuple[str, str], ...]
    subsets: tuple[Sequence[str], Sequence[str]]
    format: str | None
    pretty: str | None

    def shape(self, limits: Limits, scope: str) -> Shape:
        """Return the requested parts of each resource; `scope` is the type in the request's path.

        Raises:
            FhirError: The values of `_elements` and `_summary` are invalid.
        """
        elements, summaries = self.subsets
        return parse_shape(elements, summaries, limits, scope) if elements or summaries else WHOLE


def parse_options(pairs: Pairs) -> tuple[SearchOptions, Pairs]:
    """Split a query into result parameters (such as `_count`) and parameters that select matches."""
    values_by_name: dict[str, list[str]] = {}
    sorts, includes, rest = [], [], []
    for name, value in pairs:
        if not name.startswith("_"):
            rest.append((name, value))
            continue
        base = name.partition(":")[0]
        if base in _INCLUDES:
            includes.append((name, value))
        elif base == "_sort":
            sorts.append((name, value))
        elif name in _RESULT or base in ("_elements", "_summary"):
            values_by_name.setdefault(name, []).append(value)
        else:
            rest.append((name, value))
    _check_contained(values_by_name.get("_contained", ()))
    options = SearchOptions(
        count=_count(values_by_name.get("_count", ())),
        offset=_offset(values_by_name.get("_offset", ())),
        accurate="accurate" in values_by_name.get("_total", ()),
        sorts=tuple(sorts),
        includes=tuple(includes),
        subsets=(values_by_name.get("_elements", ()), values_by_name.get("_summary", ())),
        format=next(iter(values_by_name.get("_format", ())), None),
        pretty=next(iter(values_by_name.get("_pretty", ())), None),
    )
    return options, rest


def whole_number(text: str) -> int | None:
    """Parse an integer as Java's ``Integer.parseInt`` does; None if Java would refuse it."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 10 or abs(int(text)) > _MAX_JAVA_INT:
        return None
    return int(text)


def _count(values: Sequence[str]) -> int | None:
    if not values or not values[0]:
        return None
    count = whole_number(values[0])
    if count is None:
        raise FhirError(400, f"HAPI-0375: Invalid _count value: {values[0]}")
    return count


def _offset(values: Sequence[str]) -> int | None:
    if not values or not values[0]:
        return None
    offset = whole_number(values[0])
    if offset is None:
        raise FhirError(400, f"HAPI-0461: Invalid _offset value: {values[0]}")
    if offset < 0:
        raise FhirError(400, "Offset must be a positive integer")
    return offset


def _check_contained(values: Sequence[str]) -> None:
    if "true" in values:
        raise FhirError(405, "HAPI-0984: Searching with _contained mode enabled is not enabled on this server")
    if "both" in values:
        raise FhirError(405, "HAPI-0983: Contained mode 'both' is not currently supported")


def parse_shape(elements: Sequence[str], summaries: Sequence[str], limits: Limits, scope: str | None = None) -> Shape:
    """Parse the values of all `_elements` and `_summary` parameters."""
    if not elements and not summaries:
        return WHOLE
    names = tuple(filter(None, element_names(limits, elements)))
    modes = {piece.strip().lower() for value in summaries for piece in value.split(",")}
    modes &= {"true", "data", "text", "count"}
    if names and modes:
        raise FhirError(400, "HAPI-0304: Cannot combine the _summary and _elements parameters")
    if "text" in modes and len(modes) > 1:
        raise FhirError(400, "HAPI-0380: Can not combine _summary=text with other values for _summary")
    summary = next((mode for mode in ("count", "text", "data", "true") if mode in modes), None)
    return Shape(names or None, summary, scope)


# includes


@dataclass(frozen=True, slots=True)
class Include:
    """One `_include` or `_revinclude` parameter.

    Attributes:
        backwards: Whether the parameter follows references from target to source (`_revinclude`).
        iterate: Whether the parameter also applies to included resources.
        source: The type that contains the references; ``*`` for any type.
        parameter: Search parameter; ``*`` for all.
        target: The type to which the references must point; None for any type.
    """

    backwards: bool
    iterate: bool
    source: str
    parameter: str
    target: str | None


def parse_includes(includes: Iterable[tuple[str, str]], most: int) -> list[Include]:
    """Parse the `_include` and `_revinclude` parameters of a query, without repeats.

    Raises:
        FhirError: A parameter is invalid, or there are more than `most`.
    """
    asked = dict.fromkeys((name, value) for name, value in includes if value)
    if len(asked) > most:
        raise FhirError(400, f"More than {most} _include and _revinclude parameters are not supported by this server")
    return [_parse(*name.partition(":")[::2], value) for name, value in asked]


def _parse(name: str, modifier: str, value: str) -> Include:
    if "," in value:
        raise FhirError(
            400, f"HAPI-0441: 'OR' query parameters (values containing ',') are not supported in {name} parameters"
        )
    iterate = modifier in ("iterate", "recurse")
    if value == "*":
        return Include(name == "_revinclude", iterate, "*", "*", None)
    source, _, rest = value.partition(":")
    parameter, colon, target = rest.partition(":")
    bad = f'Invalid {name} parameter value: "{value}". '
    if not source or not parameter or (colon and not target):
        raise FhirError(400, f"HAPI-2018: {bad}")
    if source not in RESOURCE_TYPE_SET:
        raise FhirError(400, f'HAPI-2017: {bad}Invalid/unsupported resource type: "{source}"')
    if colon and target not in RESOURCE_TYPE_SET:
        raise FhirError(400, f'HAPI-2016: {bad}Invalid/unsupported resource type: "{target}"')
    parameters = search_parameters(source)
    if parameter != "*" and parameter not in parameters:
        names = ", ".join(sorted(n for n, p in parameters.items() if p.type == "reference"))
        raise FhirError(
            400,
            f'HAPI-2015: {bad}Unknown search parameter "{parameter}" for resource type "{source}". '
            f"Valid search parameters for this search are: [{names}]",
        )
    return Include(name == "_revinclude", iterate, source, parameter, target or None)
