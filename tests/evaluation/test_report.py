from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fhir_gym.errors import RecordError, UnknownNameError
from fhir_gym.evaluation import Report, dimensions, markdown, plain, read_runs, sections, wilson
from fhir_gym.rollouts import Rollout, write_rollouts
from tests.cli.conftest import Cli
from tests.cli.conftest import cli as cli  # a fixture
from tests.evaluation.records import LARGE, SMALL, large, rollout, small, study, turn

GOLDEN = Path(__file__).parent / "golden"


def written(path: Path, rollouts: Sequence[Rollout]) -> Path:
    write_rollouts(path, rollouts)
    return path


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    return [written(Path("small.jsonl"), small()).name, written(Path("large.jsonl"), large()).name]


def golden(name: str, text: str) -> None:
    """Compare a text with a golden file. FHIR_GYM_GOLDEN=1 rewrites the file, so that the change can be reviewed."""
    if os.environ.get("FHIR_GYM_GOLDEN"):
        (GOLDEN / name).write_text(text, encoding="utf-8")
    assert text == (GOLDEN / name).read_text("utf-8")


def test_markdown_of_two_runs(files: list[str]) -> None:
    golden("two.md", markdown(Report(read_runs(files))))


def test_json_of_two_runs(files: list[str]) -> None:
    golden("two.json", json.dumps(plain(Report(read_runs(files), ("task",))), indent=2, ensure_ascii=False) + "\n")


def test_command_prints_tables(files: list[str], cli: Cli) -> None:
    done = cli("report", files[0], "--by", "kind,difficulty")
    assert done.code == 0
    golden("small.txt", done.out)
    assert done.err == (
        "light: share of episodes whose requested records exist, whatever they contain, in tasks that request records\n"
        "--full shows 12 tables with all columns; these are the first 5\n"
        "chat small: 1 of 5 episodes were not graded and are not included in the averages\n"
    )
    full = cli("report", files[0], "--by", "kind,difficulty", "--full")
    assert full.out.startswith(done.out.partition("By kind")[0]) and "--full" not in full.err
    assert "Tokens in an episode" in full.out and "light" in full.out.partition("By kind")[2].splitlines()[1]


def test_the_interval_of_a_single_episode_is_left_out(tmp_path: Path, cli: Cli) -> None:
    records = [rollout(task, 0) for task in ("01", "02a")]
    shown = cli("report", str(written(tmp_path / "r.jsonl", records))).out
    assert shown.partition("By task")[2].splitlines()[1].split() == ["task", "episodes", "success", "steps", "invalid"]


def test_tasks_of_medagentbench_have_a_table_of_classes(tmp_path: Path, cli: Cli) -> None:
    record = rollout()
    tasks = [record.task.model_copy(update={"key": f"task{number}_{n}"}) for number in (2, 10) for n in (1, 2)]
    records = [record.model_copy(update={"task": task}) for task in tasks]
    shown = cli("report", str(written(tmp_path / "r.jsonl", records))).out
    assert [line.split()[:1] for line in shown.partition("By class")[2].splitlines()[2:4]] == [["2"], ["10"]]


def test_groups_of_one_are_left_out(tmp_path: Path, cli: Cli) -> None:
    records = [rollout(task, 0) for task in ("01", "02a")]
    shown = cli("report", str(written(tmp_path / "r.jsonl", records)), "--full").out
    assert "By task" in shown and "By pack" not in shown and "By split" not in shown


def test_wrong_uses_of_the_command_are_explained(tmp_path: Path, files: list[str], cli: Cli) -> None:
    assert "--out DIR writes the page DIR/report.html" in cli("report", files[0], "--format", "html").err
    assert "unknown format 'markdwn'; did you mean 'markdown'?" in cli("report", files[0], "--format", "markdwn").err
    cut = tmp_path / "cut.jsonl"
    cut.write_text(Path(files[0]).read_text("utf-8")[:300], "utf-8")
    assert "cut.jsonl: its only line is incomplete, because its writer was interrupted" in cli("report", cut).err


def test_command_prints_json_and_markdown(files: list[str], cli: Cli) -> None:
    report = Report(read_runs(files), ("kind",))
    assert json.loads(cli("report", *files, "--by", "kind", "--json").out) == plain(report)
    assert cli("report", *files, "--by", "kind", "--markdown").out == markdown(report)
    assert cli("report", files[0], "--json", "--markdown").code == 2


def test_command_suggests_the_nearest_dimension(files: list[str], cli: Cli) -> None:
    done = cli("report", files[0], "--by", "tasks")
    assert done.code == 2 and "did you mean 'task'?" in done.err


def test_unreadable_files_are_one_line(tmp_path: Path, cli: Cli) -> None:
    no_json, other, empty = tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "c.jsonl"
    no_json.write_bytes(b"\xff\xfe\x00 nothing\n")
    other.write_text('{"messages": []}\n')
    empty.write_text("")
    (tmp_path / "folder").mkdir()
    for path, said in (
        (tmp_path / "none.jsonl", "cannot be read: No such file"),
        (tmp_path / "folder", "folder: contains no rollout files (*.jsonl)"),
        (no_json, "a.jsonl:1: not JSON"),
        (other, "b.jsonl:1: not a rollout: it has no schema_version"),
        (empty, "c.jsonl: contains no rollouts"),
    ):
        done = cli("report", path)
        assert (done.code, done.out) == (1, "") and said in done.err and done.err.count("\n") == 1


def test_an_unfinished_run_can_be_read(tmp_path: Path) -> None:
    path = written(tmp_path / "r.jsonl", small()[:2])
    with path.open("a") as file:
        file.write('{"schema_version": ')
    assert Report(read_runs([path])).total(0).episodes == 2


def test_provider_failures_are_not_counted(tmp_path: Path) -> None:
    lost = rollout("01", 1, None, error="timeout after 3 s", turns=(turn(error="x"),) * 9)
    report = Report(read_runs([written(tmp_path / "r.jsonl", [rollout("01", 0), lost])]))
    figures = report.total(0)
    assert (figures.episodes, figures.graded, figures.success.value, figures.steps) == (2, 1, 1.0, 1.0)
    assert (figures.invalid, figures.with_invalid) == (0.0, 0)
    assert report.infra_errors(0) == [("timeout after 3 s", 1)]
    nothing = Report(read_runs([written(tmp_path / "n.jsonl", [lost])]))
    assert nothing.total(0).success.value is None and nothing.total(0).reward is None
    assert "0.0%" not in markdown(nothing)


def test_a_repeated_episode_counts_once(tmp_path: Path) -> None:
    lost, found = rollout("01", 1, None, error="down"), rollout("01", 1, True)
    (again,) = read_runs([written(tmp_path / "a.jsonl", [lost, found, lost])])
    assert [episode.success for episode in again.episodes] == [True] and again.repeated == 0
    (twice,) = read_runs([written(tmp_path / "b.jsonl", [found, rollout("01", 1, False)])])
    assert [episode.success for episode in twice.episodes] == [True] and twice.repeated == 1
    (seeds,) = read_runs([written(tmp_path / "c.jsonl", [found, rollout("01", 1, False, seed=8)])])
    assert len(seeds.episodes) == 2


def test_runs_are_named_by_their_differences(tmp_path: Path) -> None:
    path = written(
        tmp_path / "r.jsonl", [*small(), *large(), rollout(agent="gold"), rollout(settings=SMALL | {"seed": 1})]
    )
    assert [run.name for run in read_runs([path])] == [
        "chat small temperature=0.0",
        "chat large temperature=0.5",
        "gold",
        "chat small seed=1 temperature=0.0",
    ]
    same = written(tmp_path / "again.jsonl", [rollout(agent="gold")])
    assert [run.name for run in read_runs([same, same])] == ["gold (again)", "gold (again) #2"]
    tools = [rollout(settings=SMALL), rollout(settings=SMALL | {"tools": {"spec": {"version": "4"}, "memory": {}}})]
    assert [run.name for run in read_runs([written(tmp_path / "t.jsonl", tools)])] == [
        "chat small",
        "chat small tools=memory,spec",
    ]
    folder = rollout(settings={"model": str(tmp_path / "weights")})
    assert [run.name for run in read_runs([written(tmp_path / "f.jsonl", [folder])])] == ["chat weights"]


def test_comparison_is_over_episodes_of_both(files: list[str], tmp_path: Path) -> None:
    report = Report(read_runs(files))
    (compared,) = report.differences
    assert (compared.common, compared.both, compared.only_first, compared.only_second, compared.neither) == (
        4,
        1,
        0,
        2,
        1,
    )
    assert Report(report.runs[:1]).differences == ()
    apart = written(tmp_path / "apart.jsonl", [rollout("01", 5, agent="gold")])
    titles = [section.title for section in sections(Report(read_runs([files[0], apart])))]
    assert "Success of both runs" in titles and "Episode by episode" not in titles


def test_mixed_conditions_are_remarked(tmp_path: Path) -> None:
    mixed = [rollout("01", 0), rollout("02a", 0, grading="evidence")]
    remarks = Report(read_runs([written(tmp_path / "r.jsonl", mixed)])).remarks()
    assert remarks == ["episodes with different grading: evidence, state"]


def test_runs_with_different_episodes_are_remarked(tmp_path: Path) -> None:
    complete, other, part = study(0), study(1), study(2)[:5]
    paths = [written(tmp_path / f"{n}.jsonl", records) for n, records in enumerate((complete, other, part))]
    assert Report(read_runs(paths[:2])).remarks() == []
    assert Report(read_runs(paths)).remarks() == [
        "the runs share only 5 of their graded episodes (study shift=0 8, study shift=1 8, study shift=2 5): compare "
        "them by their paired differences"
    ]


def test_tasks_of_several_packs_have_different_names(tmp_path: Path) -> None:
    both = [rollout("01", 0), rollout("01", 0, False, env_id="Example/Other-v0")]
    report = Report(read_runs([written(tmp_path / "r.jsonl", both)]), dimensions(["task"]))
    assert [value for value, _ in report.groups("task")] == [
        "Example/Other-v0 01 Enter a new patient",
        "FHIRAgent/Appointment-v0 01 Enter a new patient",
    ]


def test_order_of_records_does_not_matter(tmp_path: Path) -> None:
    there = written(tmp_path / "there" / "r.jsonl", small())
    back = written(tmp_path / "back" / "r.jsonl", small()[::-1])
    assert markdown(Report(read_runs([there]))) == markdown(Report(read_runs([back])))


def test_unknown_dimension() -> None:
    assert dimensions(["task", "kind", "task"]) == ("task", "kind")
    with pytest.raises(UnknownNameError, match="unknown dimension 'model'"):
        dimensions(["model"])


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot be read"):
        read_runs([tmp_path / "none.jsonl"])


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    # These values were computed by hand with Wilson's formula; the first two are in textbooks.
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (1, 1000, 0.0002, 0.0056), (0, 0, 0.0, 1.0)],
)
def test_wilson_interval(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_interval_contains_the_proportion(counts: tuple[int, int]) -> None:
    successes, trials = counts
    low, high = wilson(successes, trials)
    assert 0 <= low <= successes / trials <= high <= 1
    assert high - low < 1
    mirrored = wilson(trials - successes, trials)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_settings_are_in_the_json(files: list[str]) -> None:
    assert [run["settings"] for run in plain(Report(read_runs(files)))["runs"]] == [SMALL, LARGE]


def test_errors_are_counted_by_their_labels_where_there_are_any(tmp_path: Path) -> None:
    told = [rollout("01", n, False, label="arithmetic" if n else "window boundary") for n in range(3)]
    report = Report(read_runs([written(tmp_path / "a.jsonl", [*told, rollout("01", 3, True)])]))
    (section,) = [section for section in sections(report) if section.title == "Errors by label"]
    assert section.rows == (("arithmetic", "2"), ("window boundary", "1"))
    assert plain(report)["runs"][0]["labels"] == {"arithmetic": 2, "window boundary": 1}
    without = Report(read_runs([written(tmp_path / "b.jsonl", [rollout("01", 0, False)])]))
    assert "Errors by label" not in [section.title for section in sections(without)]


def test_many_tasks_are_listed_only_on_request(tmp_path: Path, cli: Cli) -> None:
    record = rollout()
    many = [record.model_copy(update={"task": record.task.model_copy(update={"key": f"t{n}"})}) for n in range(61)]
    file = str(written(tmp_path / "many.jsonl", many))
    for argv in (("report", file), ("report", file, "--markdown")):
        outcome = cli(*argv)
        assert "61 tasks: use `--by task` to show one row per task" in (outcome.out + outcome.err).replace("\\", "")
        assert "By task" not in outcome.out
        assert "t60" not in outcome.out
    asked = cli("report", file, "--by", "task")
    assert "t60" in asked.out
    assert "61 tasks" not in asked.err
    assert len(json.loads(cli("report", file, "--json").out)["by"]["task"]) == 61
    few = cli("report", str(written(tmp_path / "few.jsonl", many[:60])))
    assert "t59" in few.out
    assert "60 tasks" not in few.err


def test_repeats_give_pass_at_k_and_reliability(tmp_path: Path) -> None:
    first = [rollout(variation=number, success=number == 0) for number in range(2)]
    again = [record.model_copy(update={"repeat": 1, "success": True}) for record in first]
    report = Report(read_runs([written(tmp_path / "a.jsonl", [*first, *again])]))
    assert [(task_attempts.successes, task_attempts.episodes) for task_attempts in report.attempts(0)] == [
        (2, 2),
        (1, 2),
    ]
    assert "| chat | 2 | 100.0% | 50.0% | 50.0% |" in markdown(report)
    assert plain(report)["runs"][0]["repeats"]["k"][1] == {"k": 2, "pass_at_k": 1.0, "reliability": 0.5}
