from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from typing import Any

import pytest

from fhir_gym import Episode, Step
from fhir_gym.actions import Action, Finish, Get, Patch, Post, Put
from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import entries
from fhir_gym.tasks.packs.shift.outcomes import (
    ALREADY_DONE,
    DONE,
    NO_SUCH_PATIENT,
    NOT_ALLOWED,
    SEVERAL_PATIENTS,
    letters,
)
from fhir_gym.tasks.packs.shift.q3_registrations.kind import Registrations
from fhir_gym.tasks.packs.shift.q3_registrations.rules import RegistrationContent, RegistrationRequest, Registry, decide
from fhir_gym.tasks.packs.shift.registry import CARD
from fhir_gym.types import Json, Resource
from tests.tasks.packs.shift.playing import (
    answer_of,
    checks_of_done_requests,
    edited,
    failed,
    only_reads,
    opened,
    params_of,
    play,
)
from tests.tasks.packs.shift.rule_variations import dependent_checks

SLOW = pytest.mark.slow


def requests_of(episode: Episode) -> tuple[RegistrationRequest, ...]:
    return params_of(episode).requests


def checks_where(episode: Episode, condition: Callable[[RegistrationRequest], bool]) -> list[str]:
    """Return the names of the checks of the requests that satisfy a condition."""
    requests = requests_of(episode)
    return [f"request {one}" for one, r in zip(letters(len(requests)), requests, strict=True) if condition(r)]


@pytest.mark.parametrize(("key", "variation"), [("Q3-1", 0), ("Q3-2", 0), pytest.param("Q3-1", 1_000, marks=SLOW)])
def test_the_reference_solution_is_right(hospital: World, key: str, variation: int) -> None:
    with opened(hospital, key, variation) as episode:
        step = play(episode)
        assert (step.reward, failed(step)) == (1.0, [])
        assert step.info["step"] <= episode.step_limit


@SLOW
def test_lookups_without_writes_earn_the_requests_that_are_declined_without_the_writes(hospital: World) -> None:
    with opened(hospital, "Q3-2", 1) as episode:
        start = Registry.at_start(params_of(episode).scene)
        wrong = checks_where(episode, lambda one: decide(start, one.ask).outcome == DONE)
        step = play(episode, only_reads)
        assert wrong and [one for one in failed(step) if one.startswith("request")] == wrong


@SLOW
def test_every_outcome_occurs_and_requests_name_people_of_earlier_requests(hospital: World) -> None:
    outcomes, chains = set(), 0
    for variation in range(6):
        with opened(hospital, "Q3-2", variation) as episode:
            start = Registry.at_start(params_of(episode).scene)
            outcomes |= {one.outcome for one in requests_of(episode)}
            chains += sum(decide(start, one.ask).outcome != one.outcome for one in requests_of(episode))
    assert outcomes == {DONE, *Registrations.codes}
    assert chains >= 6


PATIENTS: dict[str, Callable[[Resource], Any]] = {
    "another sex": lambda one: one.update(gender="other"),
    "another phone": lambda one: one["telecom"].append({"system": "phone", "value": "212-555-0999"}),
    "a former name": lambda one: one["name"].append({"use": "old", "family": "Elsewhere", "given": ["Nobody"]}),
    "another card": lambda one: one.setdefault("identifier", []).append({"system": CARD, "value": "Z1"}),
    "deceased": lambda one: one.update(deceasedBoolean=True),
}
COVERAGES: dict[str, Callable[[Resource], Any]] = {
    "not active": lambda one: one.update(status="draft"),
    "the whole year": lambda one: one.update(period={"start": "2023-01-01", "end": "2023-12-31"}),
    "another end": lambda one: one["period"].update(end="2040-01-01"),
    "another number": lambda one: one.update(subscriberId="A1"),
    "no number": lambda one: one.pop("subscriberId"),
    "another subscriber": lambda one: one.update(subscriber={"reference": "Patient/1"}),
    "another policy holder": lambda one: one.update(policyHolder={"display": "the mother"}),
    "payor by name": lambda one: one.update(payor=[{"display": "the insurer"}]),
    "spouse": lambda one: one.update(relationship={"text": "spouse"}),
    "with a class": lambda one: one.update({"class": [{"type": {"text": "plan"}, "value": "GOLD"}]}),
}


def one_of(mistakes: Iterable[str]) -> list[Any]:
    """Return names of mistakes; all but the first are for slow tests."""
    first, *rest = mistakes
    return [first, *(pytest.param(one, marks=SLOW) for one in rest)]


@pytest.mark.parametrize("mistake", one_of(PATIENTS))
def test_a_mistake_in_a_patient_fails_the_requests_that_are_done(hospital: World, mistake: str) -> None:
    with opened(hospital, "Q3-1", 3) as episode:
        step = play(episode, partial(edited, "Patient", PATIENTS[mistake]))
        touched = checks_of_done_requests(episode)
        assert touched and failed(step) == touched
        assert step.reward < 1


@pytest.mark.parametrize("mistake", one_of(COVERAGES))
def test_a_mistake_in_a_coverage_fails_the_requests_with_insurance(hospital: World, mistake: str) -> None:
    with opened(hospital, "Q3-1", 2) as episode:
        dependent = dependent_checks(episode)
        step = play(episode, partial(edited, "Coverage", COVERAGES[mistake]))
        touched = checks_where(episode, lambda one: one.outcome == DONE and bool(one.ask.insurer))
        wrong = [one for one in failed(step) if one.startswith("request")]
        own = {*touched} - dependent
        assert own and own <= {*wrong} <= {*checks_where(episode, lambda one: bool(one.ask.insurer))}


@SLOW
def test_changes_of_patients_on_file_are_wrong(hospital: World) -> None:
    with opened(hospital, "Q3-1", _variation_with(hospital, ALREADY_DONE)) as episode:
        request = next(one for one in requests_of(episode) if one.outcome == ALREADY_DONE and one.on_file)
        patch = Patch(f"/Patient/{request.on_file[0]}", [{"op": "add", "path": "/gender", "value": "unknown"}])
        step = play(episode, lambda one: [patch, one] if one.kind == "FINISH" else [one])
        assert failed(step) == checks_where(episode, lambda one: one == request)


def _variation_with(world: World, outcome: str) -> int:
    for variation in range(30):
        with opened(world, "Q3-1", variation) as episode:
            if any(one.outcome == outcome and one.on_file for one in requests_of(episode)):
                return variation
    raise AssertionError(outcome)


def with_more_details(action: Action) -> list[Action]:
    """Add what the rules and common sense allow."""

    def more(one: Resource) -> None:
        one["language"] = "en"
        if one["resourceType"] == "Patient":
            one.update(active=True, address=[{"city": "Boston"}])
        else:
            one["policyHolder"] = {**one["subscriber"], "display": "the subscriber"}
            word = "self" if one["subscriber"] == one["beneficiary"] else "child"
            one["relationship"] = {"coding": [{"code": word, "display": word.title()}]}
            one["period"] = {name: f"{day[:10]}T10:00:00Z" for name, day in one["period"].items()}

    return edited("Patient", more, action) if action.url == "/Patient" else edited("Coverage", more, action)


def by_update(action: Action) -> list[Action]:
    """Create a Patient under an id of one's own."""
    if action.kind != "POST" or action.url != "/Patient":
        return [action]
    phone = (action.body or "").partition('"value":"')[2][:3]
    (posted,) = edited("Patient", lambda one: one.update(id=f"own-{phone}-{len(action.body or '')}"), action)
    body = json.loads(posted.body or "")
    return [Put(f"/Patient/{body['id']}", body)]


@pytest.mark.parametrize("other", [with_more_details, by_update])
def test_other_kinds_of_writes_are_right_too(hospital: World, other: Callable[[Action], list[Action]]) -> None:
    with opened(hospital, "Q3-1", 3) as episode:
        dependent = dependent_checks(episode)  # the reference solution reads days, so it misreads its own records
        assert {*checks_of_done_requests(episode)} - dependent
        assert {*failed(play(episode, other))} <= dependent


class Planner:
    """Reads everything first, plans, and writes in one transaction; `flaw` names a rule that it forgets.

    Args:
        episode: The episode.
        flaw: Name of a rule; empty for none.
    """

    def __init__(self, episode: Episode, flaw: str = "") -> None:
        self.episode, self.flaw = episode, flaw
        params = params_of(episode)
        self.place = params.scene.name
        self.today = params.now[:10]
        self.asks: list[RegistrationContent] = [one.ask for one in params.requests]

    def all_of(self, path: str, **query: str) -> list[Resource]:
        bundle = answer_of(self.episode.step(Get(path, {**query, "_count": "100"})))
        found = [*entries(bundle)]
        links = {one["relation"]: one["url"] for one in bundle["link"]}
        while "next" in links:
            bundle = answer_of(self.episode.step(Get(links["next"])))
            found += entries(bundle)
            links = {one["relation"]: one["url"] for one in bundle["link"]}
        return found

    def read(self) -> None:
        families = {one.person.family for one in self.asks} | {one.parent.family for one in self.asks if one.parent}
        self.patients = self.all_of("/Patient", family=",".join(sorted(families)))
        numbers = [f"{CARD}|{one.card}" for one in self.asks if one.card]
        if numbers:
            self.patients += self.all_of("/Patient", identifier=",".join(numbers))
        self.patients = [*{one["id"]: one for one in self.patients}.values()]
        self.coverages = self.all_of("/Coverage", **{"beneficiary:Patient.family": ",".join(sorted(families))})
        self.organizations: dict[str, str] = {}
        self.contracts: list[Resource] = []
        for name in {self.place, *(one.insurer for one in self.asks if one.insurer)}:
            found = self.all_of("/Organization", **{"name:exact": name})
            self.organizations[name] = f"Organization/{found[0]['id']}"
        insurers = ",".join(one for name, one in self.organizations.items() if name != self.place)
        if insurers:
            self.contracts = self.all_of("/OrganizationAffiliation", **{"primary-organization": insurers})

    def plan(self) -> tuple[list[str], list[Resource]]:
        """Return the outcomes and the records to create."""
        self.writes: list[Resource] = []
        self.patients, self.coverages = [*self.patients], [*self.coverages]
        return [f"{one}: {self.handle(ask)}" for one, ask in zip(letters(14), self.asks, strict=False)], self.writes

    def play(self) -> Step:
        self.read()
        told, writes = self.plan()
        rows: list[Json] = [
            {
                "fullUrl": f"urn:uuid:{one['id']}",
                "resource": one,
                "request": {"method": "POST", "url": one["resourceType"]},
            }
            for one in writes
        ]
        if rows:
            self.episode.step(Post("/", {"resourceType": "Bundle", "type": "transaction", "entry": rows}))
        return self.episode.step(Finish([*told]))

    def handle(self, ask: RegistrationContent) -> str:
        if self.called(ask.person) or (ask.card and self.flaw != "cards" and self.with_card(ask.card)):
            return ALREADY_DONE
        parent, terms = "", (ask.number, ask.until)
        if ask.parent:
            parents = self.called(ask.parent)
            if not parents:
                return NO_SUCH_PATIENT
            if len(parents) > 1 and self.flaw != "first parent":
                return SEVERAL_PATIENTS
            parent = parents[0]
        if ask.insurer:
            insurer = self.organizations[ask.insurer]
            if not self.is_accepted(insurer):
                return NOT_ALLOWED
            if parent:
                insured = [*self.insured(parent, insurer)]
                if not insured:
                    return NOT_ALLOWED
                latest = max(one["period"]["start"] for one in insured)
                best = min(one["id"] for one in insured if one["period"]["start"] == latest)
                chosen = next(
                    one for one in insured if one["id"] == (insured[0]["id"] if self.flaw == "first coverage" else best)
                )
                terms = chosen["subscriberId"], chosen["period"].get("end", "")
        self.write(ask, parent, terms)
        return DONE

    def write(self, ask: RegistrationContent, parent: str, terms: tuple[str, str]) -> None:
        number = len(self.writes)
        child = f"00000000-0000-4000-8000-{number:012d}"
        card = {"identifier": [{"system": CARD, "value": ask.card}]} if ask.card else {}
        patient: Resource = {
            "resourceType": "Patient", "id": child, **card, "active": True,
            "name": [{"family": ask.person.family, "given": [ask.person.given]}],
            "telecom": [{"system": "phone", "value": ask.phone, "use": "mobile"}],
            "gender": ask.gender, "birthDate": ask.person.birth_date,
        }  # fmt: skip
        new = [patient]
        if ask.insurer:
            (subscriber_id, until), me = terms, f"urn:uuid:{child}"
            end = {"end": until} if until else {}
            new.append({
                "resourceType": "Coverage", "id": f"00000000-0000-4000-9000-{number:012d}", "status": "active",
                "subscriber": {"reference": parent or me}, "subscriberId": subscriber_id,
                "beneficiary": {"reference": me}, "period": {"start": self.today, **end},
                "payor": [{"reference": self.organizations[ask.insurer]}],
            })  # fmt: skip
        self.writes += new
        if self.flaw != "never look again":
            self.patients.append(patient)
            self.coverages += new[1:]

    def called(self, who: Any) -> list[str]:
        return [
            f"urn:uuid:{one['id']}" if one in self.writes else f"Patient/{one['id']}"
            for one in self.patients
            if (one.get("active") is not False or self.flaw == "active")
            and (one["birthDate"] == who.birth_date or self.flaw == "birth dates")
            and any(
                (name["family"], " ".join(name["given"])) == (who.family, who.given)
                for name in (one["name"][:1] if self.flaw == "former names" else one["name"])
            )
        ]

    def with_card(self, card: str) -> bool:
        return any(
            number["value"] == card
            and (number["system"] == CARD or self.flaw == "systems")
            and (number.get("use") != "old" or self.flaw != "old cards")
            for one in self.patients
            if one.get("active") is not False or self.flaw == "active"
            for number in one.get("identifier", [])
        )

    def is_accepted(self, insurer: str) -> bool:
        place = self.organizations[self.place]
        return self.flaw == "contracts" or any(
            one["organization"]["reference"] == insurer
            and (one["participatingOrganization"]["reference"] == place or self.flaw == "places")
            and (one["active"] or self.flaw == "void contracts")
            and (self.is_in_force(one) or self.flaw == "ended contracts")
            for one in self.contracts
        )

    def insured(self, parent: str, insurer: str) -> Iterator[Resource]:
        for one in self.coverages:
            if (
                one["beneficiary"]["reference"] == parent
                and (one["status"] == "active" or self.flaw == "void coverages")
                and (one["subscriber"]["reference"] == parent or self.flaw == "subscribers")
                and (one["payor"][0]["reference"] == insurer or self.flaw == "insurers")
                and (self.is_in_force(one) or self.flaw == "ended coverages")
            ):
                yield one

    def is_in_force(self, one: Resource) -> bool:
        return bool(one["period"]["start"] <= self.today <= one["period"].get("end", self.today))


def plays(world: World, flaw: str, key: str, variations: Sequence[int]) -> Iterator[Step]:
    for variation in variations:
        with opened(world, key, variation) as episode:
            yield Planner(episode, flaw).play()


def test_an_agent_may_read_everything_and_write_one_transaction(hospital: World) -> None:
    assert [step.reward for step in plays(hospital, "", "Q3-1", range(1))] == [1]


@SLOW
def test_an_agent_may_read_everything_and_write_one_transaction_at_both_levels(hospital: World) -> None:
    for key in ("Q3-1", "Q3-2"):
        for variation, step in enumerate(plays(hospital, "", key, range(8))):
            assert step.reward == 1, (key, variation, failed(step))


FLAWS = (
    *("cards", "old cards", "systems", "former names", "birth dates", "active", "first parent", "contracts", "places"),
    *("void contracts", "ended contracts", "void coverages", "ended coverages", "subscribers", "insurers"),
    *("first coverage", "never look again"),
)


@SLOW
def test_an_agent_that_forgets_a_rule_fails(hospital: World) -> None:
    left = [*FLAWS]
    for variation in range(60):
        with opened(hospital, "Q3-2", variation) as episode:
            planner = Planner(episode)
            planner.read()
            right = copy(planner).plan()
        for flaw in [*left]:
            forgetful = copy(planner)
            forgetful.flaw = flaw
            if forgetful.plan() != right:
                (step,) = plays(hospital, flaw, "Q3-2", [variation])
                assert not step.info["success"] and step.reward < 1, (flaw, variation)
                left.remove(flaw)
        if not left:
            return
    assert not left


ODD: tuple[Resource, ...] = (
    {"resourceType": "Patient", "name": [{"text": "?"}], "telecom": [{"value": "?"}], "identifier": [{"value": "7"}]},
    {"resourceType": "Coverage", "status": "active"},
    {"resourceType": "Coverage", "beneficiary": {"display": "x"}, "period": {"start": "soon"}, "payor": [{}]},
)


@pytest.mark.parametrize("odd", [ODD[0], *(pytest.param(one, marks=SLOW) for one in ODD[1:])])
def test_odd_writes_are_judged(hospital: World, odd: Resource) -> None:
    with opened(hospital, "Q3-1", 3) as episode:
        ask = next(one.ask for one in requests_of(episode) if one.outcome == DONE)
        episode.step(Post(f"/{odd['resourceType']}", odd))
        who = {"birthDate": ask.person.birth_date, "name": [{"family": ask.person.family, "given": [ask.person.given]}]}
        created = answer_of(episode.step(Post("/Patient", {"resourceType": "Patient", **who, "telecom": [{}]})))
        coverage = {"resourceType": "Coverage", "beneficiary": {"reference": f"Patient/{created['id']}"}}
        episode.step(Post("/Coverage", {**coverage, "relationship": {"coding": [{}], "text": "?"}}))
        step = episode.step(Finish(["A. done", "B) done", 3]))
        assert step.reward == 0
