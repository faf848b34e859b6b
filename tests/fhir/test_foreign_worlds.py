"""Foreign or manipulated world files are refused with a one-line error, and no code in them runs."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fhir_gym.errors import WorldError
from fhir_gym.fhir import Request, Response, World, WorldBuilder
from tests.fhir.writing import observation, patient

ENDLESS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n FROM r"
SCHEMA = {
    "a view for the resources": ("DROP TABLE resource", f"CREATE VIEW resource AS {ENDLESS}"),
    "a view for the manifest": ("DROP TABLE manifest", f"CREATE VIEW manifest(body) AS {ENDLESS} WHERE n < 0"),
    "a view for an index table": ("DROP TABLE token", f"CREATE VIEW token AS {ENDLESS}"),
    "a view more": (f"CREATE VIEW other AS {ENDLESS}",),
    "a trigger": ("CREATE TRIGGER t AFTER INSERT ON resource BEGIN DELETE FROM resource; END",),
    "an index less": ("DROP INDEX resource_type",),
    "an index more": ("CREATE INDEX more ON resource(upper(body))",),
    "a table less": ("DROP TABLE uri",),
    "many tables": (
        "PRAGMA writable_schema=ON",
        "INSERT INTO sqlite_schema WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 20000) "
        "SELECT 'table', 't' || n, 't' || n, n, 'CREATE TABLE t' || n || '(a)' FROM r",
    ),
    "a computed column": ("ALTER TABLE resource ADD COLUMN z AS (hex(zeroblob(100000000)))",),
    "a column more": ("ALTER TABLE resource ADD COLUMN z",),
    "a virtual table": ("CREATE VIRTUAL TABLE f USING fts5(a)",),
    "one table's pages for another": (
        "PRAGMA writable_schema=ON",
        "UPDATE sqlite_schema SET rootpage=(SELECT rootpage FROM sqlite_schema WHERE name='uri') WHERE name='string'",
    ),
    "pages beyond the end": (
        "PRAGMA writable_schema=ON",
        "UPDATE sqlite_schema SET rootpage=99999999 WHERE name='resource'",
    ),
    "a view for the statistics": (
        "PRAGMA writable_schema=ON",
        "UPDATE sqlite_schema SET type='view', rootpage=0, "
        f"sql='CREATE VIEW sqlite_stat1(tbl,idx,stat) AS {ENDLESS}' WHERE name='sqlite_stat1'",
    ),
    "another program's file": ("PRAGMA application_id=7",),
    "another format": ("PRAGMA user_version=99",),
    "a journal beside it": ("PRAGMA journal_mode=WAL",),
    "larger pages": ("PRAGMA page_size=65536", "VACUUM"),
    "smaller pages": ("PRAGMA page_size=512", "VACUUM"),
    "no manifest": ("DELETE FROM manifest",),
    "two manifests": ("INSERT INTO manifest SELECT body FROM manifest",),
    "a huge manifest": ("UPDATE manifest SET body=hex(zeroblob(3000000))",),
    "half a manifest": ("UPDATE manifest SET body=substr(body, 1, 20)",),
    "a manifest of bytes": ("UPDATE manifest SET body=CAST(body AS BLOB)",),
    "more resources than counted": (
        "INSERT INTO resource SELECT rid + 1000, type, id || 'x', version, updated, deleted, method, body "
        "FROM resource",
    ),
    "fewer resources than counted": ("DELETE FROM resource WHERE rid = (SELECT max(rid) FROM resource)",),
    "index rows of resources beyond": ("UPDATE token SET rid = rid + 1000",),
    "index rows of resources before": ("UPDATE string SET rid = -rid",),
    "index rows of words": ("UPDATE reference SET rid = 'r' || rid",),
    "numbers far apart": ("UPDATE resource SET rid = rid + 9000000000000000000",),
}
MANIFESTS: dict[str, dict[str, Any]] = {
    "a name that a terminal obeys": {"name": "\x1b[2Jw\nx"},
    "a count too large": {"counts": {"Patient": 10**20}},
    "a negative count": {"counts": {"Patient": -5}},
    "a count of no type": {"counts": {"Person of interest": 1}},
    "a next id below 1": {"next_id": -5},
    "a next id beyond SQLite": {"next_id": 10**19},
    "the end of time": {"now": "9999-12-31T23:59:59Z"},
    "the beginning of time": {"now": "0001-01-01T00:00:00Z"},
    "no time zone": {"now": "2023-01-01T00:00:00"},
    "a hash of a million digits": {"content_hash": "0" * 1_000_000},
    "a member more": {"more": 1},
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("foreign") / "good.sqlite"
    with WorldBuilder(path, name="good", seed=None, now=datetime(2023, 11, 13, tzinfo=UTC)) as builder:
        for number in range(20):
            builder.add(patient(f"p{number}", f"Doe{number}"))
            builder.add(observation(f"Patient/p{number}", f"o{number}"))
    return path


@pytest.fixture
def changed(good: Path, tmp_path: Path) -> Callable[..., Path]:
    """Copy the good world and run SQL statements on the copy."""

    def change(*statements: str, values: tuple[Any, ...] = ()) -> Path:
        path = tmp_path / "changed.sqlite"
        path.write_bytes(good.read_bytes())
        with sqlite3.connect(path, isolation_level=None) as db:
            for statement in statements:
                db.execute(statement, values)
        db.close()
        return path

    return change


ROWS = {
    "half a text": "UPDATE resource SET body = substr(body, 1, length(body) - 1)",
    "nothing": "UPDATE resource SET body = x''",
    "a list": "UPDATE resource SET body = CAST('[1]' AS BLOB)",
    "text": "UPDATE resource SET body = CAST(body AS TEXT)",
    "another id": """UPDATE resource SET body = CAST(replace(CAST(body AS TEXT), '"id":"', '"id":"x') AS BLOB)""",
    "a second id": "UPDATE resource SET body = CAST(substr(CAST(body AS TEXT), 1, length(body) - 1) AS BLOB) "
    """|| CAST(',"id":"x"}' AS BLOB)""",
    "another type": "UPDATE resource SET body = CAST(replace(CAST(body AS TEXT), type, 'Group') AS BLOB)",
    "another type in the row": "UPDATE resource SET type = 'Group'",
    "no UTF-8": "UPDATE resource SET body = CAST(replace(CAST(body AS TEXT), '}', '') AS BLOB) || x'ff227d7d'",
    "no UTF-8 in ids": "UPDATE resource SET id = CAST(x'ff0a1b' AS TEXT) || rid",
    "deep nesting": "UPDATE resource SET body = CAST('{\"a\":' || replace(hex(zeroblob(9999)), '0', '[') AS BLOB)",
    "huge": "UPDATE resource SET body = zeroblob(70000000) WHERE rid < 3",
    "large": "UPDATE resource SET body = zeroblob(17000000) WHERE rid < 3",
    "labels of text": "UPDATE resource SET body = CAST(json_set(CAST(body AS TEXT), '$.meta.tag', 'x') AS BLOB)",
    "a narrative that is none": "UPDATE resource SET body = CAST(json_set(CAST(body AS TEXT), '$.text', 5) AS BLOB)",
    "no meta": "UPDATE resource SET body = CAST(json_remove(CAST(body AS TEXT), '$.meta') AS BLOB)",
    "another version": "UPDATE resource SET version = version + 1",
    "words for numbers": "UPDATE resource SET version = 'one', updated = 'now', deleted = 'no'",
    "a time beyond time": "UPDATE resource SET updated = 9223372036854775807",
    "a deletion": "UPDATE resource SET deleted = 1",
    "a number for a method": "UPDATE resource SET method = x'00'",
}


def refused(path: Path) -> str:
    """Open the file, and return the error, which must be one line and contain the file's name."""
    with pytest.raises(WorldError) as caught:
        World.open(path)
    said = str(caught.value)
    assert str(path) in said and said.isprintable() and len(said) < 400 + len(str(path))
    return said


@pytest.mark.parametrize("change", SCHEMA)
def test_a_file_of_another_shape_is_refused(changed: Callable[..., Path], change: str) -> None:
    refused(changed(*SCHEMA[change]))


@pytest.mark.parametrize("change", MANIFESTS)
def test_a_manifest_that_cannot_be_is_refused(good: Path, changed: Callable[..., Path], change: str) -> None:
    with World.open(good) as world:
        manifest = world.manifest.model_dump(mode="json") | MANIFESTS[change]
    assert "manifest" in refused(changed("UPDATE manifest SET body=?", values=(json.dumps(manifest),)))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "it is not a file" in refused(tmp_path / "pipe")


def test_text_in_utf_16_is_refused(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "utf16.sqlite"
    data = bytearray(good.read_bytes())
    data[59] = 2
    path.write_bytes(data)
    refused(path)


def test_the_message_names_the_problem(changed: Callable[..., Path]) -> None:
    assert "view 'resource' has a different definition" in refused(changed(*SCHEMA["a view for the resources"]))
    assert "index 'resource_type' is missing" in refused(changed(*SCHEMA["an index less"]))
    assert "view 'other', which worlds do not have" in refused(changed(*SCHEMA["a view more"]))


def ways(world: World) -> Iterator[Callable[[], Any]]:
    """Yield every way to read a resource."""

    def ask(method: str, path: str, query: str = "", body: bytes = b"") -> Callable[[], Any]:
        def act() -> Response:
            with world.session() as session:
                headers = {"content-type": "application/fhir+json"}
                return session.handle(Request(method, path, query, headers, body))

        return act

    yield lambda: world.read("Patient", "p0")
    yield lambda: list(world.resources())
    yield ask("GET", "/Patient/p0")
    yield ask("GET", "/Patient/p0/_history")
    yield ask("GET", "/Patient/p0/$everything")
    yield ask("GET", "/_history")
    yield ask("GET", "/Patient", "_count=100")
    yield ask("GET", "/Patient/p0", "_summary=text")
    yield ask("GET", "/Patient", "_elements=name")
    yield ask("GET", "/Observation", "_include=Observation:subject")
    yield ask("PUT", "/Patient/p0", "", b'{"resourceType": "Patient", "id": "p0"}')
    yield ask("DELETE", "/Patient/p0")
    yield world.verify


@pytest.mark.parametrize("change", ROWS)
def test_a_resource_that_contradicts_its_row_is_refused(changed: Callable[..., Path], change: str) -> None:
    """Every way to read the resource raises the same error."""
    path, refusals = changed(ROWS[change]), 0
    for number in range(len(list(ways(World.open(path))))):
        with World.open(path) as world:
            way = list(ways(world))[number]
            try:
                found = way()
            except WorldError as error:
                assert str(path) in str(error) and str(error).isprintable() and len(str(error)) < 400 + len(str(path))
                refusals += 1
            else:
                assert found is None or found.status in (201, 404) or not found.json().get("entry"), "it is not shown"
    assert refusals >= 3


@pytest.mark.parametrize("statement", ["REINDEX", "ANALYZE", "DELETE FROM sqlite_stat1", "VACUUM"])
def test_harmless_differences_are_accepted(changed: Callable[..., Path], statement: str) -> None:
    with World.open(changed(statement)) as world:
        assert len(world.search("Observation", subject="Patient/p3")) == 1
