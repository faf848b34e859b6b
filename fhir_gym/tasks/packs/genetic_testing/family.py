"""Draw, build and check family histories."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import ClassVar

from fhir_gym.tasks import Check, FinishedEpisode, Params, equal
from fhir_gym.tasks.authoring import Person, concept_texts, created_check, reference
from fhir_gym.tasks.grading import ADD_NOTHING, plain
from fhir_gym.tasks.grading.allowed_additions import fits_vocabulary
from fhir_gym.tasks.packs.appointment.relatives import (
    RELATIONS,
    ROLES,
    fitting_relations,
    relation_concept,
    says_relation,
)
from fhir_gym.types import Json, Resource

HISTORY_INSTRUCTIONS = (
    "A family history is a new FamilyMemberHistory with status completed. It refers to the patient, its relationship "
    f"is a code of {ROLES}, and it has one condition whose code has the condition's name as text. The age goes into "
    "this condition's onset, as onsetAge in years (unit code a of http://unitsofmeasure.org). Do not reuse or change "
    f"existing family histories. {ADD_NOTHING}"
)
"""The sentences of prompts that say how to record a family history."""


class RecordsFamilyHistory:
    """The elements of the new record in a task that creates a FamilyMemberHistory (mixin for the task class)."""

    requested_elements: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "FamilyMemberHistory": (
            *("status", "patient", "relationship", "sex"),  # the relationship implies the sex
            *("condition", "condition.code", "condition.onsetAge", "condition.onsetString"),
        )
    }
    # Any of these elements may be missing if one of the others states the unit.
    optional_elements: ClassVar[frozenset[str]] = frozenset(
        f"FamilyMemberHistory.condition.onsetAge.{name}" for name in ("unit", "system", "code")
    )
    harmless_additions: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "FamilyMemberHistory": {"note": [{"text": "Reported by the patient"}]}
    }


_UCUM = "http://unitsofmeasure.org"
_BLOOD = ("mother", "father", "sister", "brother", "daughter", "son")
_YEARS = frozenset({"a", "y", "yo", "yr", "yrs", "year", "years"})
_AROUND_AGE = _YEARS | {"age", "aged", "at", "of", "old", "onset", "the"}
_FILLERS = frozenset({"a", "of", "the", "disorder"})
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


@dataclass(frozen=True, slots=True)
class _Illness:
    """The genders of people who can have a condition, and the ages at which the condition can begin."""

    genders: tuple[str, ...] = ("female", "male")
    ages: range = range(30, 65)


_ILLNESSES = {
    "breast cancer": _Illness(("female",)),
    "ovarian cancer": _Illness(("female",)),
    "prostate cancer": _Illness(("male",), range(45, 70)),
    "colon cancer": _Illness(),
    "pancreatic cancer": _Illness(ages=range(40, 70)),
    "kidney cancer": _Illness(),
    "thyroid cancer": _Illness(ages=range(20, 60)),
    "Huntington's disease": _Illness(),
    "hypertrophic cardiomyopathy": _Illness(ages=range(18, 50)),
    "polycystic kidney disease": _Illness(ages=range(20, 50)),
}
_ILLNESSES_OF_A_SCENE = 5


class FamilyHistory(Params):
    """A condition of one relative.

    Attributes:
        id: Id of the FamilyMemberHistory; empty if it is not on file.
        patient: Id of the patient.
        relation: Relation of the relative to the patient, one of `RELATIONS`.
        illness: Name of the condition.
        age: Age at onset in years.
    """

    id: str
    patient: str
    relation: str
    illness: str
    age: int
    status: str = "completed"

    @property
    def reference(self) -> str:
        """Reference to the FamilyMemberHistory."""
        return f"FamilyMemberHistory/{self.id}"


def some_illnesses(rng: random.Random) -> tuple[str, ...]:
    """Draw the names of a few conditions; any adult has several relatives who can have at least one of them."""
    return tuple(rng.sample([*_ILLNESSES], _ILLNESSES_OF_A_SCENE))


def draw_history(
    rng: random.Random,
    today: date,
    id: str,
    person: Person,
    illnesses: Sequence[str],
    taken: Collection[tuple[str, str]] = (),
    statuses: Sequence[str] = ("completed",),
) -> FamilyHistory:
    """Draw a family history of a patient.

    Args:
        rng: Random generator.
        today: Current date.
        id: Id of the FamilyMemberHistory.
        person: The patient.
        illnesses: Conditions to choose from; see `some_illnesses`.
        taken: At most two pairs of relation and condition that must not be drawn.
        statuses: Statuses to choose from.
    """
    while True:
        name = rng.choice(illnesses)
        age = rng.choice(_ILLNESSES[name].ages)
        fit = [
            word
            for word in fitting_relations(person, today, youngest=age)
            if word in _BLOOD and RELATIONS[word].gender in _ILLNESSES[name].genders and (word, name) not in taken
        ]
        if fit:
            return FamilyHistory(
                id=id, patient=person.id, relation=rng.choice(fit), illness=name, age=age, status=rng.choice(statuses)
            )


def draw_new_history(
    rng: random.Random, today: date, person: Person, on_file: Iterable[FamilyHistory]
) -> FamilyHistory:
    """Draw a family history other than those that a patient has on file."""
    taken = {(history.relation, history.illness) for history in on_file}
    return draw_history(rng, today, "", person, some_illnesses(rng), taken)


def history_body(history: FamilyHistory, patient_id: str) -> Resource:
    """Build the FamilyMemberHistory that an agent should create."""
    age = {"value": history.age, "unit": "years", "system": _UCUM, "code": "a"}
    return {
        "resourceType": "FamilyMemberHistory",
        "status": "completed",
        "patient": reference("Patient", patient_id),
        "relationship": relation_concept(history.relation),
        "condition": [{"code": {"text": history.illness}, "onsetAge": age}],
    }


def recorded_history(history: FamilyHistory) -> Resource:
    """Build the FamilyMemberHistory of a family history on file."""
    return {**history_body(history, history.patient), "id": history.id, "status": history.status}


def history_prompt_values(history: FamilyHistory) -> dict[str, str]:
    """Return the prompt values for the relative, the condition and the age."""
    return {"relation": history.relation, "illness": history.illness, "age": str(history.age)}


def history_checks(end: FinishedEpisode, history: FamilyHistory, record: Resource) -> Iterator[Check]:
    """Yield checks that a new FamilyMemberHistory records the requested history and nothing else.

    Args:
        end: End state of the episode.
        history: The requested history.
        record: The new resource; empty if the agent created none.
    """
    yield created_check(end, "FamilyMemberHistory")
    for element in ("relationship", "condition"):
        there = not record or element in record
        yield Check(name=f"has {element}", passed=there, actual=record.get(element), level="exists")
    yield equal("status", record.get("status"), "completed")
    yield equal("patient", end.refers(record.get("patient")), f"Patient/{history.patient}")
    said: list[Json] = [record["relationship"]] if "relationship" in record else []
    right = says_relation(said, history.relation)
    yield Check(name="relationship", passed=right, expected=history.relation, actual=said)
    sex, implied = record.get("sex"), RELATIONS[history.relation].gender
    fits = sex is None or (implied is not None and fits_vocabulary(sex, (implied,)))
    yield Check(name="sex", passed=fits, expected=implied, actual=sex)
    conditions = [condition for condition in record.get("condition", []) if isinstance(condition, dict)]
    names: list[Json] = [concept_texts(condition.get("code")) for condition in conditions]
    right = len(names) == 1 and any(_named(name, history.illness) for name in names[0])
    yield Check(name="condition", passed=right, expected=history.illness, actual=names)
    yield equal("onset age", [_onset_years(condition) for condition in conditions][:1], [history.age])


def history_spellings(history: FamilyHistory, body: Resource) -> Iterator[tuple[str, Resource]]:
    """Yield variants of a family history that the checks must accept, each with a name."""
    relation = RELATIONS[history.relation]
    for code in relation.narrower:
        yield f"relationship {code}", {**body, "relationship": {"coding": [{"system": ROLES, "code": code}]}}
    local = {"system": "urn:local", "code": "7"}
    coded = {"coding": [local, {"system": ROLES, "code": relation.code, "display": history.relation}]}
    yield "relationship as second coding", {**body, "relationship": coded}
    illness, age = body["condition"][0]["code"], body["condition"][0]["onsetAge"]
    if relation.gender:
        yield "sex as it must be", {**body, "sex": _sex(relation.gender)}
    words = history.illness.split()
    codes: dict[str, Resource] = {
        "condition with a capital": {"text": history.illness.capitalize()},
        "condition in other words": {"text": f"{words[-1].capitalize()} of the {' '.join(words[:-1])}"},
        "condition as display": {"coding": [{"system": "urn:local", "code": "1", "display": history.illness}]},
    }
    for what, concept in codes.items():
        yield what, {**body, "condition": [{"code": concept, "onsetAge": age}]}
    onsets: dict[str, Resource] = {
        "age as string": {"onsetString": str(history.age)},
        "age in words": {"onsetString": f"at age {history.age} years"},
        "age without unit": {"onsetAge": {part: age[part] for part in ("value", "system", "code")}},
        "age without code": {"onsetAge": {"value": history.age, "unit": "years"}},
    }
    for what, onset in onsets.items():
        yield what, {**body, "condition": [{"code": illness, **onset}]}


def wrong_histories(history: FamilyHistory, body: Resource) -> Iterator[tuple[str, Resource]]:
    """Yield variants of a family history that the checks must reject, each with a name."""
    illness, age = body["condition"][0]["code"], body["condition"][0]["onsetAge"]
    onsets: dict[str, Resource] = {
        "months": {"onsetAge": {**age, "unit": "months", "code": "mo"}},
        "years and months": {"onsetAge": {**age, "code": "mo"}},
        "no unit": {"onsetAge": {"value": history.age}},
        "digits in a longer number": {"onsetString": f"1{history.age}"},
        "two ages": {"onsetString": f"{history.age} or {history.age + 1}"},
        "months in words": {"onsetString": f"{history.age} months"},
        "not the age": {"onsetString": f"not at {history.age}"},
        "the age in a note": {"note": [{"text": f"at {history.age}"}]},
    }
    for what, onset in onsets.items():
        yield what, {**body, "condition": [{"code": illness, **onset}]}
    other = "male" if RELATIONS[history.relation].gender == "female" else "female"
    yield "another sex", {**body, "sex": _sex(other)}
    for what, text in {"no condition": "no " + history.illness, "word missing": history.illness.split()[0]}.items():
        yield what, {**body, "condition": [{"code": {"text": text}, "onsetAge": age}]}
    yield (
        "relationship in another system",
        {**body, "relationship": {"coding": [{"system": "urn:local", "code": RELATIONS[history.relation].code}]}},
    )


def _sex(gender: str) -> Resource:
    return {"coding": [{"system": "http://hl7.org/fhir/administrative-gender", "code": gender}]}


def _tokens(text: str) -> list[str]:
    return _WORD.findall(plain(text).casefold())


def _named(label: str, illness: str) -> bool:
    """Return whether a label consists of the words of a condition's name, in any order."""
    return set(_tokens(label)) - _FILLERS == set(_tokens(illness)) - _FILLERS


def _onset_years(condition: Resource) -> Json:
    """Return the age at onset in years; None unless it is given as an Age in years or as a text with only the age."""
    age = condition.get("onsetAge")
    if isinstance(age, dict):
        units = {str(age[name]).casefold() for name in ("code", "unit") if name in age}
        return age.get("value") if units and units <= _YEARS else None
    text = condition.get("onsetString")
    tokens = _tokens(text) if isinstance(text, str) else []
    numbers = [int(token) for token in tokens if token.isdecimal()]
    rest = {token for token in tokens if not token.isdecimal()}
    return numbers[0] if len(numbers) == 1 and rest <= _AROUND_AGE else None
