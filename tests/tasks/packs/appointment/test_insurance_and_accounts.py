"""Tasks about insurance and accounts: careful agents succeed, careless agents fail."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from fhir_gym.actions import Action, Finish, Get, Patch, Post, Put
from fhir_gym.tasks import get_task
from fhir_gym.tasks.packs.appointment.billing import guarantees_on, period_includes
from tests.tasks.test_appointment import PACK, Desk, body

if TYPE_CHECKING:
    from fhir_gym.fhir import World

KEYS = ("07", "08a", "08b", "09a", "09b", "09c", "09d", "10a", "10b")


@pytest.mark.parametrize("key", KEYS)
def test_setup_has_valid_dates_and_unique_ids(key: str, hospital: World) -> None:
    today = hospital.now.date().isoformat()
    for k in range(30):
        setup = get_task(PACK, key).variation(k, hospital).setup
        assert len({resource["id"] for resource in setup}) == len(setup)
        for resource in setup:
            period = resource.get("period") or resource.get("servicePeriod") or {}
            assert period.get("start", "") <= period.get("end", "9")
            assert resource.get("birthDate", "") <= today


# 07


@pytest.fixture
def insure(hospital: World) -> Desk:
    return Desk("07", hospital)


def test_a_transaction_enters_both_at_once(insure: Desk) -> None:
    look, relate, coverage, _ = insure.gold
    urn = "urn:uuid:6f1c1c52-8d3e-4b6e-9d54-5b7d0f7c7e11"
    held = {**body(coverage), "subscriber": {"reference": urn}, "policyHolder": {"reference": urn}}
    entry = [
        {"fullUrl": urn, "resource": body(relate), "request": {"method": "POST", "url": "RelatedPerson"}},
        {"resource": {**held, "id": "coverage-1"}, "request": {"method": "PUT", "url": "Coverage/coverage-1"}},
    ]
    bundle = Post("/", {"resourceType": "Bundle", "type": "transaction", "entry": entry})
    assert not insure.failed([look, bundle, Finish(["Coverage/coverage-1"])])
    assert not insure.failed([look, Post("/", {**body(bundle), "entry": entry[::-1]}), Finish(["coverage-1"])])


def test_the_first_hit_by_name_may_be_another_insurer(hospital: World) -> None:
    right = 0
    for k in range(40):
        variation = get_task(PACK, "07").variation(k, hospital)
        p: Any = variation.params
        with hospital.session() as session:
            session.load(variation.setup)
            found = session.search("Organization", name=p.insurer.name)
            exact = session.search("Organization", **{"name:exact": p.insurer.name})
            active = session.search("Organization", name=p.insurer.name, active="true")
        assert len(found) > len(exact) > 1
        assert len(active) > 1
        assert [organization["id"] for organization in exact if organization["active"]] == [p.insurer.id]
        right += found[0]["id"] == p.insurer.id
    assert 0 < right < 25


def test_the_subscriber_is_not_on_file_but_a_lookalike_is(hospital: World) -> None:
    for k in range(30):
        p: Any = get_task(PACK, "07").variation(k, hospital).params
        own = p.scene.relatives_of(p.patient.id)
        assert own
        assert p.relative.relation not in {relative.relation for relative in own}
        assert p.relative.person.name not in {relative.person.name for relative in own}
        alike = [relative for relative in p.scene.relatives if relative.person.name == p.relative.person.name]
        assert p.relative.relation in {relative.relation for relative in alike}
        assert all(coverage.status != "active" for coverage in p.scene.coverages_of(p.patient.id))


def test_light_asks_for_a_coverage_only(insure: Desk) -> None:
    look, relate, coverage, finish = insure.gold
    bare = {name: value for name, value in body(coverage).items() if name in ("resourceType", "status", "beneficiary")}
    assert insure.verdict([look, relate, Post("/Coverage", {**bare, "class": []}), finish]).light is False
    verdict = insure.verdict(
        [Post("/Coverage", {**body(coverage), "subscriber": {"display": "?"}, "policyHolder": {"display": "?"}})]
    )
    assert verdict.light
    assert not verdict.success


def test_a_second_relative_fails(insure: Desk) -> None:
    look, relate, coverage, finish = insure.gold
    other = Post("/RelatedPerson", {**body(relate), "name": [{"family": "Else", "given": ["Someone"]}]})
    assert insure.failed([look, relate, coverage, other, finish]) == ["nothing else changed"]


# 08


@pytest.mark.parametrize("key", ["08a", "08b"])
def test_every_lazy_search_of_coverages_finds_another_one(key: str, hospital: World) -> None:
    for k in range(10):
        desk = Desk(key, hospital, k)
        p = desk.p
        family = {"beneficiary:Patient.family": p.patient.family, "beneficiary:Patient.given": p.patient.given}
        right = {p.coverage.id} if key == "08a" else set()
        with hospital.session() as session:
            session.load(desk.variation.setup)
            whatever_status = session.search("Coverage", beneficiary=p.patient.id)
            whatever_day = session.search("Coverage", beneficiary=p.patient.id, status="active")
            by_name = session.search("Coverage", **family, status="active")
        assert {coverage["id"] for coverage in whatever_status if period_includes(p.day, coverage["period"])} > right
        assert {coverage["id"] for coverage in whatever_day} > right
        assert {coverage["id"] for coverage in by_name if period_includes(p.day, coverage["period"])} > right


@pytest.mark.parametrize("key", ["08a", "08b"])
def test_the_patient_and_the_day_decide_which_coverage_is_in_force(key: str, hospital: World) -> None:
    """The prompt of every scene could ask about several patients, and has one right answer for each."""
    task: Any = get_task(PACK, key)
    edges = 0
    for k in range(40):
        p: Any = task.variation(k, hospital).params
        offered = task.candidates(p.scene)
        assert min(len({candidate.patient for candidate in found}) for found in offered.values()) > 2
        for candidate in offered["present" if key == "08a" else "absent"]:
            asked = task.params_for(random.Random(k), hospital, p.scene, candidate)
            counting = [
                coverage.id
                for coverage in p.scene.coverages_of(candidate.patient)
                if coverage.status == "active"
                and period_includes(asked.day, {"start": coverage.start, "end": coverage.end})
            ]
            assert counting == ([candidate.record_id] if candidate.record else [])
            edges += bool(candidate.record) and asked.day in (asked.coverage.start, asked.coverage.end)
    assert key == "08b" or edges > 20


def test_evidence_of_no_coverage(hospital: World) -> None:
    desk = Desk("08b", hospital)
    id = desk.p.patient.id

    def failed(*actions: Action) -> list[str]:
        return desk.failed([*actions, Finish()])

    everything = Get("/Coverage?_count=100000")
    for look in (Get("/Coverage", {"patient": id, "_elements": "status,period"}), everything):
        assert not failed(look)
    page, subscribed = Get("/Coverage", {"status": "active", "_count": "3"}), Get("/Coverage", {"subscriber": id})
    counted = Get("/Coverage", {"patient": id, "_summary": "count"})
    names = Get("/Coverage", {"patient": id, "_elements": "status"})
    by_name = Get("/Coverage", {"beneficiary:Patient.family": "Nobody"})
    elsewhere = (
        Get("/Account", {"patient": id}),
        Get(f"/Patient/{id}"),
        Get(f"/Coverage/{desk.p.scene.coverages_of(id)[0].id}"),
    )
    for look in (page, subscribed, counted, names, by_name, *elsewhere):
        assert failed(look) == ["evidence"], look
    revinclude = Get("/Patient", {"_id": id, "_revinclude": "Coverage:beneficiary"})
    assert not failed(revinclude)


# 09


def test_a_related_person_may_be_put_and_then_corrected(hospital: World) -> None:
    desk = Desk("09a", hospital)
    full = body(desk.gold[0])
    put = Put("/RelatedPerson/mine", {**full, "id": "mine", "birthDate": "1900-01-01"})
    mend = Patch("/RelatedPerson/mine", [{"op": "replace", "path": "/birthDate", "value": full["birthDate"]}])
    assert desk.failed([put, Finish(["mine"])]) == ["birth date"]
    assert not desk.failed([put, mend, Finish(["RelatedPerson/mine"])])


def test_relatives_on_file_differ_in_one_detail(hospital: World) -> None:
    for k in range(30):
        p: Any = get_task(PACK, "09a").variation(k, hospital).params
        wanted = p.relative.person
        own = [(relative.person.given, relative.person.birth_date) for relative in p.scene.relatives_of(p.patient.id)]
        assert (wanted.given, wanted.birth_date) not in own
        assert wanted.given in {given for given, _ in own}
        assert wanted.birth_date in {birth_date for _, birth_date in own}
        elsewhere = [relative for id in p.scene.namesakes(p.patient) for relative in p.scene.relatives_of(id)]
        described = (wanted.name, wanted.birth_date, p.relative.relation)
        assert described in {
            (relative.person.name, relative.person.birth_date, relative.relation) for relative in elsewhere
        }


def test_light_accepts_a_related_person_with_any_values(hospital: World) -> None:
    desk = Desk("09a", hospital)
    full = body(desk.gold[0])
    wrong = {**full, "birthDate": "1900-01-01", "name": [{"family": "Else"}]}
    verdict = desk.verdict([Post("/RelatedPerson", wrong)])
    assert verdict.light
    assert not verdict.success
    for name in ("birthDate", "name", "patient"):
        less = {key: value for key, value in full.items() if key != name}
        assert not desk.verdict([Post("/RelatedPerson", less), desk.gold[-1]]).light


def _others(desk: Desk) -> list[Any]:
    return [patient for patient in desk.p.scene.patients if patient != desk.p.patient]


def test_an_account_needs_exactly_one_patient(hospital: World) -> None:
    desk = Desk("09b", hospital)
    account = body(desk.gold[0])
    both = [*account["subject"], {"reference": f"Patient/{_others(desk)[0].id}"}]
    for subject in (both, both[1:], [{"display": desk.p.patient.name}], []):
        assert "subject" in desk.failed([Post("/Account", {**account, "subject": subject}), desk.gold[-1]])
    for status in ("inactive", "entered-in-error", "on-hold", "unknown"):
        assert desk.failed([Post("/Account", {**account, "status": status}), desk.gold[-1]]) == ["status"]


def test_a_guarantor_may_be_added_in_several_ways(hospital: World) -> None:
    desk = Desk("09c", hospital)
    url, finish = f"/Account/{desk.p.account.id}", desk.gold[-1]
    whole = body(desk.gold[1])
    new = whole["guarantor"][-1]
    patch = Patch(url, [{"op": "add", "path": "/guarantor/-", "value": new}])
    entry = [{"resource": whole, "request": {"method": "PUT", "url": url[1:]}}]
    assert not desk.failed([patch, finish])
    assert not desk.failed([Post("/", {"resourceType": "Bundle", "type": "batch", "entry": entry}), finish])
    assert desk.failed([patch, patch, finish]) == ["guarantor added"]
    closed = Patch(url, [{"op": "replace", "path": "/status", "value": "inactive"}])
    assert desk.failed([patch, closed, finish]) == ["rest of account unchanged"]
    gone = Patch(url, [{"op": "remove", "path": "/guarantor/0"}])
    assert desk.failed([patch, gone, finish]) == ["other guarantors unchanged"]


@pytest.mark.parametrize(
    ("more", "right"),
    [
        ({"onHold": False}, True),
        ({"onHold": True}, False),
        ({"period": {"start": "2023-11-13"}}, True),
        ({"period": {"start": "2023-11-13T10:15:00Z"}}, True),
        ({"period": {"start": "2023-11"}}, True),
        ({"period": {"start": "2023-11-14"}}, False),
        ({"period": {"end": "2033-11-13"}}, False),
    ],
)
def test_a_new_guarantor_is_in_force_without_end(more: dict[str, Any], right: bool, hospital: World) -> None:
    desk = Desk("09c", hospital)
    whole = body(desk.gold[1])
    changed = [*whole["guarantor"][:-1], {**whole["guarantor"][-1], **more}]
    put = Put(f"/Account/{desk.p.account.id}", {**whole, "guarantor": changed})
    assert desk.failed([put, desk.gold[-1]]) == ([] if right else ["guarantor in force"])


def test_the_new_guarantor_has_namesakes_and_the_account_has_others(hospital: World) -> None:
    for k in range(30):
        p: Any = get_task(PACK, "09c").variation(k, hospital).params
        standing = {guarantor.party for guarantor in p.account.guarantors}
        assert standing
        assert p.guarantor.person.id not in standing
        assert p.account in p.scene.accounts_of(p.guarantor.patient)
        assert len(p.scene.accounts_of(p.patient.id)) > 1
        alike = [relative for relative in p.scene.relatives if relative.person.name == p.guarantor.person.name]
        assert len(alike) > 1
        assert {relative.patient for relative in alike} > {p.patient.id}


def test_an_account_that_exists_is_not_created_again(hospital: World) -> None:
    desk = Desk("09d", hospital)
    p = desk.p
    look, finish = desk.gold
    new = {"resourceType": "Account", "status": "active", "subject": [{"reference": f"Patient/{p.patient.id}"}]}
    assert desk.failed([look, Post("/Account", new), finish]) == ["nothing else changed"]
    assert desk.failed([finish]) == ["evidence"]
    assert desk.failed([Get("/Account", {"patient": p.patient.id, "_summary": "count"}), finish]) == ["evidence"]
    assert not desk.failed([Get("/Account", {"patient": p.patient.id}), finish])
    search = f"subject=Patient/{p.patient.id}&status=active"
    request = {"method": "POST", "url": "Account", "ifNoneExist": search}
    bundle = {"resourceType": "Bundle", "type": "transaction", "entry": [{"resource": new, "request": request}]}
    assert not desk.failed([look, Post("/", bundle), finish])


def test_light_names_an_account_of_the_patient(hospital: World) -> None:
    desk = Desk("09d", hospital)
    p = desk.p
    closed = next(account for account in p.scene.accounts_of(p.patient.id) if account.status != "active")
    foreign = next(
        account for account in p.scene.accounts if account.patient != p.patient.id and account.status == "active"
    )
    assert desk.verdict([Finish([closed.id])]).light
    assert not desk.verdict([Finish([foreign.id])]).light
    assert not desk.verdict([Finish([p.patient.id])]).light


@pytest.mark.parametrize("key", ["09b", "09d"])
def test_every_lazy_search_of_accounts_finds_another_one(key: str, hospital: World) -> None:
    for k in range(20):
        p: Any = get_task(PACK, key).variation(k, hospital).params
        own = p.scene.accounts_of(p.patient.id)
        assert sum(account.status == "active" for account in own) == (key == "09d")
        assert sum(account.status != "active" for account in own) > 1
        assert any(
            account.status == "active" for id in p.scene.namesakes(p.patient) for account in p.scene.accounts_of(id)
        )


# 10


@pytest.mark.parametrize("key", ["10a", "10b"])
def test_every_lazy_look_at_guarantors_finds_another_one(key: str, hospital: World) -> None:
    for k in range(25):
        variation = get_task(PACK, key).variation(k, hospital)
        p: Any = variation.params
        right = {p.party} - {""}
        with hospital.session() as session:
            session.load(variation.setup)
            accounts = session.search("Account", patient=p.patient.id)
            (active,) = session.search("Account", patient=p.patient.id, status="active")
            by_name = session.search(
                "Account", **{"patient.given": p.patient.given, "patient.family": p.patient.family}
            )
            relatives = session.search("RelatedPerson", patient=p.patient.id)
        held = [guarantor for guarantor in active["guarantor"] if not guarantor["onHold"]]
        on_the_day = [
            guarantor for guarantor in active["guarantor"] if guarantees_on({**guarantor, "onHold": False}, p.day)
        ]
        assert _parties([guarantor for guarantor in held if guarantees_on(guarantor, p.day)]) == right
        assert _parties(held) > right
        assert _parties(on_the_day) > right
        for account in accounts:
            assert account == active or _standing([account], p.day) - right
        assert _standing([account for account in by_name if account["status"] == "active"], p.day) > right
        assert len(relatives) > 1


def _standing(accounts: list[dict[str, Any]], day: str) -> set[str]:
    return _parties(
        [guarantor for account in accounts for guarantor in account["guarantor"] if guarantees_on(guarantor, day)]
    )


def _parties(guarantors: list[dict[str, Any]]) -> set[str]:
    return {guarantor["party"]["reference"].rpartition("/")[2] for guarantor in guarantors}


def test_evidence_of_no_guarantor(hospital: World) -> None:
    desk = Desk("10b", hospital)
    p, id = desk.p, desk.p.patient.id
    for query in ({"patient": id}, {"subject": f"Patient/{id}", "status": "active", "_elements": "guarantor"}):
        assert not desk.failed([Get("/Account", query), Finish()])
    elsewhere = [
        Get("/Account", {"patient": next(iter(p.scene.namesakes(p.patient)))}),
        *(Get("/Account", {"patient": id, "status": status}) for status in ("inactive", "on-hold")),
        Get("/RelatedPerson", {"patient": id}),
        Get("/Coverage", {"patient": id}),
    ]
    assert desk.failed([*elsewhere, Finish()]) == ["evidence"]
    names = Get("/Account", {"patient": id, "status": "active", "_elements": "status"})
    assert desk.failed([names, Finish()]) == ["evidence"]
    assert not desk.failed([Get(f"/Account/{p.account.id}"), Finish()])
    for relative in p.scene.relatives_of(id):
        assert desk.failed([desk.gold[0], Finish([relative.person.id])]) == ["answer"]
