from __future__ import annotations

from typing import Any

import pytest

from fhir_gym.art_curation import sweep as sweep_module
from fhir_gym.art_curation.audit import audit_cases
from fhir_gym.art_curation.sweep import Setting, curve, prepare, shifts, windows
from fhir_gym.errors import FhirGymError, TaskError
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.action_reasoning.cases import ReasoningCase
from tests.evaluation.records import rollout as record


def test_settings_from_text() -> None:
    assert [str(window) for window in windows("12h, 24,36h,1.5h,12h")] == ["12h", "24h", "36h", "1.5h"]
    assert [str(shift) for shift in shifts("-10%,0%, +10%,2.5%")] == ["-10%", "0%", "+10%", "+2.5%"]
    assert shifts("-10%")[0].value == -0.1


@pytest.mark.parametrize("text", ["", "h", "-3h", "0h", "12d", "12h,,24h", "nan", "1e9h"])
def test_wrong_windows(text: str) -> None:
    with pytest.raises(FhirGymError, match="are not hours like 12h"):
        windows(text)


@pytest.mark.parametrize("text", ["", "%", "0.1", "-100%", "nan%", "inf%", "10%,,"])
def test_wrong_shifts(text: str) -> None:
    with pytest.raises(FhirGymError, match="are not percentages like"):
        shifts(text)


def test_tasks_under_settings(mini: World, cases: tuple[ReasoningCase, ...]) -> None:
    base = [case for case in cases if case.plan and case.plan.shift == 0]
    sweep = prepare(mini, base, [*windows("12h,24h,48h"), *shifts("-10%,0%,10%")])
    with_window = [case for case in base if case.plan and case.plan.window_hours is not None]
    conditional = [case for case in base if case.plan and case.plan.family == "conditional"]
    counts = {
        str(setting): sum(variant.setting == setting for variant in sweep.variants) + sweep.left_out[setting]
        for setting in sweep.settings
    }
    assert counts == dict.fromkeys(("12h", "24h", "48h"), len(with_window)) | dict.fromkeys(
        ("-10%", "0%", "+10%"), len(conditional)
    )
    assert len({case.id for case in sweep.cases}) == len(sweep.cases)
    same = [variant for variant in sweep.variants if str(variant.setting) in ("24h", "0%")]
    assert not any(variant.changed for variant in same)
    for name in ("12h", "48h", "-10%", "+10%"):
        assert 0 < sum(variant.changed for variant in sweep.variants if str(variant.setting) == name) < counts[name]
    assert sweep == prepare(mini, base, sweep.settings)


def test_varied_truths_are_right(mini: World, cases: tuple[ReasoningCase, ...]) -> None:
    """The audit confirms tasks with a changed time window or changed limits."""
    for setting in (*windows("12h,36h"), *shifts("-10%,15%")):
        sweep = prepare(mini, cases, [setting])
        assert audit_cases(sweep.cases, mini).dropped == ()


def test_settings_that_fit_nothing(mini: World, cases: tuple[ReasoningCase, ...]) -> None:
    conditional = [case for case in cases if case.plan and case.plan.family == "conditional"]
    with pytest.raises(TaskError, match=r"none of the .* tasks has a time window, so the setting 12h"):
        prepare(mini, conditional, windows("12h"))


def test_tasks_of_others_cannot_be_varied(mini: World, cases: tuple[ReasoningCase, ...]) -> None:
    with pytest.raises(TaskError, match="none of the 3 tasks has a fhir_gym specification"):
        prepare(mini, [case.model_copy(update={"plan": None}) for case in cases[:3]], windows("12h"))


def test_tasks_the_world_disagrees_with_are_refused(mini: World, cases: tuple[ReasoningCase, ...]) -> None:
    """The sweep must refuse another world; otherwise every task would count as changed or missing."""
    (case,) = [case for case in cases if case.plan and case.plan.window_hours is not None][:1]
    with pytest.raises(TaskError, match=rf"{case.id} and the world .* disagree"):
        prepare(mini, [case.model_copy(update={"sol": (-7,)})], windows("12h"))
    with pytest.raises(TaskError, match=rf"{case.id} does not fit the world"):
        prepare(mini, [case.model_copy(update={"eval_MRN": "S0"})], windows("12h"))


@pytest.mark.parametrize("changes", [{"window_hours": 1e300}, {"shift": 1e300}, {"as_of": "0001-01-01T00:00:00Z"}])
def test_absurd_plans(mini: World, cases: tuple[ReasoningCase, ...], changes: dict[str, Any]) -> None:
    (case,) = [case for case in cases if case.plan and case.plan.window_hours is not None][:1]
    assert case.plan
    with pytest.raises(TaskError, match=next(iter(changes))):
        prepare(mini, [case.model_copy(update={"plan": case.plan.model_copy(update=changes)})], windows("12h"))


def test_nothing_left(mini: World, cases: tuple[ReasoningCase, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(case: ReasoningCase, world: World, *, window_hours: float | None = None, **_: Any) -> ReasoningCase:
        if window_hours is None:
            return case
        raise TaskError("the mean lies on a rounding half")

    monkeypatch.setattr(sweep_module, "vary", refuse)
    with pytest.raises(TaskError, match="all tasks are ambiguous under 12h, 36h"):
        prepare(mini, cases, windows("12h,36h"))


def test_curve_counts_by_setting(mini: World, cases: tuple[ReasoningCase, ...]) -> None:
    sweep = prepare(mini, cases, windows("12h,24h"))
    done: list[Any] = []
    for n, variant in enumerate(sweep.variants):
        good = str(variant.setting) == "24h" or not variant.changed
        done.append(_done(variant.case.id, success=None if n == 0 else good))
    done.append(_done("stranger", success=True))
    at_12, at_24 = curve(sweep, done)
    assert at_12.setting == Setting("window", 12)
    assert at_24.success.value == 1
    assert at_24.on_changed.of == 0
    assert at_12.on_changed.count == 0
    assert at_12.on_changed.of > 0
    assert at_12.success.of == at_12.tasks - 1
    assert at_12.plain()["success"]["low"] < at_12.plain()["success"]["share"] < at_12.plain()["success"]["high"]
    assert len(at_12.row()) == len(at_12.columns)


def _done(key: str, *, success: bool | None) -> Any:
    made = record(success=success)
    return made.model_copy(update={"task": made.task.model_copy(update={"key": key})})
