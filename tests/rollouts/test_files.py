from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fhir_gym.errors import RecordError, TaskError
from fhir_gym.rollouts import Rollout, completed, read_rollouts, write_rollouts


def test_written_rollouts_can_be_read_and_appended_to(tmp_path: Path, gold: list[Rollout]) -> None:
    path = tmp_path / "new" / "rollouts.jsonl"
    assert write_rollouts(path, gold[:2]) == 2
    assert write_rollouts(path, gold[2:]) == len(gold) - 2
    assert list(read_rollouts(path)) == gold


def test_records_in_the_file_are_not_written_again(tmp_path: Path, gold: list[Rollout]) -> None:
    path = tmp_path / "r.jsonl"
    write_rollouts(path, gold)
    before = path.read_bytes()
    later = [rollout.model_copy(update={"timings": None}) for rollout in gold]
    assert write_rollouts(path, later) == 0
    assert path.read_bytes() == before
    other = gold[0].model_copy(update={"reward": 0.5})
    with pytest.raises(RecordError, match=r"already holds task 01, variation 0, .* resume=path.*overwrite=True"):
        write_rollouts(path, [other])
    assert path.read_bytes() == before
    new = gold[0].model_copy(update={"repeat": 1})
    assert write_rollouts(path, [gold[0], new]) == 1


def test_the_first_graded_rollout_replaces_the_file(tmp_path: Path, gold: list[Rollout]) -> None:
    path = tmp_path / "r.jsonl"
    lost = gold[0].model_copy(update={"stop_reason": "infra_error", "verdict": None, "reward": None, "success": None})
    assert write_rollouts(path, gold[:1], overwrite=True) == 1
    before = path.read_bytes()

    def failing() -> Iterator[Rollout]:
        yield lost
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_rollouts(path, failing(), overwrite=True)
    assert write_rollouts(path, [lost], overwrite=True) == 0
    assert path.read_bytes() == before
    assert write_rollouts(path, [lost, *gold[1:4]], overwrite=True) == 4
    assert list(read_rollouts(path)) == [lost, *gold[1:4]]
    assert list(tmp_path.iterdir()) == [path]


def test_a_run_without_a_rollout_leaves_no_file(tmp_path: Path) -> None:
    def failing(_: int) -> Rollout:
        raise TaskError("a bad task file")

    with pytest.raises(TaskError):
        write_rollouts(tmp_path / "new" / "r.jsonl", map(failing, [0]))
    assert write_rollouts(tmp_path / "r.jsonl", []) == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"precious", b"precious\n", b'{"a": 1}', b"\x00\xff" * 99, b'{"a": [\n'])
def test_rollouts_are_not_appended_to_other_files(tmp_path: Path, gold: list[Rollout], content: bytes) -> None:
    path = tmp_path / "notes"
    path.write_bytes(content)
    with pytest.raises(RecordError, match="notes"):
        write_rollouts(path, gold[:1])
    assert path.read_bytes() == content


def test_timings_can_be_left_out(tmp_path: Path, gold: list[Rollout]) -> None:
    path = tmp_path / "r.jsonl"
    write_rollouts(path, gold[:1], timings=False)
    assert b"timings" not in path.read_bytes()
    (read,) = read_rollouts(path)
    assert read == gold[0].model_copy(update={"timings": None})


def test_an_interrupted_run_keeps_finished_rollouts(tmp_path: Path, gold: list[Rollout]) -> None:
    path = tmp_path / "r.jsonl"

    def interrupted() -> Iterator[Rollout]:
        yield gold[0]
        # Each record is on disk before the next episode starts.
        assert len(list(read_rollouts(path))) == 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_rollouts(path, interrupted())
    assert list(read_rollouts(path)) == gold[:1]
    assert completed(path) == {(gold[0].task.key, 0, 0)}


@pytest.mark.parametrize("kept", [1, 100, 1000])
def test_a_file_with_one_partial_line_can_be_continued(tmp_path: Path, gold: list[Rollout], kept: int) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(gold[1].line().encode()[:kept])
    assert write_rollouts(path, gold[:1]) == 1
    assert list(read_rollouts(path)) == gold[:1]


@pytest.mark.parametrize("kept", [1, 100, -3])
def test_a_partial_last_line_is_skipped_and_removed_on_resume(tmp_path: Path, gold: list[Rollout], kept: int) -> None:
    path = tmp_path / "r.jsonl"
    write_rollouts(path, gold[:1])
    with path.open("ab") as file:
        file.write(gold[1].line().encode()[:kept])
    with pytest.warns(UserWarning, match=r"r\.jsonl:2: skipped an incomplete line"):
        assert list(read_rollouts(path)) == gold[:1]
    assert len(completed(path)) == 1
    write_rollouts(path, gold[1:2])
    assert list(read_rollouts(path)) == gold[:2]


def test_a_last_line_that_only_lacks_its_end_is_kept(tmp_path: Path, gold: list[Rollout]) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(gold[0].line(), encoding="utf-8")
    assert list(read_rollouts(path)) == gold[:1]
    write_rollouts(path, gold[1:2])
    assert list(read_rollouts(path)) == gold[:2]


def test_a_partial_line_longer_than_the_read_buffer(tmp_path: Path, gold: list[Rollout]) -> None:
    path = tmp_path / "r.jsonl"
    write_rollouts(path, gold[:1])
    with path.open("ab") as file:
        file.write(b'{"x": "' + b"y" * 200_000)
    write_rollouts(path, gold[1:2])
    assert list(read_rollouts(path)) == gold[:2]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "r.jsonl:2: not JSON"),
        ("[]", "r.jsonl:2: not a rollout: it has no schema_version"),
        ('{"schema_version": 99}', "schema version 99"),
        ('{"schema_version": 1}', "r.jsonl:2: not a rollout: package_version: Field required"),
    ],
)
def test_invalid_lines_are_reported_by_number(tmp_path: Path, gold: list[Rollout], line: str, message: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(f"{gold[0].line()}\n{line}\n", encoding="utf-8")
    reading = read_rollouts(path)
    assert next(reading) == gold[0]
    with pytest.raises(RecordError) as caught:
        next(reading)
    assert message in str(caught.value)


def test_unknown_fields_are_refused(tmp_path: Path, gold: list[Rollout]) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(json.loads(gold[0].line()) | {"extra": 1}) + "\n", encoding="utf-8")
    with pytest.raises(RecordError, match="extra"):
        list(read_rollouts(path))


def test_unreadable_and_unwritable_files_are_reported_by_name(tmp_path: Path, gold: list[Rollout]) -> None:
    with pytest.raises(RecordError, match=r"nothing\.jsonl: cannot be read"):
        next(read_rollouts(tmp_path / "nothing.jsonl"))
    with pytest.raises(RecordError, match="cannot be written"):
        write_rollouts(tmp_path, gold)
    assert completed(tmp_path / "nothing.jsonl") == frozenset()


def test_ungraded_rollouts_are_not_completed(tmp_path: Path, gold: list[Rollout]) -> None:
    path = tmp_path / "r.jsonl"
    lost = {"stop_reason": "infra_error", "verdict": None, "reward": None, "success": None, "light": None}
    write_rollouts(path, [gold[0].model_copy(update=lost)])
    assert completed(path) == frozenset()
