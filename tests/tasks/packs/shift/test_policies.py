from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest

from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator, instant
from fhir_gym.tasks.packs.shift.clinic import SERVICES
from fhir_gym.tasks.packs.shift.policies import (
    MISREADINGS,
    Library,
    PolicyDocument,
    policy_resources,
    read_library,
    validity_rules,
)
from fhir_gym.tasks.packs.shift.policy_drawing import draw_library
from fhir_gym.tasks.packs.shift.policy_texts import FILLERS, Rule, Subject
from fhir_gym.types import Json

NOW = datetime(2023, 11, 13, 10, 15, tzinfo=UTC)
NOON = NOW.replace(hour=12, minute=0)
HERE, ELSEWHERE = SERVICES[:2]
LOANS = Subject(
    "loans",
    "Loans of books",
    (
        Rule("days", "A book is lent for {value} days.", ("7", "14", "21", "28", "70")),
        Rule("fee", "The fee is {value} cents a day.", ("5", "10", "15", "20")),
        Rule("quiet", "Please be quiet."),
    ),
)


def document(id: str, days: str, *, since: datetime = NOW - timedelta(days=9), **changes: object) -> PolicyDocument:
    policy_document = PolicyDocument(
        id=id,
        number=id,
        subject="loans",
        title="Loans",
        department=None,
        status="current",
        doc_status="final",
        issued=instant(NOW),
        in_force=instant(since),
        values={"days": days},
        text="",
    )
    return policy_document.model_copy(update=changes)


BASE = document("base", "7", values={"days": "7", "fee": "5"})
OWN = document("own", "14", department=HERE)


@pytest.mark.parametrize(
    ("others", "days"),
    [
        ((), "7"),
        ((OWN,), "14"),
        ((document("other", "14", department=ELSEWHERE),), "7"),
        ((document("draft", "14", department=HERE, doc_status="preliminary"),), "7"),
        ((document("error", "14", department=HERE, status="entered-in-error"),), "7"),
        ((document("next", "14", replaces="base"),), "14"),
        ((document("next", "14", replaces="base", doc_status="preliminary"),), "7"),
        ((document("next", "14", replaces="base", since=NOON),), "7"),
        ((document("now", "14", replaces="base", since=NOW),), "14"),
        ((document("before", "14"), BASE.model_copy(update={"replaces": "before"})), "7"),
        ((document("change", "14", amends="base"),), "14"),
        ((document("change", "14", amends="base", since=NOON),), "7"),
        ((document("change", "14", amends="nowhere"),), "7"),
        ((document("change", "21", amends="base"), OWN), "14"),
        ((document("change", "21", amends="own", department=HERE), OWN), "21"),
        ((document("change", "21", amends="base"), document("next", "14", replaces="base")), "14"),
        (
            (
                document("last", "21", amends="base", since=NOW - timedelta(days=1)),
                document("first", "14", amends="base", since=NOW - timedelta(days=2)),
            ),
            "21",
        ),
    ],
)
def test_the_valid_document_decides(others: Sequence[PolicyDocument], days: str) -> None:
    documents = {policy_document.id: policy_document for policy_document in (BASE, *others)}
    library = Library(documents=tuple(documents.values()))
    assert library.decisions("loans", HERE.code, NOW)["days"].value == days
    assert library.values("fines", HERE.code, NOW) == {}


def test_a_document_comes_into_force_at_its_time() -> None:
    change = document("change", "14", amends="base", since=NOON)
    library = Library(documents=(change, BASE))
    before, after = (library.decisions("loans", "", now) for now in (NOON - timedelta(minutes=1), NOON))
    assert (before["days"], after["days"]) == (("7", "base"), ("14", "change"))
    assert before["fee"] == after["fee"] == ("5", "base")


def test_a_library_after_some_time_has_the_later_values() -> None:
    change = document("change", "14", amends="base", since=NOON)
    replaced = document("draft", "21", replaces="base", since=NOON, doc_status="preliminary")
    library = Library(documents=(change, BASE, replaced))
    assert library.coming(NOW) == [NOON] and library.coming(NOON) == []
    for time in (timedelta(0), NOON - NOW - timedelta(minutes=1), NOON - NOW):
        assert library.after(time).decisions("loans", "", NOW) == library.decisions("loans", "", NOW + time)


def drawn(world: World, seed: int, total: int = 12, soon: Sequence[datetime] = ()) -> Library:
    rng = random.Random(seed)
    return draw_library(
        rng, IdAllocator(rng, world), NOW, (LOANS,), SERVICES[:3], total, fillers=total // 20, soon=soon
    )


@pytest.mark.parametrize("total", [6, 12, 60])
def test_each_point_has_one_valid_place(hospital: World, total: int) -> None:
    for seed in range(4):
        library = drawn(hospital, seed, total, soon=(NOON,))
        assert len(library.documents) == total == len({policy_document.id for policy_document in library.documents})
        for subject in (LOANS, *FILLERS):
            mine = [policy_document for policy_document in library.documents if policy_document.subject == subject.code]
            for moment in (NOW, NOON, NOW + timedelta(days=99)):
                in_force = [
                    policy_document
                    for policy_document in mine
                    if policy_document.is_in_force(instant(moment)) and not policy_document.amends
                ]
                replaced = {policy_document.replaces for policy_document in in_force}
                owners = Counter(
                    policy_document.department_code
                    for policy_document in in_force
                    if policy_document.id not in replaced
                )
                assert all(count == 1 for count in owners.values())
                assert not mine or {*library.values(subject.code, "", moment)} == {rule.name for rule in subject.rules}
                changes = Counter(
                    (policy_document.amends, policy_document.in_force)
                    for policy_document in mine
                    if policy_document.amends
                )
                assert all(count == 1 for count in changes.values())


def test_policies_come_into_force_at_the_given_moments(hospital: World) -> None:
    libraries = [drawn(hospital, seed, soon=(NOON,)) for seed in range(8)]
    changes = [
        (library.values("loans", place.code, NOW), library.values("loans", place.code, NOON))
        for library in libraries
        for place in SERVICES[:3]
    ]
    assert any(before != after for before, after in changes)
    assert all(library.coming(NOW)[0] == NOON for library in libraries)
    later = {
        policy_document.in_force
        for library in libraries
        for policy_document in library.documents
        if policy_document.in_force > instant(NOW)
    }
    assert later and not any(
        instant(NOW) < in_force < instant(NOW + timedelta(days=1)) for in_force in later - {instant(NOON)}
    )


def test_misreadings_find_other_values(hospital: World) -> None:
    found: Counter[str] = Counter()
    for seed in range(20):
        library = drawn(hospital, seed, 10)
        for place in SERVICES[:3]:
            right = library.values("loans", place.code, NOW)
            for mistake in MISREADINGS:
                found[mistake] += library.misread(mistake, NOW).values("loans", place.code, NOW) != right
    assert min(found[misreading] for misreading in MISREADINGS) > 15, found


def test_an_agent_reads_the_same_values_from_the_server(hospital: World) -> None:
    library = drawn(hospital, 5, 14)
    resources = policy_resources(library, (LOANS,))
    reading = read_library((LOANS,))
    assert "category=http%3A%2F%2Fexample.org%2Fpolicy-subjects%7Cloans" in next(reading).url
    entries: list[Json] = [{"resource": resource} for resource in resources]
    with pytest.raises(StopIteration) as stopped:
        reading.send({"resourceType": "Bundle", "type": "searchset", "entry": entries})
    assert stopped.value.value == library
    for place in SERVICES[:3]:
        right = library.decisions("loans", place.code, NOW)
        assert stopped.value.value.decisions("loans", place.code, NOW) == right


def test_texts_contain_their_values_and_differ(hospital: World) -> None:
    library = drawn(hospital, 6, 12)
    assert library == drawn(hospital, 6, 12) != drawn(hospital, 7, 12)
    assert len({policy_document.text for policy_document in library.documents}) == 12
    for policy_document, resource in zip(library.documents, policy_resources(library, (LOANS,)), strict=True):
        assert (
            "\n".join(each.text or "" for each in ElementTree.fromstring(resource["text"]["div"]))
            == policy_document.text
        )
        assert "data" not in resource["content"][0]["attachment"]
        found = {rule.name: value for rule in LOANS.rules if (value := rule.find(policy_document.text)) is not None}
        assert found == policy_document.values
        assert policy_document.number in policy_document.text and 250 < len(policy_document.text) < 3_000


def test_a_value_that_begins_like_another_is_found() -> None:
    days = LOANS.rules[0]
    assert [days.find(days.with_value(value)) for value in days.values] == [*days.values]
    assert days.find("A book is lent for 9 days.") is None
    assert [LOANS.rules[2].find(sentence) for sentence in ("1. Please be quiet.", "Shout.")] == ["", None]


def test_prompts_name_the_subjects() -> None:
    assert "Loans of books (code loans), Parking (code parking)." in validity_rules((LOANS, FILLERS[1]))


def test_points_and_subjects_have_names_of_their_own() -> None:
    assert len({filler.code for filler in FILLERS}) == len(FILLERS) == len({filler.title for filler in FILLERS})
    for filler in FILLERS:
        sentences = [rule.with_value(rule.values[0]) for rule in filler.rules]
        assert [[rule.name for rule in filler.rules if rule.find(text) is not None] for text in sentences] == [
            [rule.name] for rule in filler.rules
        ]
