"""A session on a remote server undoes its writes, and a failure of the server never counts against the agent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from fhir_gym import get_task, run, task_keys
from fhir_gym.errors import InfraError
from fhir_gym.fhir import World, WorldBuilder
from fhir_gym.fhir.adapters.http import create_app
from fhir_gym.fhir.adapters.remote import RemoteSession
from fhir_gym.rollouts import Rollout
from fhir_gym.tasks import pack_ids
from fhir_gym.types import Resource
from tests.fhir.remote_writes import NOTE, WRITES, AnySession, bundle, furnish, send, state
from tests.fhir.writing import patient
from tests.property.scene import FHIR, NOW
from tests.worlds.serving import Watched, served


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fhir_gym.fhir.adapters.remote_client.sleep", lambda _: None)


@pytest.fixture
def remote(server: str, world: World) -> Iterator[RemoteSession]:
    session = RemoteSession(server, world)
    yield session
    session.close()


@pytest.fixture(scope="module")
def furnished(server: str) -> str:
    """A server that contains resources with labels and exact decimals."""
    furnish(server)
    return server


@pytest.mark.parametrize("name", WRITES)
def test_writes_are_undone(furnished: str, remote: RemoteSession, name: str) -> None:
    before = state(furnished)
    for response in WRITES[name](remote):
        assert response.status < 300, response.text
    changed = state(furnished) != before
    assert changed == (name != "create and delete")
    assert len(remote.changes()) == len(set((c.resource_type, c.id) for c in remote.changes()))
    remote.rollback()
    assert state(furnished) == before
    assert remote.changes() == []


def test_the_latest_versions_are_known(remote: RemoteSession) -> None:
    for family in ("One", "Two", "Three"):
        send(remote, "PUT", "/Patient/S1", patient("S1", family))
    assert [(version or {})["name"][0]["family"] for version in remote.versions("Patient", "S1", 2)] == ["Three", "Two"]
    assert remote.versions("Patient", "S1", 1) == [remote.read("Patient", "S1")]


def test_all_writes_are_undone_to_a_checkpoint(furnished: str, remote: RemoteSession) -> None:
    bare = state(furnished)
    WRITES["transaction"](remote)
    point, prepared = remote.checkpoint(), state(furnished)
    for _ in range(2):
        for write in WRITES.values():
            write(remote)
        assert state(furnished) != prepared
        remote.rollback(point)
        assert state(furnished) == prepared
        assert remote.changes(point) == []
    remote.close()
    assert state(furnished) == bare


def plain(session: AnySession) -> list[tuple[str, str, Any, Any]]:
    def content(resource: Resource | None) -> Any:
        return resource and {k: v for k, v in resource.items() if k not in ("meta", "id", "subject")}

    return [(c.kind, c.resource_type, content(c.before), content(c.after)) for c in session.changes()]


ON_THE_WORLD_ALONE = sorted(set(WRITES) - {"labels taken", "labels by update", "decimals", "create and delete"})


@pytest.mark.parametrize("name", ON_THE_WORLD_ALONE)
def test_changes_equal_those_of_an_embedded_session(remote: RemoteSession, world: World, name: str) -> None:
    with world.session() as embedded:
        for mine, theirs in zip(WRITES[name](remote), WRITES[name](embedded), strict=True):
            assert mine.status == theirs.status
        assert sorted(plain(remote), key=repr) == sorted(plain(embedded), key=repr)


def content(resource: Resource | None) -> Resource | None:
    return resource and {name: value for name, value in resource.items() if name != "meta"}


def test_reads_and_searches_equal_those_of_an_embedded_session(remote: RemoteSession, world: World) -> None:
    with world.session() as embedded:
        for kind in ("Patient", "Observation"):
            for id in world.ids(kind):
                assert content(remote.read(kind, id)) == content(embedded.read(kind, id)) is not None
        for query in ({"patient": "S1"}, {"code": "K", "_sort": "-value-quantity"}, {"_id": "o0,o2,o4"}):
            mine, theirs = remote.search("Observation", **query), embedded.search("Observation", **query)
            assert list(map(content, mine)) == list(map(content, theirs)) != []
        assert content(remote.get("/Patient/S1")) == content(embedded.get("/Patient/S1"))
    assert remote.read("Patient", "nobody") is None


def test_a_setup_in_any_order_is_loaded_and_undone(remote: RemoteSession, server: str) -> None:
    before = state(server)
    remote.load([NOTE | {"id": "e1", "subject": {"reference": "Patient/e2"}}, patient("e2")])
    assert remote.read("Observation", "e1") is not None
    remote.rollback()
    assert state(server) == before


# errors in the agent's requests lead to responses


@pytest.mark.parametrize(
    ("method", "url"),
    [
        ("PUT", "/Patient/a_b"),
        ("DELETE", "/Nothing/1"),
        ("PATCH", "/Patient/%zz"),
        ("DELETE", "/Patient?nonsense=1"),
        ("DELETE", "/Patient"),
        ("PUT", "/" + "x" * 70_000),
        ("DELETE", "/Patient/\x00"),
        ("POST", "/Patient/S1/$nonsense"),
        ("POST", "/"),
    ],
)
def test_agent_mistakes_get_responses(remote: RemoteSession, server: str, method: str, url: str) -> None:
    before = state(server)
    bodies: list[Any] = [
        patient("x"),
        b"{",
        b"[" * 5_000,
        bundle("batch", {}),
        {"resourceType": "Bundle", "entry": [None]},
    ]
    for body in bodies:
        response = send(remote, method, url, body)
        assert 400 <= response.status < 500 or response.status == 200
    remote.rollback()
    assert state(server) == before


# failures of the server


def failing(world: World, answer: Callable[[httpx.Request], httpx.Response]) -> RemoteSession:
    """Open a session, and let the server give scripted responses afterwards."""
    live = [False]

    def respond(request: httpx.Request) -> httpx.Response:
        if live[0]:
            return answer(request)
        resource = {"resourceType": "Patient", "id": request.url.path.rpartition("/")[2]}
        return httpx.Response(200, json=resource, headers={"content-type": FHIR})

    session = RemoteSession("http://x/fhir", world, client=httpx.Client(transport=httpx.MockTransport(respond)))
    live[0] = True
    return session


def down(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused")


def cut(request: httpx.Request) -> httpx.Response:
    if request.method == "GET":
        return httpx.Response(404, json={"resourceType": "OperationOutcome"})
    raise httpx.ReadTimeout("too late")


@pytest.mark.parametrize(
    "answer",
    [down, lambda _: httpx.Response(503), lambda _: httpx.Response(502), lambda _: httpx.Response(200, text="<html>")],
    ids=["refused", "503", "502", "html"],
)
def test_a_server_that_is_down_is_an_infrastructure_failure(
    world: World, answer: Callable[[httpx.Request], httpx.Response]
) -> None:
    session = failing(world, answer)
    for ask in (
        lambda: session.read("Patient", "S1"),
        lambda: session.search("Patient"),
        lambda: session.get("/Patient"),
        lambda: send(session, "PUT", "/Patient/S1", patient("S1")),
    ):
        with pytest.raises(InfraError, match="http://x/fhir"):
            ask()


def test_without_history_versions_are_unknown(world: World) -> None:
    put = [0]

    def forgetful(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("_history"):
            return httpx.Response(404, json={"resourceType": "OperationOutcome"})
        put[0] += request.method == "PUT"
        body = patient("S1", "Changed" if put[0] else "Alpha") | {"meta": {"versionId": str(put[0])}}
        return httpx.Response(200, json=body, headers={"content-type": FHIR})

    session = failing(world, forgetful)
    send(session, "PUT", "/Patient/S1", patient("S1", "Changed"))
    (change,) = session.changes()
    assert (change.kind, change.id, change.versions) == ("updated", "S1", ())
    assert session.versions("Patient", "S1", 2) == [session.read("Patient", "S1")]


def test_a_write_without_an_answer_is_named_when_it_cannot_be_undone(world: World) -> None:
    session = failing(world, cut)
    with pytest.raises(InfraError, match="ReadTimeout"):
        send(session, "POST", "/Patient", patient())
    with pytest.raises(InfraError, match="POST /Patient has an unknown outcome"):
        session.rollback()


def test_a_server_that_restores_something_else_is_an_error(world: World) -> None:
    def stubborn(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            family = "Old" if not session._log else "New"
            return httpx.Response(200, json=patient("S1", family), headers={"content-type": FHIR})
        return httpx.Response(200, json=patient("S1", "New"), headers={"content-type": FHIR})

    session = failing(world, stubborn)
    assert send(session, "PUT", "/Patient/S1", patient("S1", "New")).status == 200
    with pytest.raises(InfraError, match="Patient/S1 still differs"):
        session.rollback()


def test_no_server_at_all_and_another_world(world: World, server: str, tmp_path: Path) -> None:
    with pytest.raises(InfraError, match="does not answer"):
        RemoteSession("http://127.0.0.1:9/fhir", world)
    with WorldBuilder(tmp_path / "w.sqlite", name="elsewhere", seed=None, now=NOW) as builder:
        builder.add(patient("not-there"))
    with World.open(tmp_path / "w.sqlite") as other, pytest.raises(InfraError, match="does not contain the world"):
        RemoteSession(server, other)


# episodes


def judged(rollout: Rollout) -> Any:
    """Return the result of an episode without ids and times that the server assigned."""
    verdict = rollout.verdict
    assert verdict is not None, rollout.error
    checks = [(check.name, check.passed, check.level) for check in verdict.checks]
    statuses = [turn.status for turn in rollout.turns]
    return rollout.task.key, rollout.stop_reason, rollout.success, rollout.light, checks, verdict.evidence, statuses


def few_requests(rollout: Rollout, world: World) -> int:
    """Return the number of requests that an episode on a remote server may take, as its page of docs promises."""
    start_state = get_task(rollout.env_id, rollout.task.key).variation(rollout.task.variation, world).setup
    writes = sum(turn.action.startswith(("POST", "PUT", "PATCH", "DELETE")) for turn in rollout.turns)
    return 8 + len(rollout.turns) + 5 * writes + 4 * (len(start_state) // 200)


def verdicts_agree(world: World, env_id: str, agent: str, tasks: Sequence[str]) -> None:
    embedded = list(run(env_id, agent, tasks=tasks, variations=0, world=world))
    app = Watched(create_app(world))
    elsewhere = []
    with served(app) as url:
        for rollout in run(env_id, agent, tasks=tasks, variations=0, world=world, fhir_server=url):
            assert len(app.seen) <= few_requests(rollout, world), (rollout.task.key, app.seen)
            app.seen.clear()
            elsewhere.append(rollout)
    assert [judged(rollout) for rollout in elsewhere] == [judged(rollout) for rollout in embedded]
    assert {rollout.success for rollout in embedded} == {agent == "gold"}
    assert [rollout.task.key for rollout in embedded] == [*tasks]


@pytest.mark.parametrize("env_id", pack_ids())
def test_verdicts_equal_those_of_the_embedded_server(own_world: Callable[[str], World], env_id: str) -> None:
    """This test plays every sixth task; the test below plays more."""
    keys = [key for key in task_keys(env_id) if (get_task(env_id, key).level or 1) == 1]
    verdicts_agree(own_world(env_id), env_id, "gold", keys[::6])


@pytest.mark.parametrize(
    ("agent", "every"),
    [
        pytest.param("gold", 2, marks=pytest.mark.slow),
        pytest.param("idle", 4, marks=pytest.mark.slow),
        pytest.param("gold", 1, marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("env_id", pack_ids())
def test_more_verdicts_equal_those_of_the_embedded_server(
    own_world: Callable[[str], World], env_id: str, agent: str, every: int
) -> None:
    keys = [key for key in task_keys(env_id)[::every] if (get_task(env_id, key).level or 1) == 1]
    verdicts_agree(own_world(env_id), env_id, agent, keys)


@pytest.mark.slow
def test_large_start_states_are_written_and_undone_in_several_transactions(own_world: Callable[[str], World]) -> None:
    env_id = "FHIRAgent/Shift-v0"
    verdicts_agree(own_world(env_id), env_id, "gold", ["Q4-2"])


@pytest.mark.exhaustive
@pytest.mark.parametrize("level", [2, 3])
def test_verdicts_of_long_tasks_equal_those_of_the_embedded_server(
    own_world: Callable[[str], World], level: int
) -> None:
    env_id = "FHIRAgent/Shift-v0"
    keys = [key for key in task_keys(env_id) if get_task(env_id, key).level == level]
    verdicts_agree(own_world(env_id), env_id, "gold", keys)


@pytest.mark.parametrize("period", [1, 3, None])
def test_a_search_with_endless_pages_fails(world: World, monkeypatch: pytest.MonkeyPatch, period: int | None) -> None:
    monkeypatch.setattr("fhir_gym.fhir.paging._MAX_PAGES", 20)
    asked_for: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.startswith("/fhir/Patient/"):
            return httpx.Response(200, json={"resourceType": "Patient", "id": "p"})
        asked_for.append(str(request.url))
        number = len(asked_for) % period if period else len(asked_for)
        link = [{"relation": "next", "url": f"http://here.test/fhir?page={number}"}]
        return httpx.Response(200, json={"resourceType": "Bundle", "link": link})

    session = RemoteSession("http://here.test/fhir", world, client=httpx.Client(transport=httpx.MockTransport(answer)))
    with pytest.raises(InfraError, match="pages without end"):
        session.search("Patient")
    assert len(asked_for) <= 20


def test_a_redirect_is_not_followed(world: World) -> None:
    """This holds even if the caller passes a client that follows redirects."""
    asked_for: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked_for.append(request.url.host)
        return httpx.Response(307, headers={"location": "http://user:secret@elsewhere.test/fhir"})

    client = httpx.Client(transport=httpx.MockTransport(answer), follow_redirects=True)
    with pytest.raises(InfraError, match=r"redirects to http://elsewhere\.test/fhir "):
        RemoteSession("http://here.test/fhir", world, client=client)
    assert set(asked_for) == {"here.test"}
