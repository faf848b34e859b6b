"""An episode with one error gets the label, step and expected value of that error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fhir_gym import Episode
from fhir_gym.actions import Finish, Post
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, Diagnosis, Verdict
from fhir_gym.tasks.core.dates import instant
from fhir_gym.tasks.packs.action_reasoning import ENV_ID
from fhir_gym.tasks.packs.action_reasoning.cases import ERRORS, CaseSpec, Direction, Family
from fhir_gym.tasks.packs.action_reasoning.file_task import write_cases
from fhir_gym.tasks.packs.action_reasoning.generation import build_case
from fhir_gym.tasks.packs.action_reasoning.orders import ORDERS
from fhir_gym.tasks.packs.action_reasoning.ranges import DEMOGRAPHIC, LABS
from fhir_gym.tasks.packs.action_reasoning.series import lab_chart
from fhir_gym.tasks.packs.action_reasoning.steps import FLAG, STEP_OF, VALUE
from fhir_gym.types import Json, Resource
from tests.tasks.packs.action_reasoning.records import NOW, ago, result, world_of

LOOK = "GET /Observation?patient=S1&code=K&_count=200"
DAY = f"{LOOK}&date=ge{instant(ago(hours=24))}"
PATIENT = "GET /Patient/S1"
HGB = "GET /Observation?patient=S1&code=HGB"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    potassium = {0.5: 3.6, 3: 4.13, 9: 4.9, 24: 3.4, 24.5: 7.1, 60: 8.9}
    with world_of(
        (result(f"K{hours:g}", ago(hours=hours), value, issued=timedelta()) for hours, value in potassium.items()),
        result("V", ago(hours=0.25), 9.7, status="cancelled"),
        result("N", ago(hours=1), 141, lab="NA"),
        result("O", ago(hours=1), 5.9, owner="S2"),
        result("H", ago(hours=5), 13.0, lab="HGB"),
        result("M", ago(hours=30), 1.4, lab="MG"),
        result("G", ago(hours=2), 99, lab="GLU"),
        result("C", ago(hours=2), 97, lab="CL"),
    ) as small:
        yield small


class Asked:
    """Perform one case on a world, and grade the answer."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world, self.folder = world, folder

    def __call__(
        self,
        family: Family,
        *texts: str,
        lab: str = "K",
        hours: float | None = 24,
        as_of: datetime = NOW,
        direction: Direction = "low",
    ) -> Verdict:
        conditional = family == "conditional"
        scenario: Any = "demographic" if lab in DEMOGRAPHIC else "general"
        plan = CaseSpec(
            family=family,
            scenario=scenario if conditional else "window" if family == "aggregation" else "edge",
            lab=lab,
            unit=LABS[lab].unit,
            as_of=instant(as_of),
            window_hours=None if conditional else hours,
            digits=LABS[lab].digits + (family == "aggregation"),
            direction=direction if conditional else None,
            order=f"{lab} {direction}" if conditional else None,
        )
        path = self.folder / "case.json"
        write_cases(path, [build_case(plan, "S1", lab_chart(self.world), "case")])
        with Episode(ENV_ID, task="case", world=self.world, task_file=path) as episode:
            episode.start()
            for text in texts:
                if not episode.step(text).done:
                    continue
                return episode.verdict()
            episode.truncate()
            return episode.verdict()


@pytest.fixture
def ask(world: World, tmp_path: Path) -> Asked:
    return Asked(world, tmp_path)


def finish(*answer: Json) -> str:
    return Finish(list(answer)).text()


def order(key: str, **changes: Json) -> str:
    body: Resource = ORDERS[key].body("S1", instant(NOW)) | changes
    return Post(f"/{ORDERS[key].resource_type}", body).text()


def diagnosis(verdict: Verdict) -> Diagnosis:
    assert verdict.diagnosis is not None
    assert (verdict.diagnosis.error is None) == verdict.success
    return verdict.diagnosis


def culprit(verdict: Verdict, label: str) -> Check:
    found = diagnosis(verdict)
    assert found.error == label, verdict.explanation
    step = found.culprit
    assert step is not None and step.name == STEP_OF[found.error]
    assert f"Error: {label}" in verdict.explanation
    return step


def names(verdict: Verdict) -> dict[str, bool]:
    return {step.name: step.passed for step in diagnosis(verdict).steps}


def test_every_error_has_its_step() -> None:
    assert set(STEP_OF) == set(ERRORS)


def test_a_success_passes_every_step(ask: Asked) -> None:
    query = ask("retrieval", DAY, finish(3.6))
    assert query.success and list(names(query)) == ["format", "retrieval", "value", "window", "action"]
    mean = ask("aggregation", DAY, finish(4.01))
    assert mean.success and list(names(mean))[2:-1] == ["value", "window", "inclusion", "arithmetic"]
    due = ask("conditional", f"{LOOK}&code=K", order("K high"), finish(3.6, True), direction="high")
    assert not due.success
    judged = ask("conditional", PATIENT, HGB, finish(13.0, False), lab="HGB")
    assert judged.success and list(names(judged))[-3:] == ["range", "boundary", "action"]
    assert all(all(names(verdict).values()) for verdict in (query, mean, judged))


@pytest.mark.parametrize("answer", ["3.6 mmol/L", "The potassium is 3.6.", None, True, [3.6]])
def test_format(ask: Asked, answer: Json) -> None:
    verdict = ask("retrieval", DAY, finish(answer))
    culprit(verdict, "format")
    assert names(verdict) == {"format": False, "retrieval": True, "action": True}, "what cannot be judged is left out"


def test_giving_up_is_a_matter_of_format(ask: Asked) -> None:
    assert "without FINISH" in str(culprit(ask("retrieval", DAY, "GET /Patient/S1"), "format").actual)
    culprit(ask("conditional", LOOK, finish(3.6)), "format")


def test_missing_retrieval(ask: Asked) -> None:
    culprit(ask("retrieval", finish(-1)), "missing retrieval")
    culprit(ask("retrieval", finish(3.6)), "missing retrieval")
    culprit(ask("retrieval", "GET /Observation?patient=S1&code=potassium", finish(-1)), "missing retrieval")
    culprit(ask("retrieval", DAY, finish(-1)), "missing retrieval")
    culprit(ask("retrieval", f"{LOOK}&status=amended", finish(-1)), "missing retrieval")
    culprit(ask("retrieval", f"{LOOK}&status=amended", finish(-1), hours=0.2), "missing retrieval")
    oldest = DAY.replace("200", "1") + "&_sort=date"
    culprit(ask("retrieval", oldest, finish(-1)), "missing retrieval")
    magnesium = LOOK.replace("=K", "=MG")
    culprit(ask("retrieval", magnesium, finish(-1), lab="MG", hours=36), "missing retrieval")
    unseen = ask("conditional", order("MG low"), finish(1.4, False), lab="MG")
    culprit(unseen, "missing retrieval")
    guessed = ask("conditional", order("GLU high"), finish(99, True), lab="GLU", direction="high")
    culprit(guessed, "missing retrieval")
    step = culprit(ask("retrieval", finish(-1), hours=0.2), "missing retrieval")
    assert "no request would have shown the record" in str(step.actual)


def test_a_value_without_a_source_is_hallucinated(ask: Asked) -> None:
    culprit(ask("retrieval", finish(4.13)), "hallucinated value")
    culprit(ask("retrieval", DAY, finish(6.66)), "hallucinated value")
    culprit(ask("aggregation", DAY, finish(6.66)), "hallucinated value")


def test_incorrect_value_retrieved(ask: Asked) -> None:
    older = culprit(ask("retrieval", DAY, finish(4.13)), "incorrect value retrieved")
    assert older.expected == 3.6 and "the result of 2023-11-13T07:15:00" in str(older.actual)
    assert "withdrawn" in str(culprit(ask("retrieval", LOOK, finish(9.7)), "incorrect value retrieved").actual)
    other = culprit(ask("retrieval", DAY, "GET /Observation/N", finish(141)), "incorrect value retrieved")
    assert "NA results of Patient/S1" in str(other.actual)
    other = culprit(ask("retrieval", "GET /Observation?code=K&patient=S2", finish(5.9)), "incorrect value retrieved")
    assert "K results of Patient/S2" in str(other.actual)


def test_window_boundary(ask: Asked) -> None:
    later = culprit(ask("retrieval", LOOK, finish(3.6), as_of=ago(hours=2)), "window boundary")
    assert later.expected == 4.13 and "what came after it" in str(later.actual)
    culprit(ask("retrieval", LOOK, finish(1.4), lab="MG"), "hallucinated value")
    culprit(ask("retrieval", LOOK.replace("=K", "=MG"), finish(1.4), lab="MG"), "window boundary")
    culprit(ask("aggregation", LOOK, finish(5.34)), "window boundary")
    half = f"{LOOK}&date=ge{instant(ago(hours=12))}"
    culprit(ask("aggregation", half, finish(4.21)), "window boundary")
    few = f"{LOOK}&date=ge{instant(ago(hours=4))}"
    assert "another span" in str(culprit(ask("aggregation", few, finish(3.865)), "window boundary").actual)
    without_end = f"{LOOK}&date=gt{instant(ago(hours=24))}"
    assert "without its beginning" in str(culprit(ask("aggregation", without_end, finish(4.21)), "window boundary"))


def test_minus_one_from_a_too_small_window(ask: Asked) -> None:
    at_the_end = ask("retrieval", LOOK, finish(-1), as_of=ago(hours=24), hours=0.1)
    assert "nothing lies in the window without its end" in str(culprit(at_the_end, "window boundary").actual)
    half_an_hour = f"{LOOK}&date=ge{instant(ago(hours=0.1))}"
    culprit(ask("retrieval", half_an_hour, finish(-1), hours=1), "window boundary")


def test_none_is_right_but_the_search_was_for_another_time(ask: Asked) -> None:
    narrow = f"{LOOK}&date=ge{instant(ago(hours=0.01))}"
    culprit(ask("retrieval", narrow, finish(-1), hours=0.2), "window boundary")


def test_incomplete_inclusion(ask: Asked) -> None:
    left_out = culprit(ask("aggregation", DAY, finish(3.71)), "incomplete inclusion")
    assert "without 2023-11-13T01:15" in str(left_out.actual)
    page = ask("aggregation", DAY.replace("200", "3") + "&_sort=-date", finish(3.865))
    culprit(page, "incomplete inclusion")
    assert names(page)["retrieval"] is False and "arithmetic" not in names(page)
    culprit(ask("aggregation", DAY, finish(3.6)), "incomplete inclusion")


def test_a_right_mean_of_which_not_all_was_read(ask: Asked) -> None:
    culprit(ask("aggregation", "GET /Observation/K3", finish(4.01)), "incomplete inclusion")
    culprit(ask("aggregation", finish(4.01)), "missing retrieval")


def test_arithmetic(ask: Asked) -> None:
    assert "sum" in str(culprit(ask("aggregation", DAY, finish(16.03)), "arithmetic").actual)
    culprit(ask("aggregation", DAY, finish(4.0)), "arithmetic")
    culprit(ask("aggregation", DAY, finish(4.37)), "arithmetic")
    culprit(ask("retrieval", DAY, finish(4)), "arithmetic")


def test_boundary_misclassification(ask: Asked) -> None:
    verdict = ask(
        "conditional", LOOK.replace("=K", "=GLU"), order("GLU high"), finish(99, True), lab="GLU", direction="high"
    )
    step = culprit(verdict, "boundary misclassification")
    assert "70 to 99 mg/dL" in str(step.expected) and "99 at the limit" in str(step.actual)
    culprit(ask("conditional", LOOK.replace("=K", "=CL"), finish(97, False), lab="CL"), "boundary misclassification")


def test_context_insensitive_range_names_the_row(ask: Asked) -> None:
    verdict = ask("conditional", PATIENT, HGB, order("HGB low"), finish(13.0, True), lab="HGB")
    step = culprit(verdict, "context-insensitive range")
    assert "women aged 18 or older: 12.2 to 16.0" in str(step.expected)
    assert "men aged 18 to 59: 13.7 to 17.5" in str(step.actual)
    assert names(verdict)["value"] and "boundary" not in names(verdict)
    unseen = ask("conditional", HGB, order("HGB low"), finish(13.0, True), lab="HGB")
    culprit(unseen, "context-insensitive range")


def test_a_wrong_flag_after_the_right_action_is_no_range_error(ask: Asked) -> None:
    step = culprit(ask("conditional", PATIENT, HGB, finish(13.0, True), lab="HGB"), "wrong action")
    assert (step.expected, step.actual) == ("order due: False", "order due: True")
    look = LOOK.replace("=K", "=GLU")
    culprit(ask("conditional", look, finish(99, True), lab="GLU", direction="high"), "wrong action")


def test_a_right_decision_without_the_patient(ask: Asked) -> None:
    step = culprit(ask("conditional", HGB, finish(13.0, False), lab="HGB"), "missing retrieval")
    assert "Patient/S1" in str(step.actual)


def test_wrong_action(ask: Asked) -> None:
    look = LOOK.replace("=K", "=MG")
    assert ask("conditional", look, order("MG low"), finish(1.4, True), lab="MG").success
    for texts in (
        (finish(1.4, True),),
        (order("MG low"), order("MG low"), finish(1.4, True)),
        (order("MG low", subject={"reference": "Patient/S2"}), finish(1.4, True)),
        (order("MG high"), finish(1.4, True)),
        (order("MG low", status="draft"), finish(1.4, True)),
        (finish(1.4, False),),
    ):
        culprit(ask("conditional", look, *texts, lab="MG"), "wrong action")
    unasked = culprit(ask("retrieval", DAY, order("K low"), finish(3.6)), "wrong action")
    assert "nothing else changed" in str(unasked.actual)


def test_a_wrong_value_takes_precedence_over_its_consequences(ask: Asked) -> None:
    verdict = ask("conditional", LOOK, order("K high"), finish(9.7, True), direction="high")
    culprit(verdict, "incorrect value retrieved")
    assert "range" not in names(verdict) and names(verdict)["action"] is False


def test_checks_are_found_by_their_names(ask: Asked) -> None:
    verdict = ask("conditional", LOOK, finish(3.6, False))
    assert {VALUE, FLAG} <= {check.name for check in verdict.checks}


def test_cases_that_others_made(world: World, tmp_path: Path) -> None:
    case: dict[str, Json] = {
        "id": "taskthreshold_1",
        "instruction": "Review most recent magnesium value for patient S1. Order IV replacement if clinically low.",
        "context": "Lab code: MG.",
        "sol": [1.4, True],
        "eval_MRN": "S1",
        "ground_truth": {
            "value": 1.4,
            "timestamp": instant(ago(hours=30)),
            "patient_age": 52,
            "patient_gender": "female",
            "threshold_low": 1.5,
            "threshold_high": None,
            "is_low": True,
            "is_high": False,
            "should_order": True,
        },
    }
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps([case]))
    with Episode(ENV_ID, task="taskthreshold_1", world=world, task_file=path) as episode:
        for answer, label in (((1.4, False), "boundary misclassification"), ((2.2, False), "hallucinated value")):
            episode.start()
            episode.step(LOOK.replace("=K", "=MG"))
            episode.step(finish(*answer))
            step = culprit(episode.verdict(), label)
    assert step.expected == 1.4
