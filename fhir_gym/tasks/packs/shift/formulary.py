"""The drugs and tests that clinicians order, with the limits that apply to them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from math import floor

from fhir_gym.tasks import Params
from fhir_gym.tasks.authoring import Concept

RXNORM, LOINC = "http://www.nlm.nih.gov/research/umls/rxnorm", "http://loinc.org"
KG_PER_POUND = 0.4536
UMOL_PER_MG = 88.4
"""Micromoles per litre of creatinine that equal one milligram per decilitre."""

_DRUGS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "penicillins": (("amoxicillin", "723"), ("ampicillin", "733")),
    "cephalosporins": (("cefazolin", "2180"), ("cephalexin", "2231"), ("ceftriaxone", "2193")),
    "macrolides": (("azithromycin", "18631"), ("clarithromycin", "21212"), ("erythromycin", "4053")),
    "fluoroquinolones": (("ciprofloxacin", "2551"), ("levofloxacin", "82122")),
    "tetracyclines": (("doxycycline", "3640"), ("tetracycline", "10395")),
    "NSAIDs": (("ibuprofen", "5640"), ("naproxen", "7258"), ("ketorolac", "35827")),
}
_NOT_IN_PREGNANCY = ("fluoroquinolones", "tetracyclines", "NSAIDs")
_TESTS = (
    ("TSH", "3016-3"),
    ("hemoglobin A1c", "4548-4"),
    ("ferritin", "2276-4"),
    ("vitamin D", "1989-3"),
    ("C-reactive protein", "1988-5"),
)
_XRAY, _CT = ("chest X-ray in two views", "36643-5"), ("CT of the abdomen with contrast", "79103-8")
STEP = 5
"""Doses are multiples of this number of milligrams."""
WEIGHT_MARGIN, CREATININE_MARGIN = 0.001, 0.01
"""Relative margins around rounding steps and limits. No value that decides lies within these margins, so the
digits of the conversion factors and the rounding of converted values (to 0.1 kg or 0.01 mg/dL) do not matter."""


class Item(Params):
    """A drug or a test that can be ordered.

    Attributes:
        name: Name, unique in the formulary.
        system: Code system.
        group: Class of the drug; empty for a test.
        per_kg: Milligrams per kilogram of body weight.
        most: Largest dose in milligrams.
        limit: Creatinine in mg/dL above which the item is restricted; 0 for no limit.
        halved: Whether a restricted item may be ordered at half the dose. Otherwise it may not be ordered.
        pregnancy: Whether the item is allowed in pregnancy.
    """

    name: str
    system: str
    code: str
    group: str = ""
    per_kg: float = 0
    most: int = 0
    limit: float = 0
    halved: bool = False
    pregnancy: bool = True

    @property
    def concept(self) -> Concept:
        """The code of the item."""
        return Concept(system=self.system, code=self.code, display=self.name)

    @property
    def resource_type(self) -> str:
        """The resource type of an order."""
        return "MedicationRequest" if self.group else "ServiceRequest"

    def dose(self, kg: float, half: bool) -> int:
        """Return the dose in milligrams for a body weight."""
        needed = kg * self.per_kg * (0.5 if half else 1)
        return floor(min(needed, self.most) / STEP) * STEP

    @property
    def line(self) -> str:
        """The item in words, for prompts."""
        parts = [f"{self.per_kg:g} mg per kg, at most {self.most} mg"] if self.group else []
        if self.limit:
            so = "half of the dose per kg" if self.halved else "not allowed"
            parts.append(f"{so} if the creatinine is above {self.limit:g} mg/dL")
        if not self.pregnancy:
            parts.append("not allowed in pregnancy")
        kind = f"RxNorm {self.code}; {self.group}" if self.group else f"LOINC {self.code}"
        return f"  - {self.name} ({kind}){': ' if parts else ''}{'; '.join(parts)}"


class Formulary(Params):
    """All drugs and tests that can be ordered."""

    items: tuple[Item, ...]

    def named(self, name: str) -> Item:
        """Return the item with a name."""
        return next(item for item in self.items if item.name == name)

    @property
    def drugs(self) -> list[Item]:
        """The drugs."""
        return [item for item in self.items if item.group]

    @property
    def kinds(self) -> tuple[list[Item], list[Item]]:
        """The drugs and the tests."""
        return self.drugs, [item for item in self.items if not item.group]


def draw_formulary(rng: random.Random, groups: int, tests: int) -> Formulary:
    """Draw a formulary with two drugs of each class.

    Args:
        rng: Random generator.
        groups: Number of classes of drugs.
        tests: Number of tests without limits; two with limits are added.
    """
    drugs = []
    for group in rng.sample(sorted(_DRUGS), groups):
        pregnancy = group not in _NOT_IN_PREGNANCY or rng.random() < 0.25
        drugs += [_drug(rng, *drug, group, pregnancy) for drug in rng.sample(_DRUGS[group], 2)]
    plain = [Item(name=name, system=LOINC, code=code) for name, code in rng.sample(_TESTS, tests)]
    xray = Item(name=_XRAY[0], system=LOINC, code=_XRAY[1], pregnancy=False)
    ct = Item(name=_CT[0], system=LOINC, code=_CT[1], limit=_limit(rng), pregnancy=rng.random() < 0.5)
    return Formulary(items=(*drugs, *plain, xray, ct))


def _drug(rng: random.Random, name: str, code: str, group: str, pregnancy: bool) -> Item:
    limit = _limit(rng) if rng.random() < 0.75 else 0
    per_kg = rng.choice((2, 2.5, 3, 4, 5, 6, 7.5, 8, 10, 12))
    return Item(
        name=name,
        system=RXNORM,
        code=code,
        group=group,
        per_kg=per_kg,
        most=round(per_kg * rng.choice((70, 80, 90, 100)) / 50) * 50,
        limit=limit,
        halved=bool(limit) and rng.random() < 0.5,
        pregnancy=pregnancy,
    )


def _limit(rng: random.Random) -> float:
    return rng.choice((1.2, 1.4, 1.5, 1.6, 1.8))
