"""The bindings of coded elements as text: strength, code systems, codes with their displays."""

from __future__ import annotations

import re

from fhir_gym.fhir.definitions import Element
from fhir_gym.specification import texts
from fhir_gym.specification.texts import Codes, ElementText

_MOST_REQUIRED = 40
"""Most codes of a required binding that an element's line lists."""
_MOST_OTHERS = 12
"""Most codes of an extensible or preferred binding that an element's line lists."""
_MAX_LISTED = 10_000
"""Maximum number of characters of the codes of one element, for which the model asked."""


def inline(element: Element, text: ElementText, path: str) -> str:
    """Return an element's binding in brackets, for its line; empty if the element has none.

    Args:
        element: The element; for a choice, its coded type.
        text: The text about the element.
        path: The `path` with which a model can ask for the codes that the line does not list.
    """
    if not text.strength:
        return ""
    known = texts.codes(text.value_set)
    if known is None:
        return f" [{text.strength}: {_unlisted(text)}]"
    if not is_inline(text):
        others = "" if known.complete else " and others"
        return f' [{text.strength}: {len(known)} codes of {", ".join(known.by_system)}{others}; list: path="{path}"]'
    return f" [{text.strength}: {_by_system(known) if element.type != 'code' else _without_systems(known)}]"


def is_inline(text: ElementText) -> bool:
    """Return whether the element's line lists its codes."""
    known = texts.codes(text.value_set) if text.strength else None
    if known is None or text.strength == "example" or not known.complete:
        return False
    return len(known) <= (_MOST_REQUIRED if text.strength == "required" else _MOST_OTHERS)


def in_full(text: ElementText) -> str:
    """Return an element's binding with all known codes; empty if the element has none."""
    if not text.strength:
        return ""
    known = texts.codes(text.value_set)
    if known is None:
        return f"Binding: {text.strength}, {_unlisted(text)}"
    listed = _by_system(known)
    if len(listed) > _MAX_LISTED:
        listed = listed[:_MAX_LISTED].rpartition(" | ")[0] + f" | … ({len(known)} codes)"
    others = "" if known.complete else "\nOther codes are possible."
    return f"Binding: {text.strength}, value set {text.value_set}\n{listed}{others}"


def _unlisted(text: ElementText) -> str:
    if not text.value_set:
        return "codes that the context defines"
    systems = texts.systems(text.value_set)
    return f"codes of {', '.join(systems)}" if systems else f"value set {text.value_set}"


def _by_system(known: Codes) -> str:
    """Return the codes with their systems and displays."""
    parts = known.by_system.items()
    return "; ".join(
        f"system {system} codes {' | '.join(_code(system, one) for one in codes)}" for system, codes in parts
    )


def _without_systems(known: Codes) -> str:
    """Return the codes as they stand in an element of the type `code`."""
    return " | ".join(code for codes in known.by_system.values() for code in codes)


def _code(system: str, code: str) -> str:
    display = texts.display(system, code)
    return f'{code} "{display}"' if display else code


def without_codes(short: str, text: ElementText) -> str:
    """Return a short description without its list of codes (``home | work - purpose of this address``)."""
    known = texts.codes(text.value_set) if text.strength else None
    if known is None or "|" not in short:
        return short
    codes = {code for listed in known.by_system.values() for code in listed}
    *parts, last = (part.strip() for part in short.split("|"))
    code, _, rest = last.partition(" ")
    if any(part not in codes for part in parts) or code not in codes:
        return short
    return re.sub(r"^[-+ ]+", "", rest)
