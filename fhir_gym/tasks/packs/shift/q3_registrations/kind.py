"""Tasks Q3-1 and Q3-2: requests to register patients."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar

from typing_extensions import override

from fhir_gym.actions import Action, Post
from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator, has_name, reference
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog
from fhir_gym.tasks.packs.shift.kind import Judgement, RequestKind, ShiftSize, Solution
from fhir_gym.tasks.packs.shift.lookups import Named, search_all
from fhir_gym.tasks.packs.shift.outcomes import ALREADY_DONE, DONE, NO_SUCH_PATIENT, NOT_ALLOWED, SEVERAL_PATIENTS
from fhir_gym.tasks.packs.shift.q3_registrations.judge import RegistrationJudge
from fhir_gym.tasks.packs.shift.q3_registrations.rules import (
    RegistrationContent,
    RegistrationRequest,
    absent_parent,
    missing_contract,
    missing_insurance,
)
from fhir_gym.tasks.packs.shift.q3_registrations.sampler import RequestSampler
from fhir_gym.tasks.packs.shift.registry import CARD, RegistryScene, draw_registry, registry_resources
from fhir_gym.tasks.packs.shift.static_task import StaticShift
from fhir_gym.types import Json, Resource


class Registrations(RequestKind[RegistryScene, RegistrationRequest]):
    """Register people as patients, with an insurance of their own or of a parent."""

    key = "Q3"
    title = "Registrations"
    codes = (ALREADY_DONE, NO_SUCH_PATIENT, SEVERAL_PATIENTS, NOT_ALLOWED)
    depending = (DONE, ALREADY_DONE, NOT_ALLOWED)
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
    def choose(
        self,
        rng: random.Random,
        world: World,
        scene: RegistryScene,
        outcomes: Sequence[str],
        dependent: int | None = None,
    ) -> tuple[RegistrationRequest, ...] | None:
        chooser = RequestSampler(rng, scene)
        return tuple(chooser.requests) if self.add_requests(chooser.add, outcomes, dependent) else None

    @override
    def resources(self, scene: RegistryScene, world: World) -> list[Resource]:
        return registry_resources(scene)

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
    def solve(
        self, ask: RegistrationContent, given: Mapping[str, str], now: datetime, known: dict[str, Any]
    ) -> Solution:
        if (yield from _is_on_file(ask)):
            return ALREADY_DONE
        today = now.date().isoformat()
        parent, coverages = "", list[Resource]()
        if ask.parent:
            found = yield from _parents_and_coverages(ask.parent)
            parents = [one for one in found if one["resourceType"] == "Patient"]
            if len(parents) != 1:
                return SEVERAL_PATIENTS if parents else NO_SUCH_PATIENT
            parent = f"Patient/{parents[0]['id']}"
            coverages = [one for one in found if one["resourceType"] == "Coverage"]
        insurer, terms = "", {}
        if ask.insurer:
            if not known:
                known |= yield from _accepted_insurers(given["place"], today)
            insurer = known.get(ask.insurer, "")
            terms = _terms(ask, parent, insurer, coverages, today)
            if not insurer or not terms:
                return NOT_ALLOWED
        created = yield Post("/Patient", _new_patient(ask))
        if ask.insurer:
            child = f"Patient/{created['id']}"
            body = {
                "resourceType": "Coverage",
                "status": "active",
                "subscriber": {"reference": parent or child},
                "beneficiary": {"reference": child},
                "payor": [{"reference": insurer}],
                **terms,
            }
            yield Post("/Coverage", body)
        return DONE

    @override
    def counterfactuals(self, request: RegistrationRequest, scene: RegistryScene) -> list[Resource]:
        found: list[Resource] = []
        if request.ask.parent and not request.parents:
            found.append(absent_parent(request, scene))
        if request.insurer and not request.accepted:
            found.append(missing_contract(request, scene))
        if len(request.parents) == 1 and not request.covered:
            found.append(missing_insurance(request, scene))
        return found

    @override
    def judge(
        self, requests: Sequence[RegistrationRequest], scene: RegistryScene, log: EpisodeLog, answers: Sequence[str]
    ) -> list[Judgement]:
        return RegistrationJudge(requests, scene, log).judge(answers)


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


def _is_on_file(ask: RegistrationContent) -> Generator[Action, Json, bool]:
    """Look whether a person is on file."""
    born = yield from search_all("/Patient", {"birthdate": ask.person.birth_date, "_count": "200"})
    found = [one for one in born if has_name(one, ask.person.given, ask.person.family)]
    if ask.card:
        found += yield from search_all("/Patient", {"identifier": f"{CARD}|{ask.card}"})
    return any(one.get("active") is not False for one in found)


def _parents_and_coverages(parent: Named) -> Generator[Action, Json, list[Resource]]:
    """Look up the Patients who are a parent, and the Coverages of everyone who was found."""
    query = {"family": parent.family, "given": parent.given, "birthdate": parent.birth_date}
    found = yield from search_all("/Patient", {**query, "_revinclude": "Coverage:beneficiary", "_count": "200"})
    return [
        one
        for one in found
        if one["resourceType"] == "Coverage"
        or (one.get("active") is not False and has_name(one, parent.given, parent.family))
    ]


def _accepted_insurers(place: str, today: str) -> Generator[Action, Json, dict[str, Any]]:
    """Look up the insurers that a place accepts, by name."""
    places = yield from search_all("/Organization", {"name": place})
    here = next(f"Organization/{one['id']}" for one in places if one.get("name") == place)
    query = {"participating-organization": here, "_include": "OrganizationAffiliation:primary-organization"}
    found = yield from search_all("/OrganizationAffiliation", {**query, "_count": "200"})
    names = {f"Organization/{one['id']}": one["name"] for one in found if one["resourceType"] == "Organization"}
    contracts = [one for one in found if one["resourceType"] == "OrganizationAffiliation"]
    insurers = [one["organization"]["reference"] for one in contracts if one["active"] and _includes(one, today)]
    return {"": here, **{names[one]: one for one in insurers}}


def _includes(record: Resource, day: str) -> bool:
    """Whether the period of a record includes a day."""
    period = record["period"]
    return bool(period["start"] <= day <= period.get("end", day))


def _terms(
    ask: RegistrationContent, parent: str, insurer: str, coverages: Sequence[Resource], today: str
) -> dict[str, Any]:
    """Return the member number and the period of the new coverage; empty if the parent has no coverage for it."""
    if not parent:
        return {"subscriberId": ask.number, "period": {"start": today, "end": ask.until}}
    people = reference(*parent.split("/"))
    fitting = [
        one
        for one in coverages
        if one["status"] == "active"
        and one["beneficiary"] == one["subscriber"] == people
        and one["payor"][0]["reference"] == insurer
        and _includes(one, today)
    ]
    if not fitting:
        return {}
    latest = max(one["period"]["start"] for one in fitting)
    best = min((one for one in fitting if one["period"]["start"] == latest), key=lambda one: str(one["id"]))
    period = {"start": today, "end": best["period"].get("end")}
    return {"subscriberId": best["subscriberId"], "period": {name: day for name, day in period.items() if day}}


def _new_patient(ask: RegistrationContent) -> Resource:
    card = {"identifier": [{"system": CARD, "value": ask.card}]} if ask.card else {}
    return {
        "resourceType": "Patient",
        **card,
        "name": [{"family": ask.person.family, "given": [ask.person.given]}],
        "telecom": [{"system": "phone", "value": ask.phone}],
        "gender": ask.gender,
        "birthDate": ask.person.birth_date,
    }


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
