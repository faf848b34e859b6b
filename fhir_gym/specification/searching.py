"""The search parameters of a resource type as text, with the rules of their types."""

from __future__ import annotations

import re

from fhir_gym.errors import UnknownNameError
from fhir_gym.fhir.definitions import RESOURCE_TYPES, SearchParameter, children, search_parameters
from fhir_gym.specification import texts

_LEGEND = "Lines: name type(targets) on the searched elements - meaning. Names are case-sensitive."
_HINTS = {
    "token": "code, system|code (exact), system| (any code of the system), |code (no system). "
    "Modifiers :not, :text (start of the display), :in (URL of a value set).",
    "string": "start of the text; case and accents do not matter. Modifiers :exact, :contains.",
    "date": "2024-05-01, 2024-05 or 2024-05-01T09:30:00Z. Prefixes eq ne gt ge lt le sa eb ap: ge2024-05-01. "
    "For a range, give the parameter twice.",
    "number": "a number. Prefixes eq ne gt ge lt le: gt5.",
    "quantity": "number or number|system|unit. Prefixes eq ne gt ge lt le: gt5.4|http://unitsofmeasure.org|mmol/L.",
    "reference": "Type/id or id. With several target types, name:Type=id. Chains search by the target's parameters: "
    "name:Type.parameter=value.",
    "uri": "the exact URI. Modifiers :above, :below.",
    "composite": "the values of the named parameters in this order, joined with $.",
    "special": "latitude|longitude|distance|unit, for example 42.25|-83.69|11|km.",
}
# Without `_source`, which HAPI and this server refuse by default.
_COMMON = {
    "_id": "id",
    "_lastUpdated": "date of the last change, as for date",
    "_tag": "tag of the meta element, as for token",
    "_profile": "profile, as for uri",
    "_security": "security label, as for token",
}
_RESULTS = """\
Results: _count=50 (page size; more matches: next link of the Bundle) | _sort=-NAME,NAME (- = descending) | \
_include={type}:NAME (adds the targets of a reference) | \
_revinclude=Type:NAME (adds resources that refer to the matches) | \
_elements=id,NAME | _summary=count (only the number of matches) | _total=accurate
Reverse chain: _has:Type:NAME:parameter=value (matches to which a Type refers with NAME).
All: name=a,b means a or b; a repeated name means and; name:missing=true|false."""
_CHOICE = re.compile(r"\(?([\w.]+)(?: as |\.as\()(\w+)\)")


def text(resource_type: str) -> str:
    """Return the search parameters of a resource type."""
    parameters = search_parameters(resource_type)
    own = [parameter for name, parameter in parameters.items() if not name.startswith("_")]
    kinds = dict.fromkeys(sorted({parameter.type for parameter in own}))
    common = " | ".join(f"{name} ({_COMMON[name]})" for name in parameters if name in _COMMON)
    return "\n".join(
        [
            f"Search parameters of {resource_type}. {_LEGEND}",
            *(_line(parameter, resource_type) for parameter in own),
            f"Common: {common}",
            "Values by type:",
            *(f"- {kind}: {_HINTS[kind]}" for kind in kinds),
            _RESULTS.format(type=resource_type),
        ]
    )


def _line(parameter: SearchParameter, resource_type: str) -> str:
    inside = ""
    if parameter.type == "reference":
        everything = len(parameter.targets) >= len(RESOURCE_TYPES) - 1
        inside = "any" if everything else " | ".join(parameter.targets)
    elif parameter.components:
        inside = ", ".join(name for name, _ in parameter.components)
    kind = f"{parameter.type}({inside})" if inside else parameter.type
    found = f"{parameter.name} {kind} on {_searched(parameter.expression, resource_type)}"
    meaning = texts.search_parameter(parameter.definition, resource_type)
    return f"{found} - {meaning.removesuffix('.')}" if meaning else found


def _searched(expression: str, resource_type: str) -> str:
    """Return an expression with JSON names and without the resource type (``valueQuantity | valueSampledData``)."""
    shown = _CHOICE.sub(lambda found: found[1] + found[2][0].upper() + found[2][1:], expression)
    shown = re.sub(r"\.where\(resolve\(\) is (\w+)\)", r" (\1 only)", shown)
    shown = re.sub(rf"\b{resource_type}\.[\w.]+", lambda found: _with_choice(found[0]), shown)
    return re.sub(rf"\b{resource_type}\.", "", shown)


def _with_choice(path: str) -> str:
    """Return a path, with ``[x]`` at its end if it is a choice (``Observation.effective``)."""
    parent, _, name = path.rpartition(".")
    try:
        is_choice = any(element.choice == name for element in children(parent).values())
    except UnknownNameError:
        return path
    return f"{path}[x]" if is_choice else path
