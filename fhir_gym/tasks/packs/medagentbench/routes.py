"""Recognise routes of administration in codes and texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from fhir_gym.tasks.authoring import SNOMED, codings, concept_texts
from fhir_gym.tasks.grading import plain
from fhir_gym.types import Json

_V3 = "http://terminology.hl7.org/CodeSystem/v3-RouteOfAdministration"
_V2 = "http://terminology.hl7.org/CodeSystem/v2-0162"
_SAME_SYSTEM: Mapping[str, str] = {
    "http://hl7.org/fhir/v3/RouteOfAdministration": _V3,
    "urn:oid:2.16.840.1.113883.5.112": _V3,
    "http://hl7.org/fhir/v2/0162": _V2,
    "urn:oid:2.16.840.1.113883.6.96": SNOMED,
}
_WORD = re.compile(r"[^\W_]+")
_AROUND = frozenset(_WORD.findall("a administration as by for of per qualifier route the through use value via"))
"""Words that may surround the name of a route."""


@dataclass(frozen=True, slots=True)
class Route:
    """A route of administration.

    Attributes:
        name: Name of the route in prompts.
        says: Words that name the route; a text must contain at least one of these words.
        more: Other words that a text about the route may contain.
        codes: The route's codes by system.
    """

    name: str
    says: frozenset[str]
    more: frozenset[str]
    codes: Mapping[str, frozenset[str]]


def _route(name: str, says: str, more: str, snomed: str, v3: str, v2: str) -> Route:
    codes = {SNOMED: snomed, _V3: v3, _V2: v2}
    by_system = {system: frozenset(some.split()) for system, some in codes.items()}
    return Route(name, frozenset(says.split()), frozenset(more.split()), by_system)


INTRAVENOUS = _route(
    "iv",
    "iv ivpb intravenous intravenously intravenousroute",
    "catheter drip infusion injection intermittent line peripheral piggyback",
    "47625008 255560000 419993007",
    "IV IVC IVCI IVINJ _IntravenousRoute",
    "IV",
)
ORAL = _route("oral", "oral orally po os mouth oralroute", "swallow", "26643006 260548002", "PO _OralRoute", "PO")
SUBCUTANEOUS = _route(
    "subcutaneous",
    "subcutaneous subcutaneously sc sq subq subcut subcutaneousroute",
    "injection",
    "34206005 263887005",
    "SQ _SubcutaneousRoute",
    "SC",
)
ROUTES: Mapping[str, Route] = {"intravenous": INTRAVENOUS, "oral": ORAL, "subcutaneous": SUBCUTANEOUS}
"""Routes by their names in prompts."""


def is_route(said: Json, route: Route) -> bool:
    """Return whether a text, or every known code and every text of a CodeableConcept, names a route."""
    if isinstance(said, str):
        return _names(said, route)
    if not isinstance(said, dict):
        return False
    told = [_names(label, route) for label in concept_texts(said)]
    for coding in codings(said):
        system = str(coding.get("system"))
        codes = route.codes.get(_SAME_SYSTEM.get(system, system))
        if codes is not None:
            told.append(str(coding.get("code")) in codes)
    return bool(told) and all(told)


def _names(label: str, route: Route) -> bool:
    text = plain(label).casefold().replace("p.o.", "po").replace("i.v.", "iv").replace("sub-", "sub")
    words = {*_WORD.findall(text)}
    return bool(words & route.says) and words <= _AROUND | route.says | route.more
