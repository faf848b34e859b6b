"""Coded concepts, and checks of CodeableConcepts."""

from __future__ import annotations

from collections.abc import Iterator

from fhir_gym.tasks.core.params import Params
from fhir_gym.tasks.grading.checks import Check, equal
from fhir_gym.tasks.grading.comparison import plain
from fhir_gym.types import Json, Resource

SNOMED = "http://snomed.info/sct"


class Concept(Params):
    """A coding.

    Attributes:
        system: URI of the code system.
        display: The display text.
    """

    system: str
    code: str
    display: str

    @property
    def coding(self) -> dict[str, str]:
        """The concept as a Coding."""
        return {"system": self.system, "code": self.code, "display": self.display}

    @property
    def concept(self) -> Resource:
        """The concept as a CodeableConcept with one coding."""
        return {"coding": [self.coding]}

    @property
    def token(self) -> str:
        """The search token ``system|code``."""
        return f"{self.system}|{self.code}"


def codings(value: Json) -> list[Resource]:
    """The codings of a CodeableConcept, or of all CodeableConcepts in a list."""
    concepts = value if isinstance(value, list) else [value]
    return [
        coding
        for concept in concepts
        if isinstance(concept, dict)
        for coding in concept.get("coding", [])
        if isinstance(coding, dict)
    ]


def codes_of(value: Json, system: str) -> list[str]:
    """The distinct, sorted codes of a system in a CodeableConcept or a list of CodeableConcepts."""
    return sorted({str(coding.get("code")) for coding in codings(value) if coding.get("system") == system})


def concept_texts(value: Json) -> list[str]:
    """The texts and displays in a CodeableConcept or a list of CodeableConcepts."""
    concepts = value if isinstance(value, list) else [value]
    texts = [concept.get("text") for concept in concepts if isinstance(concept, dict)]
    words = [*texts, *(coding.get("display") for coding in codings(value))]
    return [text for text in words if isinstance(text, str)]


def has_display(value: Json, display: str) -> bool:
    """Whether a text or display in a CodeableConcept or a list of them equals `display`; case is ignored."""
    return plain(display).casefold() in [plain(label).casefold() for label in concept_texts(value)]


def concept_checks(name: str, value: Json, expected: Concept) -> Iterator[Check]:
    """Yield checks that a CodeableConcept has the expected code and display.

    Codings of other code systems are allowed. Another code of the same system is not allowed.

    Args:
        name: Name of the concept in the checks.
        value: The CodeableConcept, or a list of CodeableConcepts.
        expected: The expected concept.
    """
    yield equal(f"{name} code", codes_of(value, expected.system), [expected.code])
    texts: list[Json] = list(concept_texts(value))
    yield Check(
        name=f"{name} display", passed=has_display(value, expected.display), expected=expected.display, actual=texts
    )
