"""What codes stand for, and the general ranges of vital signs, for records that do not say it themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

from fhir_gym.types import Json, Resource
from fhir_gym.web.element_text import element_text, shortened
from fhir_gym.worlds.hospital import datatypes as r4
from fhir_gym.worlds.hospital.labs import LABS
from fhir_gym.worlds.hospital.vitals import VITALS

ADULT = 18
"""Age in years from which the general ranges apply."""
SOURCE = "https://medlineplus.gov/ency/article/002341.htm"
"""Where the general ranges come from: MedlinePlus, "Vital signs", for the average healthy adult at rest."""


@dataclass(frozen=True, slots=True)
class GeneralRange:
    """The range of a vital sign in healthy adults at rest.

    Attributes:
        low: Lower limit.
        high: Upper limit.
        unit: UCUM code of the unit.
    """

    low: float
    high: float
    unit: str


_PULSE, _BREATHING = GeneralRange(60, 100, "/min"), GeneralRange(12, 18, "/min")
_TEMPERATURE = GeneralRange(36.5, 37.3, "Cel")
_RANGES = {
    **{"8867-4": _PULSE, "HR": _PULSE},
    **{"9279-1": _BREATHING, "RR": _BREATHING},
    **{"8310-5": _TEMPERATURE, "TEMP": _TEMPERATURE},
    **{"8480-6": GeneralRange(90, 120, "mm[Hg]"), "8462-4": GeneralRange(60, 80, "mm[Hg]")},
}
"""General ranges by code, of LOINC or the hospital's own."""
_NAMES = {base: test.loinc[1] for base, test in (LABS | VITALS).items()} | {"BP": "Blood pressure"}
"""What the hospital's own names of measurements stand for; the cohort writes these names as LOINC codes."""
_SYSTEMS = {r4.LOINC: "LOINC", r4.SNOMED: "SNOMED CT", r4.ICD10: "ICD-10-CM", r4.RXNORM: "RxNorm", r4.CPT: "CPT"}


def general_range(code: Json, quantity: Json) -> GeneralRange | None:
    """Return the general range for an amount; None if there is none for the code, or the amount has another unit."""
    unit = quantity.get("code") if isinstance(quantity, dict) else None
    ranges = (_RANGES.get(coding["code"]) for coding in _codings(code) if _is_measurement(coding))
    return next((each for each in ranges if each is not None and each.unit == unit), None)


def explained(concept: Json, title: str) -> str:
    """Return what a title does not say of a CodeableConcept: the displays and codes of its codings."""
    codes_of_displays: dict[str, list[str]] = {}
    for coding in _codings(concept):
        code, display = coding["code"], element_text(coding.get("display"))
        if display in ("", code) and _is_measurement(coding):
            display = _NAMES.get(code, "")
        codes = codes_of_displays.setdefault("" if display in (title, code) else display, [])
        if code != title:
            codes.append(f"{_SYSTEMS.get(str(coding.get('system')), '')} {code}".strip())
    parts = ((display, ", ".join(codes)) for display, codes in codes_of_displays.items())
    texts = (f"{display} ({codes})" if display and codes else display or codes for display, codes in parts)
    return shortened("; ".join(filter(None, texts)))


def _is_measurement(coding: Resource) -> bool:
    return coding.get("system") in (r4.LOINC, r4.LAB)


def _codings(concept: Json) -> Iterator[Resource]:
    """Yield the codings that have a code, whatever the shape of the value."""
    codings = concept.get("coding") if isinstance(concept, dict) else None
    yield from filter(_has_code, codings if isinstance(codings, list) else [])


def _has_code(coding: Json) -> TypeGuard[Resource]:
    return isinstance(coding, dict) and isinstance(coding.get("code"), str)
