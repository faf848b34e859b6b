"""The OpenEnv server and its client. Needs the extra openenv; the sessions are real WebSocket connections."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("openenv")

from openenv.cli._cli_utils import validate_env_structure
from openenv.cli._validation import validate_running_environment
from openenv.core import GenericEnvClient
from websockets.sync.client import connect

from fhir_gym import EpisodeConfig
from fhir_gym.errors import FhirGymError, UnknownNameError
from fhir_gym.fhir import World
from fhir_gym.integrations.openenv import FHIRAction, FHIREnvClient, TaskCatalog, make_app
from fhir_gym.integrations.openenv.server import FHIREnvironment
from fhir_gym.integrations.publish import write_openenv_folder
from fhir_gym.tasks import pack_ids
from fhir_gym.testing import serving as serving_fhir
from fhir_gym.testing.servers import AppServer
from tests.integrations.gold import GoldEpisode, all_tasks, one_task_of_each_pack

ENV_ID = "FHIRAgent/Appointment-v0"


@contextmanager
def serving(*configs: EpisodeConfig, **limits: Any) -> Iterator[str]:
    with TaskCatalog(configs) as catalog, AppServer(make_app(catalog, **limits), ws="auto") as server:
        yield server.url


@pytest.fixture(scope="module")
def url(own_world: Callable[[str], World]) -> Iterator[str]:
    """A server with all packs."""
    packs = [env_id for env_id in pack_ids() if env_id.startswith("FHIRAgent/")]
    with serving(*(EpisodeConfig(env_id, world=own_world(env_id)) for env_id in packs)) as url:
        yield url


@pytest.fixture
def env(url: str) -> Iterator[Any]:
    """A client with a session of its own."""
    with FHIREnvClient(base_url=url).sync() as client:
        yield client


def play(env: Any, episode: GoldEpisode, world: World) -> Any:
    """Play the reference solution; return the last result."""
    policy = episode.policy(world)
    result = env.reset(env_id=episode.env_id, task=episode.task, variation=episode.variation)
    assert result.reward is None and not result.done
    while not result.done:
        result = env.step(FHIRAction(text=policy(result.observation.text)))
    return result


@pytest.mark.parametrize("episode", one_task_of_each_pack(), ids=str)
def test_gold_succeeds(env: Any, own_world: Callable[[str], World], episode: GoldEpisode) -> None:
    last = play(env, episode, own_world(episode.env_id))
    told = last.observation.metadata
    assert (last.reward, last.observation.reward, last.done) == (1.0, 1.0, True)
    assert (told["terminated"], told["truncated"], told["stop_reason"]) == (True, False, "finished")
    assert told["verdict"]["explanation"].startswith("Success")
    assert (told["env_id"], told["task"], told["variation"]) == episode
    assert env.state().step_count == told["step"]


@pytest.mark.slow
def test_gold_succeeds_on_all_tasks(env: Any, own_world: Callable[[str], World]) -> None:
    failed = [task for task in all_tasks() if play(env, task, own_world(task.env_id)).reward != 1.0]
    assert failed == []


def test_the_step_limit_truncates(hospital: World) -> None:
    config = EpisodeConfig(ENV_ID, world=hospital, max_steps=2)
    with serving(config) as url, FHIREnvClient(base_url=url).sync() as env:
        env.reset(task="01", variation=0)
        assert not env.step(FHIRAction(text="GET /Patient?_count=1")).done
        last = env.step(FHIRAction(text="GET /Patient?_count=1"))
    told = last.observation.metadata
    assert (last.done, last.reward, told["terminated"], told["truncated"]) == (True, 0.0, False, True)
    assert told["stop_reason"] == "step_limit" and told["verdict"]["explanation"].startswith("Failed")


def test_a_failure_of_the_server_is_an_error_without_reward(
    env: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    env.reset(env_id=ENV_ID, task="01", variation=0)
    with monkeypatch.context():
        request.getfixturevalue("server_is_down")
        with pytest.raises(RuntimeError, match="the FHIR server is down"):
            env.step(FHIRAction(text="GET /Patient"))
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(FHIRAction(text="FINISH([])"))
    monkeypatch.undo()
    env.reset(env_id=ENV_ID, task="01", variation=0)
    assert env.step(FHIRAction(text="FINISH([])")).reward == 0.0


def test_a_running_fhir_server_serves_one_session(hospital: World) -> None:
    with serving_fhir(hospital) as fhir:
        config = EpisodeConfig(ENV_ID, world=hospital, fhir_server=fhir)
        with pytest.raises(FhirGymError, match="one episode at a time"), TaskCatalog([config]) as catalog:
            make_app(catalog)
        with serving(config, max_sessions=1) as url, FHIREnvClient(base_url=url).sync() as env:
            assert play(env, GoldEpisode(ENV_ID, "02a"), hospital).reward == 1.0
    with (
        serving(config, max_sessions=1) as url,
        FHIREnvClient(base_url=url).sync() as env,
        pytest.raises(RuntimeError, match=f"{fhir}.*EXECUTION_ERROR"),
    ):
        env.reset(task="02a", variation=0)


def test_clients_without_our_package_send_dicts(url: str) -> None:
    with GenericEnvClient(base_url=url).sync() as env:
        assert "FINISH" in env.reset(split="test", index=0).observation["text"]
        last = env.step({"text": "FINISH([])"})
    assert last.done and last.metadata["truncated"] is False


def test_the_task_api(url: str) -> None:
    with httpx.Client(base_url=f"{url}/fhir_gym") as http:
        splits = [split["name"] for split in http.get("/splits").json()]
        assert splits == ["train", "test", "heldout_tasks"]
        count = http.post("/num_tasks", json={"split": "test"}).json()["num_tasks"]
        assert count == len(all_tasks()) * 1000
        last = http.post("/task", json={"split": "test", "index": count - 1}).json()["task"]
        assert last["variation"] == 1999
        whole = http.post("/tasks", json={"split": "test"}).json()["tasks"]
        part = http.post("/task_range", json={"split": "test", "start": -2}).json()["tasks"]
        assert len(whole) == 10_000 and part[1] == last
        first = {(task["env_id"], task["task"]) for task in whole[: len(all_tasks())]}
        assert first == {(task.env_id, task.task) for task in all_tasks()}
        refused = {
            "/num_tasks": ({"split": "tests"}, "did you mean 'test'"),
            "/task": ({"split": "test", "index": count}, "Invalid task index"),
            "/task_range": ({"split": "test"}, "too many for one answer"),
        }
        for path, (body, message) in refused.items():
            answer = http.post(path, json=body)
            assert answer.status_code == 400 and message in answer.json()["detail"]


def test_an_index_a_spec_and_a_task_start_the_same_episode(url: str, env: Any) -> None:
    spec = httpx.post(f"{url}/fhir_gym/task", json={"split": "test", "index": 7}).json()["task"]
    by_index = env.reset(split="test", index=7).observation
    named = {key: spec[key] for key in ("env_id", "task", "variation")}
    assert env.reset(**named, split="test").observation == by_index
    assert env.reset(**named, split=None).observation == by_index
    assert by_index.metadata.items() >= named.items()
    assert env.reset(**named, split="test", phrasing=1).observation.metadata["phrasing"] == 1


def test_seeds_draw_the_same_episodes_in_every_session(url: str) -> None:
    def draws() -> list[Any]:
        with FHIREnvClient(base_url=url).sync() as env:
            seeds: list[dict[str, Any]] = [{"seed": 5}, {}, {}, {"task": "01", "env_id": ENV_ID}]
            return [env.reset(**seed).observation for seed in seeds]

    first = draws()
    assert first == draws()
    assert len({(draw.metadata["task"], draw.metadata["variation"]) for draw in first}) == 4


def test_an_env_id_draws_from_one_pack(env: Any) -> None:
    packs = [env.reset(seed=seed, env_id=ENV_ID).observation.metadata["env_id"] for seed in range(4)]
    assert packs == [ENV_ID] * 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"taks": "01"}, "did you mean 'task'"),
        ({"split": "validation"}, "split"),
        ({"split": "test", "index": 10**9}, "has the indexes 0 to"),
        ({"index": "0"}, "index must be a whole number"),
        ({"index": 0, "task": "01"}, "either an index or a task"),
        ({"variation": 3}, "name the task too"),
        ({"env_id": "FHIRAgent/Appointments-v0"}, "did you mean"),
        ({"env_id": "FHIRAgent/Appointments-v0", "variation": 3}, f"did you mean '{ENV_ID}'"),
        ({"env_id": "FHIRAgent/Appointments-v0", "index": 3}, f"did you mean '{ENV_ID}'"),
        ({"env_id": ENV_ID, "index": 0}, "either an index or an env_id"),
        ({"task": "01"}, "env_id is missing"),
        ({"task": "01", "env_id": "FHIRAgent/Appointments-v0"}, "did you mean"),
        ({"task": "99", "env_id": ENV_ID}, "99"),
        ({"task": "01", "env_id": ENV_ID, "variation": 1500}, "variation 1500 is not in split 'train'"),
        ({"task": "01", "env_id": ENV_ID, "variation": 5, "split": "test"}, "variation 5 is not in split 'test'"),
        ({"task": "01", "env_id": ENV_ID, "variation": 99999, "split": None}, "numbered from 0 to 1999"),
        ({"task": "01", "env_id": ENV_ID, "variation": 1500, "split": "heldout_tasks"}, "has none of 01"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"seed": [1]}, "seed must be a whole number"),
        ({"episode_id": {"a": "<script>"}}, "Invalid message"),
        ({"task": ["01"], "env_id": ENV_ID}, "task"),
    ],
)
def test_wrong_options_are_one_line_errors_and_the_session_lives(env: Any, options: Any, message: str) -> None:
    env.reset(seed=0)
    with pytest.raises(RuntimeError, match=message) as refused:
        env.reset(**options)
    assert "\n" not in str(refused.value)
    assert "HTTP 200" in env.step(FHIRAction(text="GET /Patient?_count=1")).observation.text, "the episode goes on"


def test_an_episode_that_does_not_exist_leaves_none_running(env: Any) -> None:
    env.reset(seed=0)
    with pytest.raises(RuntimeError, match="phrasing"):
        env.reset(task="01", env_id=ENV_ID, variation=0, phrasing=99)
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(FHIRAction(text="FINISH([])"))


def test_hostile_messages_leave_the_session_usable(url: str) -> None:
    with connect(url.replace("http", "ws", 1) + "/ws") as socket:

        def ask(message: str) -> Any:
            socket.send(message)
            return json.loads(socket.recv())

        assert ask("no JSON")["data"]["code"] == "INVALID_JSON"
        assert ask('{"type": "dance"}')["data"]["code"] == "UNKNOWN_TYPE"
        assert ask('{"type": "step", "data": {"text": 7}}')["data"]["code"] == "VALIDATION_ERROR"
        assert ask('{"type": "step", "data": {"text": "x", "more": 1}}')["data"]["code"] == "VALIDATION_ERROR"
        assert ask('{"type": "step", "data": {"text": "GET /Patient"}}')["data"]["code"] == "EXECUTION_ERROR"
        assert ask('{"type": "reset", "data": {"seed": 0}}')["type"] == "observation"
        for text in ("\\ud800", "\\u0000", "<script>", "GET /Patient/\\udfff", "x" * 300_000, "{" * 50_000):
            answer = ask(f'{{"type": "step", "data": {{"text": "{text}"}}}}')
            assert answer["type"] == "observation" and len(answer["data"]["observation"]["text"]) < 5_000
        assert ask('{"type": "step", "data": {"text": "FINISH([])"}}')["data"]["done"] is True


def test_plain_http_requests_have_no_episode(url: str) -> None:
    assert httpx.get(f"{url}/health").json() == {"status": "healthy"}
    assert ENV_ID in httpx.get(f"{url}/metadata").json()["description"]
    assert set(httpx.get(f"{url}/schema").json()["action"]["properties"]) == {"metadata", "text"}
    assert "FINISH" in httpx.post(f"{url}/reset", json={"seed": 0}).json()["observation"]["text"]
    answer = httpx.post(f"{url}/step", json={"action": {"text": "FINISH([])"}})
    assert answer.status_code == 400 and "same WebSocket" in answer.json()["detail"]


def test_the_servers_interface_is_what_openenv_validates(url: str) -> None:
    report = validate_running_environment(url, timeout_s=20)
    assert report["passed"], report["summary"]


@pytest.mark.slow
def test_the_published_folder_passes_openenv_validate_and_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "fhir-desk"
    write_openenv_folder([EpisodeConfig("FHIRAgent/Shift-v0", dials={"minutes": 60}), EpisodeConfig(ENV_ID)], folder)
    assert validate_env_structure(folder) == ["Recommended directory missing: outputs/"]
    command = [str(Path(sys.executable).with_name("openenv")), "validate", str(folder), "--skip-build"]
    assert "PASS  static.manifest" in subprocess.run(command, check=True, capture_output=True, text=True).stdout
    monkeypatch.syspath_prepend(folder)
    with AppServer(import_module("server.app").app, ws="auto") as server:
        assert validate_running_environment(server.url)["passed"]
        with FHIREnvClient(base_url=server.url).sync() as client:
            assert client.reset(task="day-3+minutes=60", env_id="FHIRAgent/Shift-v0").metadata["split"] == "train"
            assert client.reset(split="heldout_tasks", index=0).metadata["env_id"] == ENV_ID


def test_openenvs_web_interface_plays(hospital: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENABLE_WEB_INTERFACE", "true")
    with serving(EpisodeConfig(ENV_ID, world=hospital)) as url, httpx.Client(base_url=url, timeout=30) as http:
        assert http.get("/web", follow_redirects=True).status_code == 200
        assert "FINISH" in http.post("/web/reset", json={}).json()["observation"]["text"]
        assert http.post("/web/step", json={"action": {"text": "FINISH([])"}}).json()["done"] is True


def test_a_closed_session_says_so(hospital: World) -> None:
    with TaskCatalog([EpisodeConfig(ENV_ID, world=hospital)]) as catalog:
        environment = FHIREnvironment(catalog)
        environment.reset(seed=0)
        environment.close()
        environment.close()
        with pytest.raises(FhirGymError, match="connect again"):
            environment.reset()
        with pytest.raises(FhirGymError, match="call reset"):
            environment.step(FHIRAction(text="GET /Patient"))


def test_catalogues_of_nothing_twice_or_files_are_refused(hospital: World) -> None:
    config = EpisodeConfig(ENV_ID, world=hospital)
    for configs, message in [([], "at least one"), ([config, config], "twice")]:
        with pytest.raises(FhirGymError, match=message):
            TaskCatalog(configs)
    with pytest.raises(FhirGymError, match="leave task_file out"):
        TaskCatalog([EpisodeConfig("FHIRAgent/MedAgentBench-v0", world=hospital, task_file="tasks.json")])
    with pytest.raises(UnknownNameError, match="did you mean"):
        TaskCatalog([EpisodeConfig("FHIRAgent/Appointments-v0", world=hospital)])
    with TaskCatalog([config]) as catalog:
        for limits in ({"max_sessions": 0}, {"session_timeout": 0}, {"session_timeout": float("nan")}):
            with pytest.raises(FhirGymError, match="must be"):
                make_app(catalog, **limits)


def test_a_full_server_refuses_a_session_until_one_closes(hospital: World) -> None:
    with serving(EpisodeConfig(ENV_ID, world=hospital), max_sessions=1) as url:
        with FHIREnvClient(base_url=url).sync() as first:
            first.reset(seed=0)
            with FHIREnvClient(base_url=url).sync() as second, pytest.raises(RuntimeError, match="CAPACITY_REACHED"):
                second.reset(seed=0)
            assert first.step(FHIRAction(text="FINISH([])")).done
        with FHIREnvClient(base_url=url).sync() as third:
            assert third.reset(seed=0).observation.text


@pytest.mark.slow
def test_idle_sessions_are_closed(hospital: World) -> None:
    """OpenEnv looks for idle sessions every five seconds at the earliest."""
    with (
        serving(EpisodeConfig(ENV_ID, world=hospital), max_sessions=1, session_timeout=1.0) as url,
        FHIREnvClient(base_url=url).sync() as idle,
    ):
        idle.reset(seed=0)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            time.sleep(0.5)
            with FHIREnvClient(base_url=url).sync() as next_one:
                try:
                    assert next_one.reset(seed=0).observation.text
                    break
                except RuntimeError as refused:
                    assert "CAPACITY_REACHED" in str(refused)
        else:
            pytest.fail("the idle session still takes the only place")
        with pytest.raises(RuntimeError, match="call reset"):
            idle.step(FHIRAction(text="GET /Patient"))
        with pytest.raises(RuntimeError, match="connect again"):
            idle.reset(seed=0)


@pytest.mark.slow
def test_64_sessions_at_once_do_not_see_each_other(url: str) -> None:
    number = 64

    async def play(client: int, all_ready: asyncio.Barrier) -> str:
        async with FHIREnvClient(base_url=url) as env:
            await env.reset(env_id=ENV_ID, task="01", variation=client % 4)
            await all_ready.wait()
            body = json.dumps({"resourceType": "Patient", "name": [{"family": f"Session{client:02}"}]})
            created = await env.step(FHIRAction(text=f"POST /Patient\n{body}"))
            assert created.observation.metadata["status"] == 201
            await all_ready.wait()
            found = await env.step(FHIRAction(text="GET /Patient?family=Session&_elements=name"))
            seen = json.loads(found.observation.text.partition("\n")[2])["entry"]
            assert [entry["resource"]["name"][0]["family"] for entry in seen] == [f"Session{client:02}"]
            return str(created.observation.text.partition('"id":"')[2].partition('"')[0])

    async def play_all() -> list[str]:
        all_ready = asyncio.Barrier(number)
        return await asyncio.gather(*(play(client, all_ready) for client in range(number)))

    ids = asyncio.run(play_all())
    assert len(set(ids)) == 4, "sessions count ids separately, so those of one variation create the same id"


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.usefixtures("sigint_interrupts")
def test_the_command_serves_and_stops_with_open_sessions(hospital: World, stop: signal.Signals) -> None:
    command = [sys.executable, "-m", "fhir_gym", "openenv", "serve", ENV_ID, "--port", "0", "--max-sessions", "2"]
    command[command.index("0")] = str(free_port())
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"NO_COLOR": "1"}) as server:
        assert server.stderr is not None
        try:
            line = server.stderr.readline()
            url = line.split()[3]
            assert line.startswith("OpenEnv server at http://127.0.0.1:")
            with FHIREnvClient(base_url=url).sync() as env:
                assert play(env, GoldEpisode(ENV_ID, "02a"), hospital).reward == 1.0
                env.reset(seed=0)
                server.send_signal(stop)
                assert "Traceback" not in server.stderr.read()
        finally:
            server.kill()
    assert server.returncode == (130 if stop == signal.SIGINT else -signal.SIGTERM)


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def test_the_example_of_the_page_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "integrations_openenv.md").read_text("utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "True 0.0 Failed" in done.stdout, done.stderr
