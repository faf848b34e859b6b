"""Credentials of a FHIR server are sent with all requests, and no output contains them."""

from __future__ import annotations

import base64
import json
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from fhir_gym.errors import InfraError
from fhir_gym.fhir import World
from fhir_gym.fhir.adapters.http import create_app
from fhir_gym.http_client import RetryPolicy
from fhir_gym.rollouts import read_rollouts
from tests.cli.conftest import Cli
from tests.fhir.guarded_server import FailingServer, GuardedServer
from tests.worlds.serving import served

TOKEN, PASSWORD, KEY = "t0ken-0123456789", 'p4ss/"word"', "k3y-0123456789ab"
BASIC = base64.b64encode(f"me:{PASSWORD}".encode()).decode()
SECRETS = (TOKEN, PASSWORD, json.dumps(PASSWORD)[1:-1], KEY, BASIC)
ACCESS = ("--fhir-token-from-env", "TOKEN", "--fhir-header-from-env", "X-Key:KEY")
CURIOUS = ("--agent", "scripted", "--set", 'script=["GET /Basic/echo", "GET /Patient/none"]')
RUN = ("rollout", "FHIRAgent/Appointment-v0", "--tasks", "02a", "--variations", "0")


@pytest.fixture
def guarded(hospital: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, GuardedServer]]:
    """A server that requires a token and a key."""
    for name, value in (("TOKEN", TOKEN), ("PASSWORD", PASSWORD), ("KEY", KEY)):
        monkeypatch.setenv(name, value)
    app = GuardedServer(create_app(hospital), {"authorization": f"Bearer {TOKEN}", "x-key": KEY})
    with served(app) as url:
        yield url, app


def found_in(*texts: str) -> list[str]:
    return [secret for secret in SECRETS if any(secret in text for text in texts)]


def test_a_rollout_with_credentials(cli: Cli, guarded: tuple[str, GuardedServer], tmp_path: Path) -> None:
    url, out = guarded[0], tmp_path / "r.jsonl"
    done = cli(*RUN, *CURIOUS, "--fhir-server", url, *ACCESS, "--out", out)
    assert done.code == 0, done.err
    assert "HTTP 200 OK" in out.read_text() and "Bearer …" not in out.read_text()
    assert not found_in(done.out, done.err, out.read_text())


def test_basic_authentication(cli: Cli, guarded: tuple[str, GuardedServer], tmp_path: Path) -> None:
    url, app = guarded
    app.headers = {"authorization": f"Basic {BASIC}"}
    out, access = tmp_path / "r.jsonl", ("--fhir-user", "me:PASSWORD")
    done = cli(*RUN, *CURIOUS, "--fhir-server", url, *access, "--out", out)
    assert done.code == 0, done.err
    assert not found_in(done.out, done.err, out.read_text())
    both = cli(*RUN, "--fhir-server", url, *ACCESS, *access, "--out", tmp_path / "other.jsonl")
    assert both.code == 2 and "'authorization' twice" in both.err


def test_a_server_that_quotes_credentials_when_it_refuses_or_fails(
    cli: Cli, guarded: tuple[str, GuardedServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, app = guarded
    out = tmp_path / "r.jsonl"
    app.headers["x-key"] = "another"
    for failing in (False, True):
        app.failing = failing
        refused = cli(*RUN, "--fhir-server", url, *ACCESS, "--out", out)
        assert refused.code == 1 and url in refused.err and not found_in(refused.out, refused.err)
        app.headers["x-key"] = KEY
    monkeypatch.setenv("FHIR_GYM_DEBUG", "1")
    with pytest.raises(InfraError) as caught:
        cli(*RUN, "--fhir-server", url, *ACCESS, "--out", out)
    assert not found_in(*traceback.format_exception(caught.value)) and not out.exists()


def test_several_servers(cli: Cli, hospital: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fhir_gym.fhir.adapters.remote_client.RETRIES", RetryPolicy(0))
    monkeypatch.setattr("fhir_gym.fhir.adapters.remote.SETTLING", 0.0)
    failing = FailingServer(create_app(hospital))
    out = tmp_path / "r.jsonl"
    with served(create_app(hospital)) as good, served(failing) as bad:
        servers = ("--fhir-server", good, "--fhir-server", bad, "--fhir-header", f"X-Key: {KEY}")
        done = cli(*RUN, *CURIOUS, "--repeats", 3, *servers, "--out", out)
        refused = cli(*RUN, "--workers", 2, *servers, "--out", tmp_path / "other.jsonl")
    assert done.code == 0, done.err
    assert f"{bad} is used no more in this run: {bad} is down" in done.err
    assert f"retired during the run: {bad}" in done.out
    assert [rollout.repeat for rollout in read_rollouts(out)] == [0, 1, 2]
    assert refused.code == 2 and "repeat --fhir-server" in refused.err


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--fhir-user", f"me:{TOKEN}"), "is not set"),
        (("--fhir-token-from-env", TOKEN), "is not set"),
        (("--fhir-header", TOKEN), "Name: value"),
        (("--fhir-header", f"X Key: {TOKEN}"), "HTTP forbids"),
        (("--fhir-server", f"http://me:{TOKEN}@host/fhir"), "--fhir-user"),
    ],
)
def test_wrong_options_are_not_quoted(cli: Cli, options: tuple[str, str], complaint: str, tmp_path: Path) -> None:
    server = () if "--fhir-server" in options else ("--fhir-server", "http://127.0.0.1:1/fhir")
    refused = cli(*RUN, *server, *options, "--out", tmp_path / "r.jsonl")
    assert refused.code in (1, 2) and complaint in refused.err and not found_in(refused.out, refused.err)


def test_credentials_without_a_server_are_refused(cli: Cli, tmp_path: Path) -> None:
    refused = cli(*RUN, "--fhir-header", "X-Key: a", "--out", tmp_path / "r.jsonl")
    assert refused.code == 2 and "need a fhir_server" in refused.err
