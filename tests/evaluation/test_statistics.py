from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fhir_gym.agents import Usage
from fhir_gym.evaluation import EpisodeMetrics, Report, RunStatistics, read_runs, sections
from fhir_gym.evaluation.report import paired_difference
from fhir_gym.rollouts import Prices, Rollout, write_rollouts
from tests.evaluation.records import rollout, study, used
from tests.evaluation.test_intervals import fitted


def statistics(rollouts: Sequence[Rollout], prices: Prices | None = None) -> RunStatistics:
    return RunStatistics.of([*map(EpisodeMetrics.of, rollouts)], prices=prices)


def test_success_has_an_interval_and_a_deviation_over_repeats() -> None:
    given = study()
    rate = statistics(given).success
    outcomes = {
        task: [float(bool(rollout.success)) for rollout in given if rollout.task.key == task] for task in ("01", "02a")
    }
    mean, _, low, high, _ = fitted([*outcomes.values()])
    assert (rate.count, rate.of, rate.clusters, rate.method) == (5, 8, 2, "clustered")
    assert rate.value == pytest.approx(mean, abs=1e-9)
    assert (rate.low, rate.high) == pytest.approx((max(0, low), min(1, high)), abs=1e-9)
    shares = [np.mean([bool(rollout.success) for rollout in given if rollout.repeat == repeat]) for repeat in (0, 1)]
    assert rate.by_repeat == pytest.approx(shares)
    assert rate.sd == pytest.approx(np.std(shares, ddof=1), abs=1e-9)


def test_without_repeats_there_is_no_deviation() -> None:
    run_statistics = statistics([rollout("01", 0), rollout("01", 1, False)])
    assert run_statistics.success.sd is None and run_statistics.success.method == "wilson"
    assert run_statistics.variance is not None and run_statistics.variance.exact.within_task == 2500


def test_tasks_of_one_title_are_one_cluster() -> None:
    episodes = [EpisodeMetrics.of(rollout("01", 0)), EpisodeMetrics.of(rollout("01", 0, False))]
    renamed = [episode.task.model_copy(update={"key": f"task1_{n}"}) for n, episode in enumerate(episodes)]
    assert {(episode.env_id, task.title) for episode, task in zip(episodes, renamed, strict=True)} == {
        episodes[0].cluster
    }


def test_failed_calls_by_tool_and_resource_type() -> None:
    run_statistics = statistics(study())
    assert [(tool_error.name, tool_error.errors, tool_error.calls) for tool_error in run_statistics.tool_errors] == [
        ("create", 4, 4),
        ("search", 0, 16),
    ]
    assert [
        (resource_error.name, resource_error.errors, resource_error.calls)
        for resource_error in run_statistics.resource_errors
    ] == [("Patient", 4, 20)]
    assert run_statistics.resource_errors[0].value == 0.2


def test_calls_by_outcome() -> None:
    outcome = statistics(study()).tool_calls
    assert sorted((*outcome.success.values, *outcome.failure.values)) == [2, 2, 2, 2, 3, 3, 3, 3]
    assert sum(outcome.errors_success.values) + sum(outcome.errors_failure.values) == 4
    assert outcome.expected.values == pytest.approx((1, 1, 1, 1, 1))
    assert outcome.expected_unknown == 0


def test_calls_without_a_reference_are_unknown() -> None:
    run_statistics = statistics([rollout("01", 0, usage=Usage(prompt=5, completion=1))])
    assert run_statistics.tool_calls.expected.n == 0 and run_statistics.tool_calls.expected_unknown == 1
    assert [name for name, _ in run_statistics.tokens.by_expected] == ["unknown"]


def test_tokens_by_group() -> None:
    tokens = statistics(study()).tokens
    assert tokens.total.n == 8 and tokens.total.min == 1050 and tokens.total.max == 1750
    groups = (tokens.by_difficulty, tokens.by_success, tokens.by_light, tokens.by_expected)
    assert [[(name, values.n) for name, values in group] for group in groups] == [
        [("easy", 4), ("medium", 4)],
        [("success", 5), ("failure", 3)],
        [("light success", 5), ("light failure", 3)],
        [("1", 8)],
    ]
    assert statistics([rollout()]).tokens.total.n == 0


def test_cost_includes_episodes_without_a_verdict() -> None:
    usage = Usage(prompt=1_000_000, completion=100_000)
    given = [rollout("01", 0, usage=usage), rollout("01", 1, None, usage=usage), rollout("02a")]
    cost = statistics(given, Prices(2.0, 10.0)).cost
    assert cost is not None
    assert (cost.total, cost.per_episode, cost.per_success, cost.not_counted) == (6.0, 3.0, 3.0, 1)
    assert statistics(given).cost is statistics([rollout()], Prices(1, 1)).cost is None
    failed = statistics([rollout("01", 0, False, usage=usage)], Prices(2.0, 10.0)).cost
    assert failed is not None and failed.per_success is None


def test_paired_differences_agree_with_statsmodels(tmp_path: Path) -> None:
    chance = random.Random(3)
    keys = [(task, number) for task in "abcdefg" for number in range(6)]
    outcomes, other = ({key: chance.random() < share for key in keys} for share in (0.4, 0.7))
    del outcomes["a", 0], other["b", 3]
    difference = paired_difference(0, outcomes, 1, other, {key: key[0] for key in keys})
    common = [key for key in keys if key in outcomes and key in other]
    differences = [[float(other[key]) - float(outcomes[key]) for key in common if key[0] == task] for task in "abcdefg"]
    mean, _, low, high, p = fitted(differences)
    assert (difference.common, difference.clusters) == (len(common), 7) == (40, 7)
    assert difference.both + difference.only_first + difference.only_second + difference.neither == 40
    assert (difference.difference, difference.low, difference.high) == pytest.approx((mean, low, high), abs=1e-9)
    assert difference.p_clustered == pytest.approx(p, abs=1e-9)


def test_runs_without_common_episodes_have_no_difference() -> None:
    difference = paired_difference(0, {"a": True}, 1, {"b": True}, {"a": "t", "b": "t"})
    assert difference.common == 0 and difference.difference is difference.low is difference.p_clustered is None
    assert difference.p_mcnemar == 1.0


def test_every_run_is_compared_with_the_first_of_its_experiment(tmp_path: Path) -> None:
    for experiment in ("one", "two"):
        for shift, name in enumerate(("baseline", "spec", "memory")):
            write_rollouts(tmp_path / experiment / "rollouts" / f"{name}.jsonl", study(shift))
    report = Report(read_runs([tmp_path / "one", tmp_path / "two"]))
    assert [(difference.first, difference.second) for difference in report.differences] == [
        (0, 1),
        (0, 2),
        (3, 4),
        (3, 5),
    ]
    pooled = report.pooled()
    assert [run.name for run in pooled.runs] == ["baseline", "spec", "memory"]
    assert [difference.common for difference in pooled.differences] == [16, 16]
    assert pooled.statistics[0].graded == 16
    # The experiments' prompts are the same, but other agents answered them: they are no repeats of each other.
    assert [task_attempts.episodes for task_attempts in pooled.attempts(0)] == [2] * 8
    assert pooled.total(0).success.by_repeat == report.total(0).success.by_repeat


def test_a_tool_that_is_not_used_has_no_error_rate() -> None:
    assert statistics([rollout(process=used())]).tool_errors == ()


def test_many_runs_are_rows_instead_of_columns(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.jsonl" for number in range(7)]
    for number, path in enumerate(paths):
        write_rollouts(path, study(number))
    tables = {
        count: {section.title: section for section in sections(Report(read_runs(paths[:count])))} for count in (6, 7)
    }
    for title in ("Failure modes of failed episodes", "Failed calls by tool"):
        few, many = tables[6][title], tables[7][title]
        assert many.columns == ("run", *(row[0] for row in few.rows))
        assert [row[0] for row in many.rows[:6]] == [*few.columns[1:]]
        assert [row[1:] for row in many.rows[:6]] == [*zip(*(row[1:] for row in few.rows), strict=True)]
    assert "Failed calls of other tools" not in tables[7]
