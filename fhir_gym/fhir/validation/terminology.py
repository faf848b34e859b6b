"""Codes: does their code system have them, are they in the bound value set, and are units valid in UCUM?"""

from __future__ import annotations

import re
from functools import cache, lru_cache

from fhir_gym.fhir.definitions import Binding, binding, code_system, unit_codes, value_set
from fhir_gym.fhir.serialization.primitives import is_blank
from fhir_gym.fhir.validation.report import Issues, Severity
from fhir_gym.fhir.validation.tree import Node

_PASSED_ON = "Terminology_PassThrough_TX_Message"
_LANGUAGES = "urn:ietf:bcp:47"
# Systems that HAPI validates by rules and that HL7 does not list.
_UNITS = "http://unitsofmeasure.org"
_BY_RULE = frozenset({_UNITS, "urn:ietf:bcp:13", "urn:iso:std:iso:4217", "urn:iso:std:iso:3166"})
_SEVERITY: dict[str, Severity] = {"required": "error", "extensible": "warning", "preferred": "information"}
_NUMBER = {"required": 1, "extensible": 2, "preferred": 3}
_SUITABLE = "unless it has no suitable code (note that the validator cannot judge what is suitable)"
_EXPECTED = {
    "required": "is required from this value set",
    "extensible": f"should come from this value set {_SUITABLE}",
    "preferred": "is recommended to come from this value set",
}
_CONCEPT_EXPECTED = _EXPECTED | {"required": "from this value set is required)"}


def check_concept(node: Node, issues: Issues) -> None:
    """Check the codings of a CodeableConcept."""
    codings = node.find_all("coding")
    bound = binding(node.definition)
    if bound is not None and not codings:
        _report_no_code(node, bound, issues)
        return
    if bound is not None and any(_is_member(c.text_of("system"), c.text_of("code"), bound) for c in codings):
        return
    strength = bound.strength if bound else ""
    for coding in codings:
        _warn_without_system(node, coding, issues)
    if bound is not None:
        _report_expansion(node, codings, bound, issues)
    for coding in codings:
        _report_code(node, coding.text_of("system"), coding.text_of("code"), strength, issues)
    if bound is not None:
        codes = ", ".join(f"{c.text_of('system') or 'null'}#{c.text_of('code') or 'null'}" for c in codings)
        text = f"None of the codings provided are in the value set {bound}, and a coding {_CONCEPT_EXPECTED[strength]}"
        message = f"Terminology_TX_NoValid_{_NUMBER[strength]}_CC"
        issues.add(_SEVERITY[strength], node.path, f"{text} (codes = {codes})", message, node.steps)


def check_coding(node: Node, issues: Issues) -> None:
    """Check a Coding or Quantity that is not part of a CodeableConcept."""
    system, code = node.text_of("system"), node.text_of("code")
    if node.type == "Coding":
        _warn_without_system(node, node, issues)
    if not system or code is None:
        return
    bound = binding(node.definition)
    if bound is not None and _is_member(system, code, bound):
        return
    strength = bound.strength if bound else ""
    unknown = _report_code(node, system, code, strength, issues)
    if bound is not None and not bound.missing:
        text = f"The Coding provided ({system}#{code}) was not found in the value set {bound}, and a code "
        text += f"{_EXPECTED[strength]}.  (error message = {_reasons(unknown, system, code, bound)})"
        message = f"Terminology_TX_NoValid_{_NUMBER[strength] + 11}"
        issues.add(_SEVERITY[strength], node.path, text, message, node.steps)


def check_code(node: Node, issues: Issues) -> None:
    """Check a primitive value that is bound to a value set."""
    bound, code = binding(node.definition), node.text
    if bound is None or code is None or bound.missing or node.type not in ("code", "string", "uri"):
        return
    listed = value_set(bound.url) or {}
    if any(code in codes for codes in listed.values()):
        return
    system = next(iter(listed), "") if len(listed) == 1 else ""
    unknown = _report_code(node, system, code, bound.strength, issues) if system else ""
    text = f"The value provided ('{code}') was not found in the value set {bound}, and a code "
    space = " " if bound.strength == "preferred" else "  "
    text += f"{_EXPECTED[bound.strength]}{space}(error message = {_reasons(unknown, system, code, bound)})"
    message = f"Terminology_TX_NoValid_{_NUMBER[bound.strength] + 15}"
    issues.add(_SEVERITY[bound.strength], node.path, text, message, node.steps)


def _reasons(unknown: str, system: str, code: str, bound: Binding) -> str:
    last = f"Unknown code '{system}#{code}' for in-memory expansion of ValueSet '{bound.url}'"
    return f"{unknown}; {last}" if unknown else last


def _is_member(system: str | None, code: str | None, bound: Binding) -> bool:
    """Return whether a value set has a code; one that is not listed has every code of the systems known by rule."""
    if bound.missing and bound.missing != system and not _is_listed(bound.missing):
        return False
    if bound.missing:
        return bound.missing in _BY_RULE or _is_listed(bound.missing)
    listed = value_set(bound.url) or {}
    return system is not None and code in listed.get(system, ())


def _is_listed(system: str) -> bool:
    return code_system(system) is not None


def _report_no_code(node: Node, bound: Binding, issues: Issues) -> None:
    if bound.strength == "required":
        text, message = f"No code provided, and a code is required from the value set {bound}", "ValueSet"
    elif bound.strength == "extensible":
        text, message = f"No code provided, and a code should be provided from the value set {bound}", "ValueSet_Ext"
    else:
        return
    issues.add(_SEVERITY[bound.strength], node.path, text, f"Terminology_TX_Code_{message}", node.steps)


def _warn_without_system(node: Node, coding: Node, issues: Issues) -> None:
    if coding.text_of("code") is None or not is_blank(coding.text_of("system") or ""):
        return
    text = "Coding has no system. A code with no system has no defined meaning, and it cannot be validated. "
    issues.add("warning", node.path, f"{text}A system should be provided", "", node.steps)


def _report_expansion(node: Node, codings: list[Node], bound: Binding, issues: Issues) -> None:
    if bound.missing:
        text = f"Unable to expand ValueSet because CodeSystem could not be found: {bound.missing}"
    elif any(not coding.text_of("system") for coding in codings) and not _is_expandable(bound):
        text = "Unable to expand value set"
    else:
        return
    issues.add("warning", node.path, text, _PASSED_ON, node.steps)


def _is_expandable(bound: Binding) -> bool:
    """Return whether HL7 lists all codes of all systems in a value set, which HAPI needs to find a code's system."""
    systems = [code_system(system) for system in value_set(bound.url) or {}]
    return all(system is not None and system.content == "complete" for system in systems)


def _report_code(node: Node, system: str | None, code: str | None, strength: str, issues: Issues) -> str:
    """Report a code that its system does not have, or whose system is unknown; return the message."""
    system_codes = code_system(system) if system else None
    severity: Severity = "error"
    if not system or (system in _BY_RULE and (system != _UNITS or code is None or is_unit(code))):
        return ""
    if system == _UNITS:
        text = f"Error processing unit '{code}': The unit '{code}' is unknown for '{system}#{code}'"
    elif system_codes is not None and system_codes.content == "complete":
        if code is not None and code in system_codes:
            return ""
        text = f"Unknown code '{system}#{code or 'null'}'"
    elif system_codes is not None or (system == _LANGUAGES and code in _languages()):
        return ""
    else:
        severity = "error" if strength == "required" else "warning"
        text = f"CodeSystem is unknown and can't be validated: {system} for '{system}#{code or 'null'}'"
    issues.add(severity, node.path, text, _PASSED_ON, node.steps)
    return text


@cache
def _languages() -> frozenset[str]:
    """Return the tags of languages that HL7 names."""
    common = value_set("http://hl7.org/fhir/ValueSet/languages") or {}
    return frozenset(code for codes in common.values() for code in codes)


_ANNOTATION = re.compile(r"\{[ -z|~]*\}")
_FACTOR = re.compile(r"[0-9]+")
_EXPONENT = re.compile(r"[+-]?[0-9]+")
_LONGEST = 200


@lru_cache(maxsize=4_096)
def is_unit(code: str) -> bool:
    """Return whether a code is one of UCUM's (case-sensitive), such as ``mg/dL``, ``10*3/uL`` or ``{beats}/min``."""
    if not code or len(code) > _LONGEST:
        return False
    try:
        return _term(code, 1 if code[0] == "/" else 0) == len(code)
    except ValueError:
        return False


def _term(code: str, at: int) -> int:
    """Return the end of components that are multiplied or divided."""
    at = _component(code, at)
    while code[at : at + 1] in (".", "/"):
        at = _component(code, at + 1)
    return at


def _component(code: str, at: int) -> int:
    """Return the end of a unit, a number, a term in parentheses, or an annotation.

    Raises:
        ValueError: There is none.
    """
    start = at
    if code[at : at + 1] == "(":
        at = _term(code, at + 1 + (code[at + 1 : at + 2] == "/"))
        if code[at : at + 1] != ")":
            raise ValueError(code)
        at += 1
    elif match := _simple_unit().match(code, at):
        at = match.end()
        exponent = _EXPONENT.match(code, at)
        at = exponent.end() if exponent else at
    elif match := _FACTOR.match(code, at):
        at = match.end()
    if annotation := _ANNOTATION.match(code, at):
        at = annotation.end()
    if at == start:
        raise ValueError(code)
    return at


@cache
def _simple_unit() -> re.Pattern[str]:
    """Return the pattern of a unit; one without a prefix goes before, as in ``min`` or ``cd``."""
    prefixes, metric, other = unit_codes()
    names = _either((*metric, *other))
    end = r"(?=[+\-0-9./){]|$)"
    return re.compile(rf"(?:{names}|(?:{_either(prefixes)})(?:{_either(metric)})){end}")


def _either(names: tuple[str, ...]) -> str:
    return "|".join(re.escape(name) for name in sorted(names, key=lambda name: (-len(name), name)))
