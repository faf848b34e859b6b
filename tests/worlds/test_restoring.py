"""The changes of an interrupted episode are undone by hand, from the journal or by comparison with the world."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from fhir_gym import worlds
from fhir_gym.errors import InfraError, WorldError
from fhir_gym.fhir import Request, World
from fhir_gym.fhir.adapters.remote import RemoteSession
from fhir_gym.fhir.adapters.server_lock import ServerLock
from fhir_gym.testing import serving
from tests.cli.conftest import Cli
from tests.cli.conftest import cli as cli  # a fixture
from tests.fhir.writing import patient

FHIR = {"content-type": "application/fhir+json"}


@pytest.fixture
def server(tiny_world: World) -> Iterator[str]:
    with serving(tiny_world) as url:
        yield url


def interrupted(server: str, world: World) -> None:
    """Leave the changes of a session that did not end."""
    session = RemoteSession(server, world)
    for method, path, resource in (("PUT", "/Patient/S2", patient("S2", "Changed")), ("POST", "/Patient", patient())):
        assert session.handle(Request(method, path, "", FHIR, json.dumps(resource).encode())).status in (200, 201)
    session._resources.close()


def changed(server: str) -> str:
    """Change a server without a journal: one resource of each kind of difference. Return the new resource."""
    assert httpx.delete(f"{server}/Patient/S1").status_code == 200
    assert httpx.put(f"{server}/Patient/S2", json=patient("S2", "Changed"), headers=FHIR).status_code == 200
    new = httpx.post(f"{server}/Patient", json=patient(), headers=FHIR).json()
    return f"Patient/{new['id']}"


def test_the_journal_tells_what_to_undo(server: str, tiny_world: World) -> None:
    interrupted(server, tiny_world)
    report = worlds.restore(tiny_world, f"{server}/")
    assert report.server == server and len(report.resources) == 2 and "Patient/S2" in report.resources
    assert worlds.compare(tiny_world, server).equal
    assert worlds.restore(tiny_world, server).resources == ()


def test_a_comparison_tells_what_to_undo(server: str, tiny_world: World) -> None:
    new = changed(server)
    assert set(worlds.restore(tiny_world, server, comparison=worlds.compare(tiny_world, server)).resources) == {
        "Patient/S1",
        "Patient/S2",
        new,
    }
    comparison = worlds.compare(tiny_world, server)
    assert comparison.equal
    assert worlds.restore(tiny_world, server, comparison=comparison).resources == ()


def test_an_incomplete_comparison_changes_nothing(server: str, tiny_world: World) -> None:
    changed(server)
    comparison = worlds.compare(tiny_world, server, most=2)
    with pytest.raises(WorldError, match="has 3 differences, too many to restore"):
        worlds.restore(tiny_world, server, comparison=comparison)
    assert sum(worlds.compare(tiny_world, server).counts.values()) == 3


def test_a_server_in_use_is_not_restored(server: str, tiny_world: World) -> None:
    with ServerLock(server), pytest.raises(InfraError, match="is in use"):
        worlds.restore(tiny_world, server)


def test_the_command(server: str, tiny_world: World, cli: Cli, caplog: pytest.LogCaptureFixture) -> None:
    command = ("servers", "restore", tiny_world.path, server)
    interrupted(server, tiny_world)
    done = cli(*command)
    assert done.code == 0 and "restored Patient/S2\n" in done.out
    assert "interrupted" in caplog.text
    nothing = cli(*command)
    assert (nothing.code, nothing.out) == (0, f"nothing to restore on {server}\n") and "--from-world" in nothing.err
    changed(server)
    refused = cli(*command, "--from-world")
    assert refused.code == 2 and "create 1, replace 1 and delete 1 resources" in " ".join(refused.err.split())
    done = cli(*command, "--from-world", "--yes", "--json")
    assert done.code == 0 and len(json.loads(done.out)["resources"]) == 3
    assert worlds.compare(tiny_world, server).equal
