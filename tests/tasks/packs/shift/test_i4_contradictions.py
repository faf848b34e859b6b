from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fhir_gym import Episode
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.shift.i4_contradictions.kind import ContradictionContent, ContradictionRequest, agrees
from fhir_gym.tasks.packs.shift.i4_contradictions.scene import history_resource, parse_history
from fhir_gym.tasks.packs.shift.lookups import Named
from fhir_gym.tasks.packs.shift.outcomes import NO_SUCH_PATIENT, NOTHING_WRONG, SEVERAL_PATIENTS
from tests.tasks.packs.shift.playing import after_lookups, failed, names_of_checks, opened, params_of


def requests_of(episode: Episode) -> tuple[ContradictionRequest, ...]:
    return params_of(episode).requests


UNREAD: dict[str, Callable[[str], str]] = {
    "patients only": lambda url: url if url.startswith("/Patient") else "/metadata",
    "ids only": lambda url: url if url.startswith("/Patient") else f"{url}&_elements=id",
    "two records of a type": lambda url: url.replace("_count=200", "_count=2"),
}


def deciding_elements(url: str) -> str:
    elements = "status,verificationStatus,code,period,effective,performed,onset,encounter"
    return url if url.startswith("/Patient") else f"{url}&_elements={elements}"


@pytest.mark.slow
@pytest.mark.parametrize("unread", UNREAD)
def test_an_answer_needs_the_records(hospital: World, unread: str) -> None:
    with opened(hospital, "I4-2", 1) as episode:
        declined = (NO_SUCH_PATIENT, SEVERAL_PATIENTS)
        answers = {*names_of_checks(request.outcome not in declined for request in requests_of(episode))}
        assert any(request.outcome == NOTHING_WRONG for request in requests_of(episode))
        assert after_lookups(episode, lambda url: url).reward == 1
        assert after_lookups(episode, deciding_elements).reward == 1
        found = {*failed(after_lookups(episode, UNREAD[unread]))}
        # The wrong records may be among the first two.
        assert found and found <= answers if unread == "two records of a type" else found == answers


def test_records_are_read_as_they_are_written(hospital: World) -> None:
    with opened(hospital, "I4-1") as episode:
        for record in params_of(episode).scene.records:
            assert parse_history(history_resource(record)) == record.model_copy(update={"value": 0})


@pytest.mark.parametrize(
    ("measure", "outcome", "answer", "right"),
    [
        ("number", "3", "3", True),
        ("number", "3", "3 records", True),
        ("number", "3", NOTHING_WRONG, False),
        ("number", NOTHING_WRONG, NOTHING_WRONG, True),
        ("number", NOTHING_WRONG, "0", False),
        ("ids", "OBS12, PRC0-3", "prc0-3, obs12", True),
        ("ids", "OBS12, PRC0-3", "procedure/prc0-3; observation/obs12", True),
        ("ids", "OBS12, PRC0-3", "obs12 and prc0-3", True),
        ("ids", "bC, Ab", "ab, bc", True),
        ("ids", "OBS12, PRC0-3", "obs12", False),
        ("ids", "OBS12", "obs12, obs12", False),
        ("ids", "OBS12", "", False),
    ],
)
def test_answers(measure: str, outcome: str, answer: str, right: bool) -> None:
    who = Named(given="Ana", family="Diaz", birth_date="1980-01-01")
    ask: Any = ContradictionContent.model_validate({"patient": who, "measure": measure})
    assert agrees(ask, outcome, answer) is right
