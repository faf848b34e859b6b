"""An import from a live server is atomic and resumable, and its errors are clear."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fhir_gym import worlds
from fhir_gym.errors import ArgumentError, UnknownNameError, WorldError
from fhir_gym.fhir import Credentials, World
from fhir_gym.fhir.adapters.http import create_app
from fhir_gym.http_server import bind
from fhir_gym.types import Resource
from fhir_gym.worlds import ImportReport, importing
from fhir_gym.worlds.cache import VARIABLE
from fhir_gym.worlds.downloading import DownloadJournal
from fhir_gym.worlds.fhir_client import ExpiredError, FhirClient
from tests.worlds.serving import Watched, served

_IMPORT = (
    "import sys; from fhir_gym import worlds; worlds.import_server(sys.argv[1], out=sys.argv[2], page_size={size})"
)


def contents(world: World) -> dict[str, Any]:
    return {f"{r['resourceType']}/{r['id']}": r for r in map(json.loads, world.resources())}


@pytest.fixture(scope="module")
def hospital_server(hospital: World) -> Iterator[tuple[str, Watched]]:
    app = Watched(create_app(hospital))
    with served(app) as url:
        yield url, app


# complete imports


@pytest.mark.slow
def test_a_whole_server(hospital: World, hospital_server: tuple[str, Watched], tmp_path: Path) -> None:
    url, _ = hospital_server
    told: list[tuple[int, int]] = []
    reports: list[ImportReport] = []
    total = hospital.manifest.total
    with worlds.import_server(
        url + "/",
        out=tmp_path / "w.sqlite",
        name="copy",
        page_size=300,
        progress=lambda done, of: told.append((done, of)),
        on_report=reports.append,
    ) as world:
        assert world.manifest.counts == hospital.manifest.counts
        assert world.manifest.name == "copy"
        assert contents(world) == contents(hospital)
    assert (total, total) in told and told[-1] == (total, total)
    assert (reports[0].source, reports[0].doubles, reports[0].dangling, reports[0].notes) == (url, 0, 0, ())
    assert [path.name for path in tmp_path.iterdir()] == ["w.sqlite"], "the spool is gone"


def test_into_the_cache_by_name(
    hospital_server: tuple[str, Watched], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    url, app = hospital_server
    app.seen.clear()
    with worlds.import_server(url, types=["Patient", "Organization"], credentials=Credentials({"X-Key": "k"})) as world:
        assert list(world.manifest.counts) == ["Organization", "Patient"]
        name = world.manifest.name
    assert name.startswith("127-0-0-1-")
    with worlds.load(name) as again:
        assert again.manifest == world.manifest
    assert not [page for page in app.pages() if "Observation" in page]
    assert app.headers[-1]["x-key"] == "k"


# kill and resume


def _wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.005)


def _kill_after(url: str, out: Path, size: int, bytes_there: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", _IMPORT.format(size=size), url, str(out)])
    folder = out.with_name(f".{out.name}.spool")
    _wait_for(lambda: sum(f.stat().st_size for f in folder.glob("*.ndjson")) > bytes_there, process)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not out.exists()


@pytest.mark.slow
def test_resumes_after_a_kill(hospital: World, tmp_path: Path) -> None:
    out = tmp_path / "w.sqlite"
    app = Watched(create_app(hospital), delay=0.003)
    with served(app) as url:
        _kill_after(url, out, 50, 600_000)
        with worlds.import_server(url, out=out, page_size=50) as world:
            assert contents(world) == contents(hospital)
            assert len(list(world.resources())) == hospital.manifest.total
    pages = app.pages()
    assert len(pages) - len(set(pages)) <= 1, "at most the page in flight at the kill is fetched again"
    assert [path.name for path in tmp_path.iterdir()] == ["w.sqlite"]


@pytest.mark.slow
def test_begins_a_type_again_when_the_server_forgot_the_search(hospital: World, tmp_path: Path) -> None:
    out, journal = tmp_path / "w.sqlite", tmp_path / ".w.sqlite.spool" / "journal.jsonl"
    with served(Watched(create_app(hospital), delay=0.003)) as url:
        _kill_after(url, out, 50, 900_000)
    last = json.loads(journal.read_text().splitlines()[-1])
    assert last["next"] and last["resources"], "a search was open"
    restarted = Watched(create_app(hospital))
    with served(restarted, port=int(url.split(":")[2].split("/")[0])), worlds.import_server(url, out=out) as world:
        assert contents(world) == contents(hospital)
    assert restarted.pages()[:2] == [f"/fhir?{last['next'].split('?')[1]}", f"/fhir/{last['type']}?_count=500"]


@pytest.mark.exhaustive
def test_a_hundred_thousand_resources_survive_two_kills(tmp_path: Path) -> None:
    from benchmarks.large_world import large_world

    path = large_world(101_000, 50)
    code = f"""
import uvicorn
from fhir_gym.fhir import Credentials, World
from fhir_gym.fhir.adapters.http import create_app
from fhir_gym.http_server import bind
listener = bind("127.0.0.1", 0)
print(listener.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(create_app(World.open({str(path)!r})), log_level="error")).run(sockets=[listener])
"""
    server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/fhir"
        out = tmp_path / "w.sqlite"
        for bytes_there in (20_000_000, 60_000_000):
            _kill_after(url, out, 500, bytes_there)
        start = time.perf_counter()
        with worlds.import_server(url, out=out) as world, World.open(path) as origin:
            print(f"the rest in {time.perf_counter() - start:.1f} s")
            assert world.manifest.counts == origin.manifest.counts == {"Observation": 101_000, "Patient": 50}
            assert set(world.resources()) == set(origin.resources())
    finally:
        server.kill()
        server.communicate()


# faulty servers


def patient(number: int) -> Resource:
    return {"resourceType": "Patient", "id": f"p{number}"}


def bundle(*resources: Resource, next: str | None = None) -> Resource:
    links = [{"relation": "next", "url": next}] if next else []
    return {"resourceType": "Bundle", "type": "searchset", "link": links, "entry": [{"resource": r} for r in resources]}


def capability(*types: str, version: str = "4.0.1") -> Resource:
    resource = [{"type": name, "interaction": [{"code": "read"}, {"code": "search-type"}]} for name in types]
    rest = [{"mode": "server", "resource": [*resource, {"type": "Basic", "interaction": [{"code": "read"}]}]}]
    return {"resourceType": "CapabilityStatement", "fhirVersion": version, "rest": rest}


class Scripted:
    """A server of Patients with scripted responses by path and query."""

    def __init__(self, **answers: list[Any]) -> None:
        self.answers = {"metadata": [capability("Patient")], "count": [bundle() | {"total": 2}], **answers}

    def answer(self, request: Request) -> Response:
        path, query = request.url.path.removeprefix("/fhir/"), request.url.query
        key = (
            "metadata"
            if path == "metadata"
            else "count"
            if "_summary" in query
            else "more"
            if "page" in query
            else "first"
        )
        script = self.answers[key]
        found = script.pop(0) if len(script) > 1 else script[0]
        return found if isinstance(found, Response) else JSONResponse(found)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The recorded waiting times; the tests do not really wait."""
    waited: list[float] = []
    monkeypatch.setattr(
        importing, "FhirClient", lambda url, credentials: FhirClient(url, credentials=credentials, pause=waited.append)
    )
    return waited


def run(tmp_path: Path, **answers: list[Any]) -> tuple[list[str], ImportReport]:
    script, reports = Scripted(**answers), list[ImportReport]()
    app = Starlette(routes=[Route("/{path:path}", script.answer)])
    with served(app) as url, worlds.import_server(url, out=tmp_path / "w.sqlite", on_report=reports.append) as world:
        return world.ids("Patient"), reports[0]


PAGES: dict[str, list[Any]] = {"first": [bundle(patient(1), next="?page=2")], "more": [bundle(patient(2))]}


def test_passing_failures_are_waited_out(tmp_path: Path, pauses: list[float]) -> None:
    busy = [Response(status_code=503), Response(status_code=429, headers={"retry-after": "7"}), Response("x", 500)]
    ids, _ = run(tmp_path, first=[*busy, *PAGES["first"]], more=[Response(status_code=504), *PAGES["more"]])
    assert ids == ["p1", "p2"]
    assert pauses == [0.5, 7.0, 2.0, 0.5]


def test_permanent_failures_keep_the_downloaded_records(tmp_path: Path, pauses: list[float]) -> None:
    outcome = {"resourceType": "OperationOutcome", "issue": [{"diagnostics": "the database is away"}]}
    with pytest.raises(WorldError, match=r"7 attempts \(status 503: the database is away\); .* the same command"):
        run(tmp_path, first=PAGES["first"], more=[JSONResponse(outcome, 503)])
    assert sum(pauses) > 25
    assert (tmp_path / ".w.sqlite.spool" / "Patient.ndjson").read_text().count("\n") == 1
    assert not (tmp_path / "w.sqlite").exists()


def test_counts_are_verified_and_the_next_attempt_fetches_again(tmp_path: Path, pauses: list[float]) -> None:
    script = Scripted(count=[bundle() | {"total": 3}], **PAGES)
    with served(Starlette(routes=[Route("/{path:path}", script.answer)])) as url:
        with pytest.raises(WorldError, match="Patient: fetched 2, the server has 3"):
            worlds.import_server(url, out=tmp_path / "w.sqlite")
        assert not (tmp_path / "w.sqlite").exists()
        script.answers |= {"first": [bundle(patient(1), patient(3), next="?page=2")]}
        with worlds.import_server(url, out=tmp_path / "w.sqlite") as world:
            assert world.ids("Patient") == ["p1", "p3", "p2"]


def test_a_server_that_does_not_count(tmp_path: Path, pauses: list[float]) -> None:
    ids, report = run(tmp_path, count=[bundle()], **PAGES)
    assert ids == ["p1", "p2"]
    assert report.notes == ("the server reports no totals to verify the counts of: Patient",)


def test_pages_that_overlap_double_nothing(tmp_path: Path, pauses: list[float]) -> None:
    ids, report = run(tmp_path, first=PAGES["first"], more=[bundle(patient(1), patient(2))])
    assert (ids, report.doubles) == (["p1", "p2"], 1)


def test_links_lead_nowhere_else(tmp_path: Path, pauses: list[float]) -> None:
    far = bundle(patient(1), next="http://example.org:9/fhir/Patient?page=2")
    ids, _ = run(tmp_path, first=[far], more=PAGES["more"])
    assert ids == ["p1", "p2"], "asked for at the server that was given"


def test_absolute_references_to_the_server_become_relative(tmp_path: Path, pauses: list[float]) -> None:
    script = Scripted(count=[bundle() | {"total": 1}])
    with served(Starlette(routes=[Route("/{path:path}", script.answer)])) as url:
        script.answers["first"] = [
            bundle(patient(1) | {"managingOrganization": {"reference": f"{url}/Organization/o"}})
        ]
        with worlds.import_server(url, out=tmp_path / "w.sqlite") as world:
            stored = world.read("Patient", "p1") or {}
    assert stored["managingOrganization"] == {"reference": "Organization/o"}


def test_only_matches_count(tmp_path: Path, pauses: list[float]) -> None:
    page = bundle(patient(1), patient(2))
    page["entry"].append({"resource": {"resourceType": "OperationOutcome"}, "search": {"mode": "outcome"}})
    assert run(tmp_path, first=[page])[0] == ["p1", "p2"]


def test_types_of_another_version_are_left_out(tmp_path: Path, pauses: list[float]) -> None:
    _, report = run(tmp_path, metadata=[capability("Patient", "Transport")], **PAGES)
    assert report.notes == ("skipped types that R4 does not define: Transport",)


@pytest.mark.parametrize(
    ("answers", "complaint"),
    [
        ({"metadata": [Response("<html>", 200)]}, "is not a FHIR server: .*is not JSON"),
        ({"metadata": [bundle()]}, "is not a FHIR server: .*not a CapabilityStatement"),
        ({"metadata": [[1]]}, "is not a FHIR server: .*not a JSON object"),
        ({"metadata": [capability("Patient", version="5.0.0")]}, "FHIR 5.0.0; only R4"),
        ({"metadata": [Response(status_code=401)]}, r"requires credentials \(status 401\)"),
        ({"metadata": [Response(status_code=404)]}, "has status 404"),
        ({"metadata": [Response(status_code=301, headers={"location": "http://x/"})]}, "redirects to http://x/"),
        ({"count": [Response(status_code=400)]}, "has status 400"),
        ({"count": [Response(status_code=404)]}, "cannot be searched for Patient"),
        ({"first": [capability()]}, "is not a Bundle"),
        ({"first": [bundle({"resourceType": "Group", "id": "g"})]}, "that is not a Patient"),
        ({"first": PAGES["first"], "more": [bundle(patient(2), next="?page=2")]}, "points to the same page"),
        (
            {"first": PAGES["first"], "more": [bundle(patient(2), next="?page=3"), bundle(patient(3), next="?page=2")]},
            "cannot import Patient of .* does not end: .* is repeated after 3 pages",
        ),
        (
            {"first": PAGES["first"], "more": [bundle(patient(2), next=f"?page={n}") for n in range(3, 40)]},
            "does not end: the last 10 pages had no new resources",
        ),
        (
            {"first": PAGES["first"], "more": [bundle(next=f"?page={n}") for n in range(3, 40)]},
            "does not end: the last 10 pages had no new resources",
        ),
        (
            {
                "first": PAGES["first"],
                "more": [bundle(*(patient(400 * n + m) for m in range(400)), next=f"?page={n + 3}") for n in range(9)],
            },
            r"does not end: the server sent more than 1,004 resources",
        ),
        ({"first": [bundle(patient(1), next="http://[::1")]}, r"invalid next link 'http://\[::1'"),
        ({"first": [bundle(patient(1), next="?page=" + "9" * 20_000)]}, "has 20,006 characters"),
        ({"metadata": [Response(b"x", headers={"content-encoding": "zstd"})]}, "has an unsupported encoding"),
        ({"first": PAGES["first"], "more": [Response(status_code=410)]}, "forgot the search for Patient 3 times"),
        ({"first": [Response(status_code=410)]}, "was not found"),
        ({"first": [bundle({"resourceType": "Patient"})]}, "Patient without an id"),
        ({"count": [bundle() | {"total": 0}]}, "it has no resources"),
    ],
)
def test_invalid_imports(tmp_path: Path, pauses: list[float], answers: dict[str, list[Any]], complaint: str) -> None:
    with pytest.raises(WorldError, match=complaint):
        run(tmp_path, **answers)
    assert not (tmp_path / "w.sqlite").exists()


def test_an_unreachable_server(tmp_path: Path) -> None:
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    listener.close()
    with pytest.raises(WorldError, match=rf"cannot reach http://127.0.0.1:{port}/fhir: .*[Rr]efused"):
        worlds.import_server(f"http://user:secret@127.0.0.1:{port}/fhir", out=tmp_path / "w.sqlite")


@pytest.mark.parametrize(
    "url", ["ftp://x/fhir", "file:///etc/passwd", "http://", "x", "http://x:y/", "http://x/fhir?a=b"]
)
def test_invalid_urls(tmp_path: Path, url: str) -> None:
    with pytest.raises(ArgumentError, match=r"invalid URL|base URL of a FHIR server"):
        worlds.import_server(url, out=tmp_path / "w.sqlite")


def test_unknown_types(hospital_server: tuple[str, Watched], tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'Patient'"):
        worlds.import_server(hospital_server[0], types=["Patiend"], out=tmp_path / "w.sqlite")


def test_credentials_are_sent_and_never_shown(tmp_path: Path) -> None:
    app = Watched(Starlette(routes=[Route("/{path:path}", Scripted(**PAGES).answer)]))
    with served(app) as url:
        reports: list[ImportReport] = []
        secret = url.replace("http://", "http://me:secret@")
        with worlds.import_server(secret, out=tmp_path / "w.sqlite", on_report=reports.append) as world:
            assert "secret" not in repr(world.manifest) and "secret" not in repr(reports)
    assert {headers.get("authorization") for headers in app.headers} == {"Basic bWU6c2VjcmV0"}


# the download journal


def test_a_torn_journal_and_a_longer_file(tmp_path: Path) -> None:
    journal = DownloadJournal(tmp_path / "s", "http://a")
    state = journal.add(journal.begin("Patient", "u1"), [patient(1)], "u2")
    with journal.file("Patient").open("ab") as file:
        file.write(b'{"resourceType":"Pat')
    with (tmp_path / "s" / "journal.jsonl").open("ab") as file:
        file.write(b'{"type": "Patient", "byt')
    again = DownloadJournal(tmp_path / "s", "http://a")
    assert again.state("Patient") == state
    again.add(state, [patient(2)], None)
    rows = again.file("Patient").read_bytes().splitlines()
    assert [json.loads(row) for row in rows] == [patient(1), patient(2)]
    known = DownloadJournal(tmp_path / "s", "http://a").state("Patient")
    assert known is not None and (known.resources, known.next) == (2, None)


def test_a_journal_without_its_file_restarts(tmp_path: Path) -> None:
    journal = DownloadJournal(tmp_path / "s", "http://a")
    journal.add(journal.begin("Patient", "u1"), [patient(1)], "u2")
    journal.file("Patient").unlink()
    assert DownloadJournal(tmp_path / "s", "http://a").state("Patient") is None


def test_a_journal_of_another_server_is_not_touched(tmp_path: Path) -> None:
    DownloadJournal(tmp_path / "s", "http://a")
    with pytest.raises(WorldError, match="unfinished import of http://a"):
        DownloadJournal(tmp_path / "s", "http://b")


def test_a_journal_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WorldError, match="cannot store downloaded pages"):
        DownloadJournal(tmp_path / "file" / "s", "http://a")


def test_expired_is_a_world_error() -> None:
    assert issubclass(ExpiredError, WorldError)
