from __future__ import annotations

import ast
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fhir_gym.art_curation import audit
from fhir_gym.art_curation.audit import Audited, AuditReport, audit_cases, for_review
from fhir_gym.errors import FhirGymError, TaskError
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.action_reasoning.cases import ReasoningCase
from fhir_gym.tasks.packs.action_reasoning.derivation import derive_truth, solution
from fhir_gym.tasks.packs.action_reasoning.generation import build_case, reworded, vary
from fhir_gym.tasks.packs.action_reasoning.phrasing import ENDINGS, PROMPTS
from fhir_gym.tasks.packs.action_reasoning.series import lab_chart
from tests.art_curation.conftest import NOW, Ward, patient, result
from tests.art_curation.corruptions import changed, spoilt
from tests.tasks.packs.action_reasoning.records import FIGURE_2


def kinds(report: AuditReport) -> set[str]:
    return {reason.kind for dropped in report.dropped for reason in dropped.reasons}


def texts(report: AuditReport) -> str:
    return "\n".join(reason.text for dropped in report.dropped for reason in dropped.reasons)


def test_generated_tasks_agree_with_the_second_derivation(
    report: AuditReport, cases: tuple[ReasoningCase, ...]
) -> None:
    assert report.dropped == ()
    assert report.cases == cases
    assert {case.plan.family for case in cases if case.plan} == {"retrieval", "aggregation", "conditional"}


def decides_nothing(name: str, case: ReasoningCase) -> bool:
    """Whether a corruption is harmless: it changes only the context length, or the text still states the fact."""
    fact = re.match(r"'(.+)' replaced by", name)
    said = {fact[1], *({"average", "mean"} if fact[1] == "mean" else ())} if fact else set()
    return "'length'" in name or any(phrase in case.instruction for phrase in said)


@pytest.mark.parametrize("compared", [True, False], ids=["with the template", "by facts alone"])
def test_every_corruption_is_caught(
    report: AuditReport, mini: World, monkeypatch: pytest.MonkeyPatch, compared: bool
) -> None:
    """The audit rejects a case after any change of its ground truth, answer or plan, and after removal of a fact.

    If the audit does not compare the text with the plan's template, it may keep a harmless corruption.
    """
    if not compared:
        monkeypatch.setattr(audit, "wording", lambda *given: (False, []))
    sampled = [audited.case for audited in report.kept][::10]
    assert {case.plan.scenario for case in sampled if case.plan} == set(PROMPTS)
    bad = [(name, case) for good in sampled for name, case in spoilt(good) if changed(case, good)]
    renamed = [case.model_copy(update={"id": f"{case.id}/{n}"}) for n, (_, case) in enumerate(bad)]
    audit_report = audit_cases(renamed, mini)
    kept = [audited.case.id for audited in audit_report.kept]
    # If cases are duplicates, the audit keeps only the first of them.
    kept += [
        dropped.case.id
        for dropped in audit_report.dropped
        if {reason.kind for reason in dropped.reasons} == {"duplicate"}
    ]
    missed = [bad[int(id.partition("/")[2])] for id in kept]
    assert len(bad) > 1500
    assert [name for name, case in missed if compared or not decides_nothing(name, case)] == []


def test_corruptions_get_the_right_reason(report: AuditReport, mini: World) -> None:
    good = next(
        audited.case for audited in report.kept if audited.case.plan and audited.case.plan.family == "conditional"
    )
    by_kind = {
        "disagrees": good.model_copy(update={"sol": (99, True)}),
        "text": good.model_copy(update={"context": good.context.replace("Lab code", "Code")}),
        "plan": good.model_copy(update={"plan": good.plan and good.plan.model_copy(update={"unit": "stone"})}),
    }
    for kind, bad in by_kind.items():
        assert kinds(audit_cases([bad], mini)) == {kind}


def test_duplicates_are_refused(report: AuditReport, mini: World) -> None:
    good = next(audited.case for audited in report.kept if audited.plan.family == "conditional")
    twice = audit_cases([good, good.model_copy(update={"id": "other"})], mini)
    assert twice.cases == (good,)
    assert twice.reasons() == {"duplicate": 1}
    assert [reason.text for reason in twice.dropped[0].reasons] == [
        f"{good.id} has the same text",
        f"{good.id} has the same question",
    ]
    phrased = reworded(good, (good.plan.phrasing + 1) % 4 if good.plan else 0, lab_chart(mini))
    other = audit_cases([good, phrased.model_copy(update={"id": "other"})], mini)
    assert [reason.text for reason in other.dropped[0].reasons] == [f"{good.id} has the same question"]
    same_id = audit_cases(
        [good, next(audited.case for audited in report.kept).model_copy(update={"id": good.id})], mini
    )
    assert [reason.text for reason in same_id.dropped[0].reasons] == [f"{good.id} has the same id"]


def test_results_exactly_at_the_ends_count(ward: Ward) -> None:
    world = ward(patient(), result(0, 4.1, delay=0), result(24, 4.5), result(24.01, 9), result(3, 4.0))
    kept = audit_cases([case_on(world, MEAN), case_on(world, PLAN).model_copy(update={"id": "two"})], world)
    assert [case.sol for case in kept.cases] == [(4.2,), (4.1,)]
    assert all("result at the edge" in {signal.name for signal in audited.signals} for audited in kept.kept)


def test_record_numbers_of_two_patients(ward: Ward) -> None:
    case = case_on(ward(patient(), result(3, 4.1)), PLAN)
    twin = patient("S2") | {"identifier": [{"value": "S1"}]}
    assert "belongs to S1, S2" in texts(audit_cases([case], ward(patient(), twin, result(3, 4.1))))
    assert "belongs to no patient" in texts(audit_cases([case], ward(patient("S3"), result(3, 4.1, owner="S3"))))


def test_another_phrasing_than_the_plans_shows(report: AuditReport, mini: World) -> None:
    """The audit reports a wrong phrasing number, although it does not change the ground truth."""
    for audited in report.kept[::20]:
        plan = audited.case.plan
        assert plan is not None
        other = plan.model_copy(update={"phrasing": (plan.phrasing + 1) % len(PROMPTS[plan.scenario])})
        again = audit_cases([audited.case.model_copy(update={"plan": other})], mini)
        assert all("reworded" in {signal.name for signal in kept.signals} for kept in again.kept)


PLAN = {"family": "retrieval", "scenario": "sparse", "lab": "K", "unit": "mmol/L", "digits": 1}
HIGH = PLAN | {"family": "conditional", "scenario": "general", "direction": "high", "order": "K high"}
MEAN = PLAN | {"family": "aggregation", "scenario": "window", "digits": 2, "window_hours": 24.0}


def case_on(world: World, plan: dict[str, Any], **more: Any) -> ReasoningCase:
    """A case with the derived ground truth or, if the derivation raises an error, with a plausible one."""
    from fhir_gym.tasks.packs.action_reasoning.cases import CaseSpec

    return build_case(
        CaseSpec.model_validate({"as_of": "2023-11-13T10:15:00Z", **plan, **more}), "S1", lab_chart(world), "one"
    )


def signal_names(report: AuditReport) -> set[str]:
    return {signal.name for signal in report.kept[0].signals}


def stale(case: ReasoningCase, world: World) -> AuditReport:
    """Audit a case on a world that was changed after the case was made."""
    return audit_cases([case], world)


def test_indistinguishable_ties_are_refused(ward: Ward) -> None:
    made_on = ward(patient(), result(3, 4.1), result(30, 4.4))
    tied = ward(patient(), result(3, 4.1), result(3, 4.3), result(30, 4.4))
    for plan in (PLAN, HIGH):
        report = stale(case_on(made_on, plan), tied)
        assert kinds(report) == {"ambiguous"}
        assert "do not say which counts" in texts(report)
    same = ward(patient(), result(3, 4.1), result(3, 4.1), result(30, 4.4))
    kept = audit_cases([case_on(same, PLAN)], same)
    assert signal_names(kept) == {"tie resolved"}


def test_later_issue_decides_a_tie(ward: Ward) -> None:
    world = ward(patient(), result(3, 4.1, delay=1), result(3, 9.9), result(30, 4.4))
    kept = audit_cases([case_on(world, PLAN)], world)
    assert kept.cases[0].sol == (4.1,)
    assert signal_names(kept) == {"tie resolved"}
    wrong = kept.cases[0].model_copy(update={"sol": (9.9,)})
    assert kinds(audit_cases([wrong], world)) == {"disagrees"}


@pytest.mark.parametrize(
    "newer",
    [
        result(2, 4000, unit="umol/L"),
        result(2, 4.9, effectiveDateTime="2023-11-13"),
        result(2, 4.9, effectiveDateTime="2023-11"),
        result(2, 4.9) | {"valueQuantity": {"value": 4.9, "unit": "mmol/L", "comparator": ">"}},
    ],
    ids=["another unit", "a day", "a month", "more than"],
)
def test_results_that_might_be_the_latest_are_refused(ward: Ward, newer: dict[str, Any]) -> None:
    case = case_on(ward(patient(), result(3, 4.1), result(30, 4.4)), PLAN)
    world = ward(patient(), result(3, 4.1), result(30, 4.4), newer)
    assert kinds(audit_cases([case], world)) == {"ambiguous"}


def test_withdrawn_results_do_not_count(ward: Ward) -> None:
    world = ward(
        patient(),
        result(3, 4.1),
        result(30, 4.4),
        result(2, 9.9, status="cancelled"),
        result(1, 8, status="entered-in-error"),
    )
    kept = audit_cases([case_on(world, PLAN)], world)
    assert kept.cases[0].sol == (4.1,)
    assert signal_names(kept) == {"void result nearby"}


def test_mean_on_a_rounding_half_is_refused(ward: Ward) -> None:
    clear = ward(patient(), result(1, 4.1), result(2, 4.2), result(3, 4.3), result(4, 4.4))
    case = case_on(clear, MEAN)
    assert case.sol == (4.25,)
    half = ward(patient(), *(result(n + 1, value) for n, value in enumerate((4.0, 4.0, 4.0, 4.1))))
    rounded = case.model_copy(update={"sol": (4.03,)})
    report = audit_cases([rounded], half)
    assert "between two roundings" in texts(report)
    near = ward(patient(), *(result(n + 1, value) for n, value in enumerate((4.0, 4.0, 4.1))))
    assert audit_cases([case_on(near, MEAN)], near).cases[0].sol == (4.03,)


def test_decimals_are_exact(ward: Ward) -> None:
    """The binary float nearest to 2.675 is less than 2.675."""
    values = (2.6, 2.7, 2.6, 2.7, 2.7, 2.7, 2.7, 2.7)  # 2.675
    world = ward(patient(), *(result(n + 1, value) for n, value in enumerate(values)))
    other = ward(patient(), *(result(n + 1, 2.7) for n in range(8)))
    case = case_on(other, MEAN).model_copy(update={"sol": (2.68,)})
    assert "between two roundings" in texts(audit_cases([case], world))


@pytest.mark.parametrize("rule", ["limit", "edge", "tie", "void", "later", "half"])
def test_rules_that_decide_have_to_be_stated(ward: Ward, monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    """The audit keeps a task if its text states the rule, and rejects the task if the text omits the rule."""
    worlds_of = {
        "limit": (ward(patient(), result(3, 5.5), result(30, 4.4)), HIGH),
        "edge": (ward(patient(), result(24, 4.1), result(3, 4.2), result(4, 4.4)), MEAN),
        "tie": (ward(patient(), result(3, 4.1), result(3, 4.2, delay=1)), PLAN),
        "void": (ward(patient(), result(3, 4.1), result(2, 4.2, status="cancelled")), PLAN),
        "later": (ward(patient(), result(3, 4.1), result(30, 4.2)), PLAN | {"as_of": "2023-11-13T06:00:00Z"}),
        "half": (ward(patient(), result(1, 4.1), result(3, 4.2), result(4, 4.4)), MEAN),
    }
    world, plan = worlds_of[rule]
    case = case_on(world, plan)
    assert audit_cases([case], world).cases == (case,)
    pattern = audit._RULES[rule]
    silent = {family: pattern.sub("", text) for family, text in ENDINGS.items()}
    monkeypatch.setattr(audit, "ENDINGS", silent)
    if rule == "half":  # the context states this rule, and a context must equal its template
        monkeypatch.setattr(audit, "context", lambda *given: pattern.sub("", case.context))
        case = case.model_copy(update={"context": pattern.sub("", case.context)})
    assert kinds(audit_cases([case], world)) == {"ambiguous"}


def test_value_exactly_on_a_limit_is_inside(ward: Ward) -> None:
    world = ward(patient(), result(3, 5.5), result(30, 4.4))
    kept = audit_cases([case_on(world, HIGH)], world)
    assert kept.cases[0].sol == (5.5, False)
    assert "value at a limit" in signal_names(kept)
    due = kept.cases[0].model_copy(update={"sol": (5.5, True)})
    assert kinds(audit_cases([due], world)) == {"disagrees"}


def test_range_of_sex_and_age(ward: Ward) -> None:
    plan = PLAN | {"family": "conditional", "scenario": "demographic", "lab": "HGB", "unit": "g/dL"}
    plan |= {"direction": "low", "order": "HGB low"}
    hgb = result(3, 13.0, lab="HGB", unit="g/dL")
    woman, man = ward(patient(), hgb), ward(patient(gender="male"), hgb)
    for world, sol in ((woman, (13, False)), (man, (13, True))):
        assert audit_cases([case_on(world, plan)], world).cases[0].sol == sol
    assert kinds(audit_cases([case_on(woman, plan)], man)) == {"disagrees"}
    unknown = ward(patient(gender=None), hgb)
    assert "0 ranges of HGB" in texts(audit_cases([case_on(woman, plan)], unknown))
    unborn = ward(patient(birth="1960"), hgb)
    assert "0 ranges of HGB" in texts(audit_cases([case_on(woman, plan)], unborn))


def test_birthday_decides_the_age(ward: Ward) -> None:
    for birth, age in (("1960-11-13", 63), ("1960-11-14", 62), ("1960-11-12", 63), ("2000-02-29", 23)):
        world = ward(patient(birth=birth), result(3, 4.1))
        case = case_on(world, PLAN)
        assert case.ground_truth.patient_age == age
        assert audit_cases([case], world).cases == (case,)


def test_nothing_counts(ward: Ward) -> None:
    world = ward(patient(), result(3, 4.1, status="cancelled"))
    kept = audit_cases([case_on(world, PLAN), case_on(world, HIGH).model_copy(update={"id": "two"})], world)
    assert [case.sol for case in kept.cases] == [(-1,), (-1, False)]
    assert {"nothing counts", "void result nearby"} <= signal_names(kept)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("patient S1 (36-year-old woman)", "63 years old"),
        ("patient S1 (63-year-old man)", "is female"),
        ("elderly patient S1 (not on S2's ward)", "another patient"),
    ],
)
def test_untruths_about_the_patient(ward: Ward, said: str, told: str) -> None:
    world = ward(patient(birth="1960-01-01"), patient("S2"), result(3, 4.1))
    case = case_on(world, PLAN)
    spoken = case.model_copy(update={"instruction": case.instruction.replace("patient S1", said)})
    assert told in texts(audit_cases([spoken], world))


def test_an_export_folder_gives_the_same_as_the_world(
    mini: World, cases: tuple[ReasoningCase, ...], tmp_path: Any
) -> None:
    few = cases[::10]
    for kind in ("Patient", "Observation"):
        (tmp_path / f"{kind}.ndjson").write_bytes(b"\n".join(mini.resources(kind)) + b"\n")
    from_folder = audit_cases(few, tmp_path, now=mini.now)
    assert from_folder.plain() == audit_cases(few, mini).plain()
    with pytest.raises(FhirGymError, match="argument now is required"):
        audit_cases(few, tmp_path)


def test_varied_cases_are_audited_too(report: AuditReport, mini: World) -> None:
    moved: list[ReasoningCase] = []
    for audited in report.kept[::4]:
        plan = audited.case.plan
        assert plan is not None
        change = {"shift": -0.1} if plan.family == "conditional" else {"window_hours": 36.0}
        if plan.family != "conditional" and plan.window_hours is None:
            continue
        with suppress(TaskError):  # the mean over another window may be halfway between two roundings
            moved.append(vary(audited.case, mini, **change))
    assert len(moved) > 25
    assert audit_cases(moved, mini).dropped == ()


def test_confidence_is_one_less_the_weights(report: AuditReport) -> None:
    for audited in report.kept:
        assert audited.confidence == pytest.approx(max(0, 1 - sum(signal.weight for signal in audited.signals)))
        assert audited.doubtful == (audited.confidence <= 0.6)
    assert 0 < len(report.doubtful) < len(report.kept) / 4


def test_review_takes_the_doubtful_and_a_balanced_sample(report: AuditReport) -> None:
    picked = for_review(report, sample=40)
    whys = [why for _, why in picked]
    assert whys.count("sample") == 40
    assert {audited.case.id for audited, why in picked if why == "doubtful"} == {
        audited.case.id for audited in report.doubtful
    }
    strata = {audited.stratum for audited in report.kept if not audited.doubtful}
    assert {audited.stratum for audited, why in picked if why == "sample"} == strata
    assert picked == for_review(report, sample=40)
    assert picked != for_review(report, sample=40, seed=1)
    everything = for_review(report, sample=10_000)
    assert len(everything) == len(report.kept)
    assert [audited.case.id for audited, _ in everything] == [audited.case.id for audited in report.kept]


def test_audit_is_deterministic(mini: World, cases: tuple[ReasoningCase, ...], report: AuditReport) -> None:
    assert audit_cases(cases, mini).plain() == report.plain()


def test_truth_helper_agrees(mini: World, cases: tuple[ReasoningCase, ...]) -> None:
    """The audit and the package's own derivation agree on unchanged cases."""
    for case in cases[::17]:
        assert case.plan is not None
        assert solution(case.plan, derive_truth(case.plan, case.eval_MRN, lab_chart(mini)).ground) == case.sol
    assert mini.now == NOW
    assert isinstance(audit_cases(cases[:1], mini).kept[0], Audited)


def test_the_papers_example(ward: Ward) -> None:
    """The case of the paper's figure 2, on a world that contains its patient."""
    taken: dict[str, Any] = {"effectiveDateTime": "2023-11-13T01:18:00+00:00", "issued": "2023-11-13T02:00:00+00:00"}
    mg = result(9, 1.8, lab="MG", unit="mg/dL", owner="S6227720", **taken)
    world = ward(
        patient("S6227720", "male", "1956-08-01"), mg, result(60, 1.2, lab="MG", unit="mg/dL", owner="S6227720")
    )
    example = ReasoningCase.model_validate(FIGURE_2)
    kept = audit_cases([example], world)
    assert kept.cases == (example,)
    assert {"made by others", "value next to a limit"} <= signal_names(kept)
    for name, wrong in (
        ("value", 1.2),
        ("timestamp", "2023-11-10T22:15:00Z"),
        ("patient_age", 66),
        ("patient_gender", "female"),
        ("threshold_low", 1.9),
        ("threshold_high", 1.75),
        ("is_low", True),
        ("is_high", True),
        ("should_order", True),
    ):
        spoilt = example.model_copy(update={"ground_truth": example.ground_truth.model_copy(update={name: wrong})})
        assert kinds(audit_cases([spoilt], world)) <= {"disagrees", "plan"}, name
        assert audit_cases([spoilt], world).kept == (), name
    vague = example.model_copy(update={"context": "", "instruction": "Review patient S6227720."})
    assert kinds(audit_cases([vague], world)) == {"plan"}


def test_a_mean_of_others(ward: Ward) -> None:
    """A case may set its own number of decimals and may state only some of the patient's data."""
    world = ward(patient(), *(result(n + 1, value) for n, value in enumerate((4.1, 4.2, 4.4))))
    plain = {
        "id": "aggregation_1",
        "instruction": "What is the average potassium of patient S1 over the last 24 hours?",
        "context": "Lab code: K.",
        "sol": [4.2],
        "eval_MRN": "S1",
        "ground_truth": {"value": 4.2},
    }
    case = ReasoningCase.model_validate(plain)
    assert audit_cases([case], world).cases == (case,)
    wrong = ReasoningCase.model_validate(plain | {"sol": [4.3], "ground_truth": {"value": 4.3}})
    assert kinds(audit_cases([wrong], world)) == {"disagrees"}
    elsewhere = ReasoningCase.model_validate(plain | {"eval_MRN": "S2"})
    assert kinds(audit_cases([elsewhere], world)) == {"disagrees"}


def test_the_second_derivation_shares_no_code_with_the_first() -> None:
    """The audit imports only tables and texts of the task pack, not its code for look-ups and calculations."""
    makers = {
        "series",
        "mining",
        "derivation",
        "generation",
        "picking",
        "pitfalls",
        "answer_sources",
        "params",
        "reasoning_task",
    }
    allowed = {"audit": {"series": {"PatientSummary"}}}  # the templates need name, sex and age
    for module in ("exported", "rederivation", "examination", "confidence", "audit"):
        tree = ast.parse((Path(audit.__file__).parent / f"{module}.py").read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and "action_reasoning" in (node.module or ""):
                source, names = str(node.module).rpartition(".")[2], {name.name for name in node.names}
                assert source not in makers or names <= allowed.get(module, {}).get(source, set()), (module, source)
                if source == "ranges":
                    assert names <= {"LABS", "RANGES", "ReferenceRange"}, module


@pytest.mark.parametrize(
    "changes",
    [
        {"window_hours": 1e300},
        {"window_hours": 8785.0},
        {"shift": 1e300},
        {"shift": -1.0},
        {"as_of": "0001-01-01T00:00:00Z"},
        {"as_of": "0001-01-01T00:00:00+14:00"},
    ],
    ids=str,
)
def test_absurd_numbers_are_refused(mini: World, cases: tuple[ReasoningCase, ...], changes: dict[str, Any]) -> None:
    case = next(case for case in cases if case.plan and case.plan.family == "conditional")
    assert case.plan
    spoilt_case = case.model_copy(update={"plan": case.plan.model_copy(update=changes)})
    assert kinds(audit_cases([spoilt_case], mini)) == {"plan"}
    derive_truth = case.ground_truth.model_copy(update={"timestamp": "0001-01-01T00:00:00+14:00"})
    assert kinds(audit_cases([case.model_copy(update={"ground_truth": derive_truth})], mini)) == {"disagrees"}
