"""Tasks Q3-1 and Q3-2: requests to register patients."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any, ClassVar, Literal

from typing_extensions import override

from fhir_gym.actions import Action, Post
from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator
from fhir_gym.tasks.packs.shift.kind import Knowledge, RequestKind, RequestSampler, ShiftSize, Solution
from fhir_gym.tasks.packs.shift.lookups import Named, record_named, search_all
from fhir_gym.tasks.packs.shift.outcomes import ALREADY_DONE, DONE, NO_SUCH_PATIENT, NOT_ALLOWED, SEVERAL_PATIENTS
from fhir_gym.tasks.packs.shift.patient_records import target_of
from fhir_gym.tasks.packs.shift.q3_registrations.rules import (
    RegistrationContent,
    RegistrationJudge,
    RegistrationRequest,
    Registry,
    absent_parent,
    decide,
    missing_contract,
    missing_insurance,
    new_coverage,
    new_patient,
)
from fhir_gym.tasks.packs.shift.registry import CARD, Family, RegistryScene, card_number, draw_registry
from fhir_gym.tasks.packs.shift.static_task import StaticShift
from fhir_gym.types import Json, Resource

Insured = Literal["", "own", "parent"]

_ROUNDS, _TRIES = 5, 30
"""Numbers of choices of an insurance for each outcome, and of requests that are drawn for each choice."""
_AGAIN = 0.4
"""Share of the requests that name someone whom an earlier request registers, if that is possible."""
_RENAMED = 0.6
"""Share of the people on file whom a request names by another family name and by a health card, if that is possible."""
_WITH_EARLIER = (DONE, ALREADY_DONE, NOT_ALLOWED)
"""The outcomes of requests that may do so."""
_INSURED: Mapping[str, tuple[Insured, ...]] = {
    DONE: ("", "own", "parent", "parent"),
    ALREADY_DONE: ("", "own", "parent", "parent"),
    NO_SUCH_PATIENT: ("parent",),
    SEVERAL_PATIENTS: ("parent",),
    NOT_ALLOWED: ("own", "parent", "parent", "parent"),
}


class RegistrationSampler(RequestSampler[RegistryScene, RegistrationRequest]):
    """Chooses requests one after the other, as the earlier ones leave the registry."""

    def __init__(self, rng: random.Random, now: datetime, scene: RegistryScene, outcomes: Sequence[str]) -> None:
        super().__init__(rng, now, scene, outcomes)
        self._start = Registry.at_start(scene)
        self._now = self._start.adding(())
        self._near = NearOthers(self._start.names)
        self._pools: dict[tuple[str, str], list[tuple[Named, str]]] = {}
        self._done: list[RegistrationContent] = []

    @override
    def draw(self, outcome: str, *, depends: bool) -> RegistrationRequest | None:
        rng = self.rng
        for _ in range(_ROUNDS):
            insured = rng.choice(_INSURED[outcome])
            if depends or (outcome in _WITH_EARLIER and rng.random() < _AGAIN):
                draw = partial(self._draw_again, outcome, insured)
            else:
                parent = self._draw_parent(outcome) if insured == "parent" else None
                draw = partial(self._draw, outcome, insured, parent)
            asks = (draw() for _ in range(_TRIES))
            fitting = next((ask for ask in asks if ask is None or self._fits(ask, outcome)), None)
            if fitting is not None and not (depends and decide(self._start, fitting).outcome == outcome):
                return self._request(fitting, outcome)
        return None

    def _draw_parent(self, outcome: str) -> tuple[Family, Named, str] | None:
        """Draw a parent, all equally likely, with the family and an insurer; None if nobody qualifies."""
        candidates = self._insured_parents(DONE if outcome == ALREADY_DONE else outcome)
        if not candidates:
            return None
        parents = [self._on_file(parent) for _, parent, _ in candidates]  # a patient may have two names
        chosen = self.rng.choice(list(dict.fromkeys(parents)))
        return self.rng.choice(
            [insured_parent for insured_parent, parent in zip(candidates, parents, strict=True) if parent == chosen]
        )

    def _on_file(self, parent: Named) -> Named | str:
        """Return the id of the only patient with a name; the name if nobody has it, or several."""
        ids = self._start.names.get(parent, [])
        return ids[0] if len(ids) == 1 else parent

    def _insured_parents(self, outcome: str) -> list[tuple[Family, Named, str]]:
        """Return the parents with whom a new child has an outcome, rather those whom no request names yet."""
        named = {request.ask.parent for request in self.chosen}
        candidates = [(family, *pair) for family in self.scene.families for pair in self._parents(family, outcome)]
        return [insured_parent for insured_parent in candidates if insured_parent[1] not in named] or candidates

    def _draw(
        self, outcome: str, insured: Insured, insurance: tuple[Family, Named, str] | None
    ) -> RegistrationContent | None:
        """Draw a person, and an insurer if one is needed; None if nobody qualifies.

        Args:
            outcome: The outcome.
            insured: How the person is insured.
            insurance: For a person who is insured through a parent: the family, the parent and the insurer.
        """
        rng = self.rng
        if insured == "parent" and insurance is None:
            return None
        family, parent, insurer = insurance or (rng.choice(self.scene.families), None, "")
        grown = insured == "own" or (not insured and rng.random() < 0.5)
        person = self._anyone(family, family.adults if grown else family.children)
        if insured == "own":
            insurer = rng.choice(self.scene.insurers).id
        card = self._card(person)
        if outcome == ALREADY_DONE and rng.random() < _RENAMED:
            person, card = self._renamed(family, person)
        return self._ask(family, person, card, insured, insurer, parent)

    def _draw_again(self, outcome: str, insured: Insured) -> RegistrationContent | None:
        """Draw a request that names someone whom an earlier request registers; None if nobody qualifies."""
        rng, grown = self.rng, insured == "own" or (insured == "parent" and outcome != ALREADY_DONE)
        adults = {day for family in self.scene.families for day in family.adults}
        earlier = [
            registration
            for registration in self._done
            if not insured or (registration.person.birth_date in adults) == grown
        ]
        if not earlier:
            return None
        chosen = rng.choice(earlier)
        family = next(
            family
            for family in self.scene.families
            if chosen.person in family.people((*family.adults, *family.children))
        )
        if outcome != ALREADY_DONE:
            if insured != "parent":
                return None
            child = self._anyone(family, family.children)
            own = self._start.organizations.get(chosen.insurer, "")
            insurer = own if own and outcome == DONE else rng.choice(self.scene.insurers).id
            return self._ask(family, child, self._card(child), insured, insurer, chosen.person)
        renamed = chosen.person.model_copy(update={"family": rng.choice(family.families)})
        person, card = rng.choice(((chosen.person, self._card(chosen.person)), (renamed, chosen.card)))
        pairs = self._parents(family, DONE) if insured == "parent" else [(None, rng.choice(self.scene.insurers).id)]
        if not pairs:
            return None
        parent, insurer = rng.choice(pairs)
        return self._ask(family, person, card, insured, insurer if insured else "", parent)

    def _renamed(self, family: Family, person: Named) -> tuple[Named, str]:
        """Draw a patient with the date of birth of a person; return another family name, and a card of the patient."""
        rng = self.rng
        born = [registered for registered in self.scene.people if registered.person.birth_date == person.birth_date]
        cards = [
            (registered.person.given, card)
            for registered in born
            for card in (registered.card, registered.old_card)
            if card
        ]
        given, card = rng.choice(cards) if cards else (person.given, "")
        return Named(given=given, family=rng.choice(family.families), birth_date=person.birth_date), card

    def _anyone(self, family: Family, dates: Sequence[str]) -> Named:
        """Draw a person with one of these dates of birth, on file or not."""
        given, last, born = map(self.rng.choice, (family.givens, family.families, dates))
        return Named(given=given, family=last, birth_date=born)

    def _ask(
        self, family: Family, person: Named, card: str, insured: Insured, insurer: str, parent: Named | None
    ) -> RegistrationContent:
        """Add the details that decide nothing."""
        rng, own = self.rng, insured == "own"
        until = date.fromisoformat(self.scene.today) + timedelta(days=rng.randrange(30, 700))
        return RegistrationContent(
            person=person,
            gender=family.gender,
            phone=f"{rng.randrange(201, 990)}-555-0{rng.randrange(100, 200)}",
            card=card,
            insured=insured,
            insurer=next((organization.name for organization in self.scene.insurers if organization.id == insurer), ""),
            number=card_number(rng) if own else "",
            until=until.isoformat() if own else "",
            parent=parent,
        )

    def _card(self, person: Named) -> str:
        """Draw a health card number: a new one, none, or a number of a patient who may differ in the family name."""
        rng = self.rng
        like = [
            number
            for registered in self.scene.people
            if (registered.person.given, registered.person.birth_date) == (person.given, person.birth_date)
            for number in (registered.card, registered.old_card, registered.member)
            if number
        ]
        return rng.choice((card_number(rng), "", rng.choice(like) if like else ""))

    def _parents(self, family: Family, outcome: str) -> list[tuple[Named, str]]:
        """Return the parents and the insurers with which a new child has an outcome at the start of the episode."""
        key = (family.families[0] + family.givens[0], outcome)
        if key not in self._pools:
            adults = [person for person in family.people(family.adults) if person in self._near]
            self._pools[key] = [pair for adult in adults for pair in self._with_insurers(adult, outcome)]
        return self._pools[key]

    def _with_insurers(self, parent: Named, outcome: str) -> Iterator[tuple[Named, str]]:
        ids = self._start.names.get(parent, [])
        if outcome in (NO_SUCH_PATIENT, SEVERAL_PATIENTS):
            if len(ids) != 1 and bool(ids) == (outcome == SEVERAL_PATIENTS):
                yield from ((parent, insurer.id) for insurer in self.scene.insurers)
        elif len(ids) == 1:
            any_insurer = self._start.insurance(ids[0])
            own = (
                insurance
                for insurance in self.scene.insurances
                if target_of(insurance["beneficiary"]) == f"Patient/{ids[0]}"
            )
            payors = dict.fromkeys(target_of(insurance["payor"][0]) for insurance in own)
            for insurer in (payor.removeprefix("Organization/") for payor in payors):
                coverage, accepted = self._start.insurance(ids[0], insurer), insurer in self._start.accepted
                # The conditions matter: the parent has a choice of coverages, or only one reason speaks against it.
                several = len(self._start.insurances(ids[0], insurer)) > 1
                done = accepted and coverage is not None and (several or coverage != any_insurer)
                declined = accepted != (coverage is not None)
                if done if outcome == DONE else declined:
                    yield parent, insurer

    def _fits(self, ask: RegistrationContent, outcome: str) -> bool:
        """Whether a request has an outcome, is about a new person, and has names that are easily mistaken."""
        others = [request.ask for request in self.chosen if outcome != ALREADY_DONE or request.outcome != DONE]
        return (
            decide(self._now, ask).outcome == outcome
            and not any(_alike(ask, registration) for registration in others)
            and all(name in self._near for name in (ask.person, ask.parent) if name)
        )

    def _request(self, ask: RegistrationContent, outcome: str) -> RegistrationRequest:
        start = self._start
        insurer, parents = start.organizations.get(ask.insurer, ""), start.parents(ask)
        return RegistrationRequest(
            ask=ask,
            outcome=outcome,
            on_file=start.on_file(ask),
            parents=parents,
            insurer=insurer,
            accepted=insurer in start.accepted,
            covered=len(parents) == 1 and start.insurance(parents[0], insurer) is not None,
            **self._aimed_at(parents, outcome),
        )

    @override
    def apply(self, request: RegistrationRequest) -> None:
        if request.outcome == DONE:
            ask, decision, id = request.ask, decide(self._now, request.ask), f"new-{len(self.chosen) - 1}"
            self._now.add({**new_patient(ask), "id": id})
            if ask.insurer:
                self._now.add({**new_coverage(ask, decision, id, self.scene.today), "id": id})
            self._done.append(ask)

    def _aimed_at(self, parents: Sequence[str], outcome: str) -> dict[str, Any]:
        """Return the fields `target` and `qualifying` of a request: the parent on whose insurance it rests."""
        if len(parents) != 1 or outcome != DONE:
            return {}
        able = [self._on_file(parent) for _, parent, _ in self._insured_parents(DONE)]
        ids = dict.fromkeys((*able, *parents))  # a request may name the parent by a former name
        return {"target": f"Patient/{parents[0]}", "qualifying": tuple(f"Patient/{name}" for name in ids)}


class NearOthers:
    """The combinations of given name, family name and date of birth that are easily mistaken for those on file.

    For each of the three, someone on file differs only in this one.
    """

    def __init__(self, people: Iterable[Named]) -> None:
        self._people = set(people)
        self._partly = Counter(key for person in self._people for key in self._keys(person))

    def __contains__(self, person: Named) -> bool:
        own = person in self._people
        return all(self._partly[key] > own for key in self._keys(person))

    @staticmethod
    def _keys(person: Named) -> Iterator[tuple[str, ...]]:
        yield "given", person.family, person.birth_date
        yield "family", person.given, person.birth_date
        yield "birth date", person.given, person.family


def _alike(registration: RegistrationContent, other: RegistrationContent) -> bool:
    return registration.person == other.person or (bool(registration.card) and registration.card == other.card)


class Registrations(RequestKind[RegistryScene, RegistrationRequest]):
    """Register people as patients, with an insurance of their own or of a parent."""

    key = "Q3"
    title = "Registrations"
    codes = (ALREADY_DONE, NO_SUCH_PATIENT, SEVERAL_PATIENTS, NOT_ALLOWED)
    depending = (DONE, ALREADY_DONE, NOT_ALLOWED)
    sampler_type = RegistrationSampler
    judge_type = RegistrationJudge
    resource_types = ("Patient", "Coverage", "Organization", "OrganizationAffiliation")
    requested_elements: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Patient": ("identifier", "name", "telecom", "gender", "birthDate"),
        "Coverage": (
            *("status", "policyHolder", "subscriber", "subscriberId", "beneficiary", "relationship", "period"),
            "payor",
        ),
    }
    rules = (
        "- The requests are for {place} (an Organization). Patients with active false do not count anywhere.\n"
        f"- A person is already on file if a Patient has the person's health card number (system {CARD}; the number of "
        "a replaced card, with use old, counts too), or has the person's date of birth and, in one of its names, the "
        "person's given name and family name (former names, with use old or maiden, count too), even if the card "
        f'numbers differ. Then change nothing, also if insurance is asked for: the outcome is "{ALREADY_DONE}".\n'
        "- A parent is the Patient with exactly the parent's date of birth and, in one of its names (former names "
        f'count too), exactly the given name and the family name. If there is none, the outcome is "{NO_SUCH_PATIENT}"'
        f'; if there are several, "{SEVERAL_PATIENTS}". Then do not register the child.\n'
        "- An insurer is the Organization with exactly that name. {place} accepts it if there is an "
        "OrganizationAffiliation with active true, the insurer as organization, {place} as participatingOrganization, "
        "and a period that includes today. In every period, the first and the last day count, and a period without "
        f'end goes on. If {{place}} does not accept the insurer, the outcome is "{NOT_ALLOWED}", and the person is not '
        "registered.\n"
        "- A child can be insured through a parent if there is a Coverage with status active whose beneficiary and "
        "subscriber are both the parent, whose payor is the insurer, and whose period includes today. Otherwise the "
        f'outcome is "{NOT_ALLOWED}", and the child is not registered. If there are several, use the one whose period '
        "starts last; then the one with the lower id.\n"
        "- If several outcomes apply, the one that comes first in these rules counts. Records that an earlier request "
        "has made count too.\n"
        "- To register, create one Patient with the name, gender, date of birth, telephone number (system phone) and, "
        "if it is given, the health card number. If insurance is asked for, create also one Coverage: status active, "
        "the new patient as beneficiary, the insurer as the only payor, and a period that starts today. For an "
        "insurance of the person's own, the subscriber is the new patient, subscriberId is the member number, and the "
        "period ends on the last day that is given. For an insurance through a parent, the subscriber is the parent's "
        "Patient; subscriberId and the end of the period (none if there is none) are those of the parent's Coverage. "
        "The subscriber may also be entered as policyHolder, and the relationship may be added. Create no other "
        "record, and no RelatedPerson."
    )

    @override
    def draw_scene(self, rng: random.Random, world: World, ids: IdAllocator, size: ShiftSize) -> RegistryScene:
        if size.level == 1:
            return draw_registry(rng, world, ids, families=1, shape=(3, 3), on_file=27, twins=4, insurers=4)
        return draw_registry(rng, world, ids, families=2, shape=(4, 3), on_file=36, twins=8, insurers=6)

    @override
    def rule_values(self, scene: RegistryScene) -> Mapping[str, str]:
        return {"place": scene.name}

    @override
    def text(self, ask: RegistrationContent, wording: int) -> str:
        who, card = f"{ask.person.given} {ask.person.family}", f", health card {ask.card}" if ask.card else ""
        born = ask.person.birth_date
        first = (
            f"Please register {who} ({ask.gender}), born {born}, phone {ask.phone}{card}.",
            f"{who} would like to become our patient: {ask.gender}, date of birth {born}, phone {ask.phone}{card}.",
            f"Registration: {who}, {ask.gender}, {born}, {ask.phone}{card}.",
        )[wording]
        return " ".join([first, *_insurance_in_words(ask, wording)])

    @override
    def solve(self, ask: RegistrationContent, knowledge: Knowledge) -> Solution:
        registry, looked_up = Registry("", knowledge.now.date().isoformat()), knowledge.looked_up
        registry.add_all((yield from search_all("/Patient", {"birthdate": ask.person.birth_date, "_count": "200"})))
        if ask.card:
            registry.add_all((yield from search_all("/Patient", {"identifier": f"{CARD}|{ask.card}"})))
        if registry.on_file(ask):
            return ALREADY_DONE
        if ask.parent:
            query = {"family": ask.parent.family, "given": ask.parent.given, "birthdate": ask.parent.birth_date}
            query |= {"_revinclude": "Coverage:beneficiary", "_count": "200"}
            registry.add_all((yield from search_all("/Patient", query)))
            parents = registry.parents(ask)
            if len(parents) != 1:
                return SEVERAL_PATIENTS if parents else NO_SUCH_PATIENT
        if ask.insurer:
            if not looked_up:
                looked_up["place"], looked_up["contracts"] = yield from _contracts(knowledge.rule_values["place"])
            registry.place = looked_up["place"]
            registry.add_all(looked_up["contracts"])
        decision = decide(registry, ask)
        if decision.outcome == DONE:
            created = yield Post("/Patient", new_patient(ask))
            if ask.insurer:
                yield Post("/Coverage", new_coverage(ask, decision, created["id"], registry.today))
        return decision.outcome

    @override
    def counterfactuals(self, request: RegistrationRequest, scene: RegistryScene) -> list[Resource]:
        records: list[Resource] = []
        if request.ask.parent and not request.parents:
            records.append(absent_parent(request, scene))
        if request.insurer and not request.accepted:
            records.append(missing_contract(request, scene))
        if len(request.parents) == 1 and not request.covered:
            records.append(missing_insurance(request, scene))
        return records


def _insurance_in_words(ask: RegistrationContent, wording: int) -> Iterator[str]:
    if ask.insured == "own":
        yield (
            f"Own insurance with {ask.insurer}, member number {ask.number}, valid until {ask.until}.",
            f"The insurer is {ask.insurer} (own insurance, member number {ask.number}, last day {ask.until}).",
            f"Insurance: {ask.insurer}, own, number {ask.number}, until {ask.until}.",
        )[wording]
    elif ask.parent:
        word, who = "mother" if ask.gender == "female" else "father", f"{ask.parent.given} {ask.parent.family}"
        yield (
            f"Insured with {ask.insurer} through the {word}, {who}, born {ask.parent.birth_date}.",
            f"The insurer is {ask.insurer}, through the {word}: {who}, date of birth {ask.parent.birth_date}.",
            f"Insurance: {ask.insurer}, through {word} {who}, {ask.parent.birth_date}.",
        )[wording]


def _contracts(place: str) -> Generator[Action, Json, tuple[str, list[Resource]]]:
    here = str((yield from record_named("Organization", place))["id"])
    query = {"participating-organization": f"Organization/{here}"}
    query |= {"_include": "OrganizationAffiliation:primary-organization", "_count": "200"}
    return here, (yield from search_all("/OrganizationAffiliation", query))


class RegistrationsLevel1(StaticShift, requests=Registrations(), level=1):
    """Register four or five people, with an insurance of their own or of a parent.

    Starting state: a place with 31 patients of three given names and three family names, some of whom have a former
        name or a replaced health card, and whose coverages are with six insurers, of which the place accepts some.
    Decoys: patients who differ only in the given name, the family name or the date of birth; records that are no longer
        in use; card numbers that are member numbers; coverages that have ended, have not begun, are void, or have
        another subscriber or insurer; contracts that have ended or are with another place.
    Checks: each request is judged against the registry that the agent met when it wrote. A declined request needs its
        outcome, and lookups that would have shown the opposite. Nothing else changed.
    Light: none of the checks.
    """


class RegistrationsLevel2(StaticShift, requests=Registrations(), level=2):
    """Register ten to fourteen people, some of whom earlier requests name as well.

    Starting state: as at level 1, with 80 patients of two groups of names, and nine insurers.
    Decoys: as at level 1; parents and people whom an earlier request registers.
    Checks: as at level 1.
    Light: none of the checks.
    """


TASKS = (RegistrationsLevel1, RegistrationsLevel2)
