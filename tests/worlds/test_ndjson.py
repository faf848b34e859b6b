"""The NDJSON import is atomic, and every error names the line of the file."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fhir_gym import worlds
from fhir_gym.errors import ArgumentError, UnknownNameError, WorldError
from fhir_gym.fhir import World
from fhir_gym.types import Resource
from fhir_gym.worlds import ImportReport
from fhir_gym.worlds.cache import VARIABLE
from fhir_gym.worlds.files import SourceRecord
from fhir_gym.worlds.import_scan import ImportScan, infer_now
from tests.worlds.full_disk import fill_after

PATIENT: Resource = {"resourceType": "Patient", "id": "a", "name": [{"family": "O'Brien", "given": ["Zoë"]}]}


def observation(ident: str, **more: Any) -> Resource:
    return {
        "resourceType": "Observation",
        "id": ident,
        "status": "final",
        "code": {"text": "K"},
        "subject": {"reference": "Patient/a"},
        **more,
    }


def write(path: Path, *resources: Resource) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(resource) + "\n" for resource in resources).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_folder_becomes_a_named_world(tmp_path: Path) -> None:
    folder = tmp_path / "my ward"
    write(folder / "Patient.ndjson", PATIENT)
    write(folder / "deep" / "Observation.000.ndjson.gz", observation("o1"), observation("o2"))
    (folder / "notes.jsonl").write_text("not for import\n")
    (folder / "data.json").write_text("{")
    (folder / "._Patient.ndjson").write_bytes(b"what some systems put beside a file")
    reports: list[ImportReport] = []
    told: list[tuple[int, int]] = []
    world = worlds.import_files(
        folder, progress=lambda done, total: told.append((done, total)), on_report=reports.append
    )
    with world:
        assert world.manifest.name == "my-ward"
        assert world.manifest.counts == {"Observation": 2, "Patient": 1}
        assert world.manifest.seed is None
        assert world.read("Patient", "a") == {**PATIENT, "meta": (world.read("Patient", "a") or {})["meta"]}
    assert told[0] == (0, 0) and told[-1] == (3, 3)
    (report,) = reports
    assert (report.files, report.doubles, report.dangling, report.altered) == (2, 0, 0, 0)
    with worlds.load("my-ward") as again:
        assert again.manifest == world.manifest
    assert "my-ward" in [info.name for info in worlds.available()]
    with pytest.raises(UnknownNameError, match="my-ward"):
        worlds.load("my-word")


def test_single_file_and_given_path(tmp_path: Path) -> None:
    source = write(tmp_path / "Patient.ndjson", PATIENT)
    with worlds.import_files(source, out=tmp_path / "w.sqlite", name="x") as world:
        assert world.path == (tmp_path / "w.sqlite").resolve()
        assert world.manifest.name == "x"
    assert not (tmp_path / "cache").exists()


def test_order_of_files_not_of_the_disk(tmp_path: Path) -> None:
    for letter in "cab":
        write(tmp_path / "in" / f"{letter}.ndjson", {"resourceType": "Patient", "id": letter})
    with worlds.import_files(tmp_path / "in") as world:
        assert world.ids("Patient") == ["a", "b", "c"]


def test_bad_lines_are_named_and_nothing_is_imported(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write(folder / "a.ndjson", PATIENT)
    (folder / "b.ndjson").write_bytes(
        b"\n".join(
            [
                b'{"resourceType": "Patient", "id": "b"',
                b"",
                b"[1]",
                b'{"resourceType": "Patiend", "id": "c"}',
                b'{"resourceType": "Patient"}',
                b'{"resourceType": "Patient", "id": "\xff"}',
                b'{"resourceType": "Patient", "id": "a", "active": true}',
            ]
        )
    )
    (folder / "c.ndjson.gz").write_bytes(b"no gzip")
    with pytest.raises(WorldError) as caught:
        worlds.import_files(folder, out=tmp_path / "w.sqlite")
    message = str(caught.value)
    expected = (
        "nothing was imported, 7 problems", "b.ndjson:1: not JSON", "b.ndjson:3: not a JSON object",
        "b.ndjson:4: not an R4 resource: resourceType is 'Patiend'", "b.ndjson:5: Patient without an id",
        "b.ndjson:6: not JSON", "b.ndjson:7: a second Patient/a with different", "c.ndjson.gz:1: cannot be read",
    )  # fmt: skip
    for part in expected:
        assert part in message
    assert "b.ndjson:2" not in message
    assert not list(tmp_path.glob("*.sqlite")) and not list(tmp_path.glob(".*"))


def test_resources_the_server_refuses_are_named(tmp_path: Path) -> None:
    source = write(tmp_path / "p.ndjson", PATIENT, {"resourceType": "Patient", "id": "b", "gender": "no such gender"})
    with pytest.raises(WorldError, match=r"1 problem:\n  p.ndjson:2: .*no such gender"):
        worlds.import_files(source, out=tmp_path / "w.sqlite")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.ndjson"]


def test_names_twenty_problems_and_counts_the_others(tmp_path: Path) -> None:
    source = tmp_path / "p.ndjson"
    source.write_text("{\n" * 1000)
    with pytest.raises(WorldError, match=r"1,000 problems:(\n  p.*){20}\n  and 980 more$") as caught:
        worlds.import_files(source)
    assert str(caught.value).count("p.ndjson:") == 20


def test_all_kinds_of_problems_are_found_in_one_pass(tmp_path: Path) -> None:
    """The error lists lines that the reader refuses, lines that the scan refuses, and lines that the parser refuses."""
    source = write(
        tmp_path / "p.ndjson",
        {"resourceType": "Patient", "id": "a", "gender": "no such gender"},
        {"resourceType": "Patient", "id": "two words"},
        {"resourceType": "Patient", "id": "../../up"},
        {"resourceType": "Patient", "id": "x" * 65},
        {"resourceType": "Patient", "id": "b", "birthDate": "yesterday"},
    )
    with pytest.raises(WorldError, match="5 problems") as caught:
        worlds.import_files(source)
    places = [line.split(": ")[0].strip() for line in str(caught.value).splitlines()[1:]]
    assert places == [f"p.ndjson:{number}" for number in range(1, 6)]
    assert "p.ndjson:2: Patient with the invalid id 'two words'" in str(caught.value)


def test_elements_that_are_dropped_are_listed(tmp_path: Path) -> None:
    source = write(
        tmp_path / "p.ndjson",
        PATIENT | {"shoeSize": 44, "name": [{"family": "Doe", "nick": "D"}, {"nick": "J"}]},
        {"resourceType": "Patient", "id": "b", "shoeSize": {"left": 44}},
    )
    reports: list[ImportReport] = []
    with worlds.import_files(source, out=tmp_path / "w.sqlite", on_report=reports.append) as world:
        assert "shoeSize" not in (world.read("Patient", "b") or {})
    assert reports[0].altered == 2 and reports[0].altered_examples == ("Patient/a", "Patient/b")
    assert reports[0].dropped == {"Patient.shoeSize": 2, "Patient.name.nick": 1, "Patient.name": 1}


def test_invalid_input_gives_one_line(tmp_path: Path) -> None:
    source = write(
        tmp_path / "p.ndjson",
        {"resourceType": "Patient", "id": "a", "gender": "\x1b[2J\n" + "x" * 100_000},
        {"resourceType": "\x1b[2J" * 1000, "id": "a"},
        {"resourceType": "Patient", "id": "\n" * 1000},
    )
    with pytest.raises(WorldError, match="3 problems") as caught:
        worlds.import_files(source)
    assert all(line.isprintable() and len(line) < 500 for line in str(caught.value).splitlines())
    reports: list[ImportReport] = []
    strange = write(tmp_path / "q.ndjson", PATIENT | {"\x1b]0;" + "y" * 10_000: 1})
    worlds.import_files(strange, out=tmp_path / "w.sqlite", on_report=reports.append).close()
    assert [path.isprintable() and len(path) <= 201 for path in reports[0].dropped] == [True]


def test_a_line_too_long_is_one_problem_among_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fhir_gym.worlds.files.MOST_BODY_BYTES", 1000)
    source = tmp_path / "p.ndjson"
    source.write_bytes(b'"' + b"x" * 5000 + b'"\n\n[]\n' + b"y" * 3000)
    with pytest.raises(WorldError, match="3 problems") as caught:
        worlds.import_files(source)
    assert "p.ndjson:1: longer than the limit of 1,000 bytes" in str(caught.value)
    assert "p.ndjson:3: not a JSON object" in str(caught.value)
    assert "p.ndjson:4: longer than" in str(caught.value)


@pytest.mark.parametrize("line", [b"\n", b'{"resourceType": "Patient", "id": "a"}\n'])
def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes) -> None:
    monkeypatch.setattr("fhir_gym.worlds.files._UNPACKED_BYTES", 100_000)
    monkeypatch.setattr("fhir_gym.worlds.files._MOST_RATIO", 10)
    source = tmp_path / "p.ndjson.gz"
    source.write_bytes(gzip.compress(line * (2_000_000 // len(line))))
    with pytest.raises(WorldError, match=r"p\.ndjson\.gz:[0-9]+: cannot be read: it expands to more than"):
        worlds.import_files(source)


def test_deep_nesting_is_a_problem(tmp_path: Path) -> None:
    source = tmp_path / "p.ndjson"
    source.write_bytes(b'{"a":' * 100_000 + b"\n" + b"[" * 100_000 + b"]" * 100_000 + b"\n" + b"9" * 100_000)
    with pytest.raises(WorldError, match="3 problems"):
        worlds.import_files(source)


def test_an_extreme_date_is_not_taken_as_the_present(tmp_path: Path) -> None:
    now, _ = now_of(PATIENT, observation("o", effectiveDateTime="9999-12-31T23:59:59Z", issued="2022-01-01T00:00:00Z"))
    assert now.year == 2022


def test_truncated_gzip(tmp_path: Path) -> None:
    source = write(tmp_path / "p.ndjson.gz", *({"resourceType": "Patient", "id": str(n)} for n in range(500)))
    source.write_bytes(source.read_bytes()[:-40])
    with pytest.raises(WorldError, match=r"p\.ndjson\.gz:[0-9]+: cannot be read"):
        worlds.import_files(source)


def test_nothing_to_import(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="no such file or folder"):
        worlds.import_files(tmp_path / "absent")
    (tmp_path / "in").mkdir()
    with pytest.raises(WorldError, match=r"it has no \.ndjson file"):
        worlds.import_files(tmp_path / "in", format="ndjson")
    (tmp_path / "in" / "a.ndjson").touch()
    with pytest.raises(WorldError, match="it has no resources"):
        worlds.import_files(tmp_path / "in", format="ndjson")


@pytest.mark.parametrize("name", ["hospital-small", "a/b", "../up", ".hidden", "x" * 200])
def test_names_that_cannot_be(tmp_path: Path, name: str) -> None:
    source = write(tmp_path / "p.ndjson", PATIENT)
    with pytest.raises(ArgumentError, match="name"):
        worlds.import_files(source, name=name)


def test_repetitions_and_dangling_references_are_reported(tmp_path: Path) -> None:
    source = write(
        tmp_path / "p.ndjson",
        PATIENT,
        PATIENT,
        observation("o1", performer=[{"reference": "Practitioner/gone"}]),
        observation("o2", subject={"reference": "Patient/gone"}, flag="unknown element"),
    )
    reports: list[ImportReport] = []
    with worlds.import_files(source, on_report=reports.append) as world:
        assert world.manifest.total == 3
    (report,) = reports
    assert report.doubles == 1
    assert report.dangling == 2
    assert set(report.examples) == {"Observation/o1 -> Practitioner/gone", "Observation/o2 -> Patient/gone"}
    assert (report.altered, report.altered_examples) == (1, ("Observation/o2",))


def test_written_digits_survive(tmp_path: Path) -> None:
    source = tmp_path / "o.ndjson"
    line = json.dumps(observation("o", valueQuantity={"value": 0}))
    source.write_text(line.replace('"value": 0', '"value": 4.10') + "\n")
    with worlds.import_files(source) as world:
        assert b'"value":4.10' in next(world.resources())


def now_of(*resources: Resource) -> tuple[datetime, str]:
    scan = ImportScan()
    for number, resource in enumerate(resources):
        scan.add(SourceRecord(str(number), resource))
    scan.raise_problems()
    return infer_now(scan)


def test_the_present_follows_the_data() -> None:
    late = observation("late", effectiveDateTime="2023-11-13T10:00:00+00:00")
    assert now_of(PATIENT, late)[0].isoformat() == "2023-11-13T10:15:00+00:00"
    assert "Observation/late effectiveDateTime" in now_of(PATIENT, late)[1]
    zoned = observation("zoned", issued="2023-11-13T10:14:59.5-05:00")
    assert now_of(late, zoned)[0].isoformat() == "2023-11-13T15:15:00+00:00"
    stay = {"resourceType": "Encounter", "id": "e", "period": {"start": "2024-01-01", "end": "2030-01-01"}}
    assert now_of(late, stay)[0].isoformat() == "2024-01-01T00:15:00+00:00"
    booked = {"resourceType": "Appointment", "id": "x", "start": "2031-01-01T08:00:00Z"}
    covered = {"resourceType": "Coverage", "id": "c", "period": {"start": "2032-01-01"}}
    assert now_of(late, booked, covered)[0].isoformat() == "2023-11-13T10:15:00+00:00"
    mistyped = observation("m", effectiveDateTime="2203-01-01", meta={"lastUpdated": "2024-01-01T00:00:00Z"})
    assert now_of(late, mistyped)[0].isoformat() == "2023-11-13T10:15:00+00:00"
    undated = {"resourceType": "Patient", "id": "u", "meta": {"lastUpdated": "2022-02-02T02:02:02Z"}}
    assert now_of(PATIENT, undated)[0].isoformat() == "2022-02-02T02:15:00+00:00"
    assert now_of(PATIENT) == (worlds.hospital.NOW, "the default, because the data has no dates")
    assert now_of(observation("y", effectiveDateTime="2023"))[1].startswith("the default")


@given(st.datetimes(datetime(1950, 1, 1), datetime(2100, 1, 1)))
def test_the_present_is_after_everything(moment: datetime) -> None:
    now, _ = now_of(observation("o", effectiveDateTime=moment.replace(tzinfo=UTC).isoformat()))
    assert 0 < (now - moment.replace(tzinfo=UTC)).total_seconds() <= 900
    assert now.minute % 15 == now.second == now.microsecond == 0


def test_given_present(tmp_path: Path) -> None:
    source = write(tmp_path / "p.ndjson", PATIENT)
    reports: list[ImportReport] = []
    now = datetime.fromisoformat("2030-05-05T05:05:05+02:00")
    with worlds.import_files(source, now=now, on_report=reports.append) as world:
        assert world.now == now
    assert reports[0].now_source == "as given"
    with pytest.raises(WorldError, match="time zone"):
        worlds.import_files(source, now=datetime(2030, 1, 1))


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_no_bytes_do_more_than_complain(tmp_path_factory: pytest.TempPathFactory, rows: list[bytes]) -> None:
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "x.ndjson").write_bytes(b"\n".join(rows))
    with pytest.raises(WorldError):
        worlds.import_files(folder, out=folder / "w.sqlite")
    assert [path.name for path in folder.iterdir()] == ["x.ndjson"]


def test_the_official_patients(shared_dir: Path, tmp_path: Path) -> None:
    reports: list[ImportReport] = []
    source = shared_dir / "medagentbench"
    with worlds.import_files(source, out=tmp_path / "w.sqlite", on_report=reports.append) as world:
        assert world.manifest.counts == {"Observation": 500, "Patient": 500}
        assert world.now.isoformat() == "2023-11-13T10:15:00+00:00"
        assert world.manifest.name == "medagentbench"
        originals = [json.loads(line) for line in (source / "Patient.ndjson").read_text().splitlines()]
        stored = [json.loads(body) for body in world.resources("Patient")]
    assert (reports[0].dangling, reports[0].altered) == (0, 0)
    assert [p["name"] for p in stored] == [p["name"] for p in originals]


def test_imported_world_opens_by_path_in_another_object(tmp_path: Path) -> None:
    with worlds.import_files(write(tmp_path / "p.ndjson", PATIENT), out=tmp_path / "w.sqlite") as world:
        assert World.open(tmp_path / "w.sqlite").manifest == world.manifest


@pytest.mark.parametrize("batches", [0, 2])
def test_full_disk_is_not_the_datas_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int) -> None:
    source = write(tmp_path / "in" / "p.ndjson", *({"resourceType": "Patient", "id": f"p{n}"} for n in range(5000)))
    fill_after(batches, monkeypatch)
    with pytest.raises(WorldError, match=r"^cannot write a world to .*disk is full$"):
        worlds.import_files(source, out=tmp_path / "w.sqlite")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_target_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="is a folder"):
        worlds.import_files(write(tmp_path / "p.ndjson", PATIENT), out=tmp_path)
