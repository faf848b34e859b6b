"""The index follows files that grow, are replaced or contain other data."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from fhir_gym.errors import RecordError
from fhir_gym.web import rollout_index
from fhir_gym.web.rollout_index import RolloutIndex, UnknownEpisodeError
from tests.web.episodes import edited


@pytest.fixture(scope="module")
def record(rollout_file: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(rollout_file.read_text().splitlines()[0])
    return found


def line(record: dict[str, object], variation: int) -> bytes:
    return json.dumps(edited(record, variation=variation)).encode() + b"\n"


def found(index: RolloutIndex) -> list[tuple[int, int]]:
    """Return line and variation of the episodes."""
    return [(line, variation) for line, variation in index.select("SELECT line, variation FROM episode ORDER BY line")]


def test_episodes_appear_when_their_lines_are_complete(tmp_path: Path, record: dict[str, object]) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(line(record, 1) + line(record, 2)[:-100])
    with RolloutIndex([path]) as index:
        index.update()
        assert found(index) == [(1, 1)] and index.state.bad_lines == 0
        before = index.state.version
        index.update()
        assert index.state.version == before and index.state.complete
        with path.open("ab") as file:
            file.write(line(record, 2)[-100:-1])
        index.update()
        assert found(index) == [(1, 1), (2, 2)]  # the line end is still missing
        with path.open("ab") as file:
            file.write(b"\n\n" + line(record, 3))
        index.update()
        assert found(index) == [(1, 1), (2, 2), (4, 3)] and index.state.version > before
        assert index.rollout(0, 4).task.variation == 3
        assert index.neighbours(0, 2) == ((0, 1), (0, 4)) and index.neighbours(0, 4) == ((0, 2), None)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_replaced_file_is_read_anew(tmp_path: Path, record: dict[str, object], in_place: bool) -> None:
    path, other = tmp_path / "r.jsonl", tmp_path / "other.jsonl"
    path.write_bytes(line(record, 1) + line(record, 2) + b"no rollout\n")
    with RolloutIndex([path]) as index:
        index.update()
        assert found(index) == [(1, 1), (2, 2)] and index.state.bad_lines == 1
        if in_place:
            path.write_bytes(b"".join(line(record, number) for number in (5, 6, 7, 8)))
        else:
            other.write_bytes(line(record, 5))
            other.replace(path)
        index.update()
        assert found(index) == ([(1, 5), (2, 6), (3, 7), (4, 8)] if in_place else [(1, 5)])
        assert index.state.bad_lines == 0 and [run.episodes for run in index.runs()] == [4 if in_place else 1]


def test_a_file_with_the_same_end_is_read_anew(tmp_path: Path, record: dict[str, object]) -> None:
    path, other = tmp_path / "r.jsonl", tmp_path / "other.jsonl"
    path.write_bytes(line(record, 1) + line(record, 2))
    with RolloutIndex([path]) as index:
        index.update()
        other.write_bytes(line(record, 3) + line(record, 2))
        other.replace(path)
        index.update()
        assert found(index) == [(1, 3), (2, 2)]


def test_a_deleted_file_keeps_its_episodes_in_the_table(tmp_path: Path, record: dict[str, object]) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(line(record, 1))
    with RolloutIndex([path]) as index:
        index.update()
        path.unlink()
        index.update()
        assert found(index) == [(1, 1)]
        with pytest.raises(RecordError, match=r"r\.jsonl:1: cannot be read any more"):
            index.rollout(0, 1)


def test_a_changed_line_is_an_error_and_unknown_episodes_too(tmp_path: Path, record: dict[str, object]) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(line(record, 1))
    with RolloutIndex([path]) as index:
        index.update()
        path.write_bytes(b"x" * 10_000)
        with pytest.raises(RecordError, match="not JSON"):
            index.rollout(0, 1)
        for place in ((0, 2), (1, 1), (0, 0), (2**70, 1), (0, 2**70)):
            with pytest.raises(UnknownEpisodeError):
                index.rollout(*place)


def test_lines_that_are_too_long_are_skipped(
    tmp_path: Path, record: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_index, "_MAX_LINE", 64 * 1024)
    path = tmp_path / "r.jsonl"
    path.write_bytes(line(record, 1) + b"x" * 200_000 + b"\n" + line(record, 3) + b"y" * 70_000)
    with RolloutIndex([path]) as index:
        index.update()
        assert found(index) == [(1, 1), (3, 3)]
        problems = index.select("SELECT line, problem FROM bad_line")
        assert problems == [(2, "longer than 0 MiB"), (4, "longer than 0 MiB")]


@pytest.mark.parametrize(
    "content",
    [
        b"[]",
        b"{}",
        b'{"schema_version":2}',
        b'{"schema_version":2,"task":3,"agent":[],"verdict":1}',
        b"NaN",
        b"\xff\xfe",
        b"[" * 200_000,
        b'"\\ud800"',
        b"1" * 5_000,
    ],
)
def test_other_data_is_a_bad_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(content + b"\n")
    with RolloutIndex([path]) as index:
        index.update()
        assert (index.state.episodes, index.state.bad_lines) == (0, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 10**400},
        {"reward": float("inf")},
        {"reward": "x"},
        {"turns": [None]},
        {"agent": {"name": "a", "settings": None}},
        {"usage": {"prompt": 1}},
        {"verdict": {"checks": [{}]}},
        {"timings": {"prepare": None}},
    ],
)
def test_wrong_elements_are_a_bad_line(tmp_path: Path, record: dict[str, object], changes: dict[str, object]) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps({**record, **changes}) + "\n")
    with RolloutIndex([path]) as index:
        index.update()
        [(problem,)] = index.select("SELECT problem FROM bad_line")
        assert problem.startswith("not a rollout") and len(problem) < 400


def test_the_files_of_a_folder_are_found_while_they_appear(tmp_path: Path, record: dict[str, object]) -> None:
    folder = tmp_path / "experiment"
    (folder / "rollouts").mkdir(parents=True)
    with RolloutIndex([folder]) as index:
        index.update()
        assert index.state.complete and not list(index.paths)
        for number, name in enumerate(("spec", "baseline", "manifest.txt")):
            (folder / "rollouts" / name).with_suffix(".jsonl" if number < 2 else ".txt").write_bytes(
                line(record, number)
            )
            index.update()
        assert [path.stem for path in index.paths] == ["spec", "baseline"]
        assert [run.name.rsplit(" ", 1)[-1] for run in index.runs()] == ["(spec)", "(baseline)"]


def test_missing_files_and_pipes_are_errors(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"nothing\.jsonl does not exist"):
        RolloutIndex([tmp_path / "nothing.jsonl"])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RecordError, match="pipe is not a file"):
        RolloutIndex([tmp_path / "pipe"])


def test_a_thread_follows_the_files(tmp_path: Path, record: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_index, "_INTERVAL", 0.005)
    path = tmp_path / "r.jsonl"
    path.write_bytes(b"")
    seen = threading.Event()
    others = set(threading.enumerate())  # other tests serve viewers meanwhile
    with RolloutIndex([path]) as index:
        index.follow()
        for number in (1, 2):
            with path.open("ab") as file:
                file.write(line(record, number))
            for _ in range(2_000):
                if len(found(index)) == number:
                    break
                seen.wait(0.005)
            assert len(found(index)) == number
    assert not any(thread.name == "rollout-index" for thread in set(threading.enumerate()) - others)


def test_many_runs_have_short_names(tmp_path: Path, record: dict[str, object]) -> None:
    path = tmp_path / "r.jsonl"
    agents = ({"name": "chat", "settings": {"seed": number}} for number in range(201))
    path.write_text("".join(json.dumps({**record, "agent": agent}) + "\n" for agent in agents))
    with RolloutIndex([path]) as index:
        index.update()
        assert [run.name for run in index.runs()][:2] == ["chat #1", "chat #2"]
        assert index.cached("x", lambda: 1) == index.cached("x", lambda: 2) == 1
