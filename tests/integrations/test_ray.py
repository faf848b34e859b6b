"""Rollouts on a Ray cluster: the records are those of a serial run, whatever dies in between."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from fhir_gym.agents import Completion, EpisodeContext, IdleAgent, Message, Opening, RandomAgent
from fhir_gym.errors import AgentError, FhirGymError, InfraError
from fhir_gym.fhir import World
from fhir_gym.rollouts import Budget, RayCluster, Rollout, read_rollouts, run
from fhir_gym.rollouts.ray_cluster import Shipment
from fhir_gym.tasks import pack_ids
from fhir_gym.tasks.packs.action_reasoning.file_task import dumped
from fhir_gym.tasks.packs.action_reasoning.generation import generate
from fhir_gym.worlds.cache import cache_dir
from tests.rollouts.test_concurrent import Slow

ray: Any = pytest.importorskip("ray")

ENV_ID = "FHIRAgent/Appointment-v0"
ROOT = Path(__file__).resolve().parents[2]
PACKS = [pack_id for pack_id in pack_ids() if pack_id.startswith("FHIRAgent/")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """A cluster on this machine that the tests of this module share."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield RayCluster(actors=2)
    ray.shutdown()


def lines(rollouts: Sequence[Rollout]) -> list[str]:
    return [rollout.line(timings=False) for rollout in rollouts]


class Dying(RandomAgent):
    """A random agent that kills its process in the middle of chosen episodes, as often as it is told."""

    def __init__(self, folder: Path, variations: Sequence[int], deaths: int = 1) -> None:
        super().__init__()
        self.folder, self.variations, self.deaths = folder, variations, deaths

    @override
    def reset(self, observation: str, context: EpisodeContext) -> None:
        super().reset(observation, context)
        self.variation, self.acts = context.variation, 0

    @override
    def act(self, observation: str) -> str:
        self.acts += 1
        if self.acts == 2 and self.variation in self.variations:
            deaths = [*self.folder.glob(f"{self.variation}-*")]
            if len(deaths) < self.deaths:
                (self.folder / f"{self.variation}-{len(deaths)}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().act(observation)


@pytest.mark.parametrize("agent", ["gold", "random"])
@pytest.mark.parametrize("env_id", PACKS)
def test_two_actors_equal_a_serial_run(cluster: RayCluster, env_id: str, agent: str) -> None:
    expected = lines([*run(env_id, agent, variations="0-1", seed=5)])
    assert lines([*run(env_id, agent, variations="0-1", seed=5, workers=cluster)]) == expected
    assert expected


def test_killed_workers_cost_only_time(cluster: RayCluster, hospital: World, tmp_path: Path) -> None:
    choice: dict[str, Any] = {"tasks": ["01", "02a"], "variations": "0-9", "world": hospital}
    agent = Dying(tmp_path, (0, 3, 7))
    found = lines([*run(ENV_ID, agent, workers=cluster, **choice)])
    assert {path.name for path in tmp_path.iterdir()} == {"0-0", "3-0", "7-0"}
    assert found == lines([*run(ENV_ID, agent, **choice)])  # nobody dies again


def test_a_killed_worker_does_not_change_what_the_budget_counts(
    cluster: RayCluster, hospital: World, tmp_path: Path
) -> None:
    agent = Dying(tmp_path, (2, 4), deaths=2)
    budget = Budget(episodes=5)
    rollouts = [*run(ENV_ID, agent, tasks="01", variations="0-9", world=hospital, workers=cluster, budget=budget)]
    assert [rollout.task.variation for rollout in rollouts] == [0, 1, 2, 3, 4]
    assert all(rollout.graded for rollout in rollouts)
    assert len([*tmp_path.iterdir()]) == 4


def test_an_episode_that_kills_every_worker_ends_the_run(cluster: RayCluster, hospital: World, tmp_path: Path) -> None:
    found: list[Rollout] = []
    running = run(ENV_ID, Dying(tmp_path, (1,), 99), tasks="01", variations="0-3", world=hospital, workers=cluster)
    with pytest.raises(InfraError, match="4 Ray actors died in task 01, variation 1: "):
        found.extend(running)
    variations = [rollout.task.variation for rollout in found]
    assert variations[0] == 0 and 1 not in variations  # other actors may have finished 2 and 3
    assert len([*tmp_path.iterdir()]) == 4


def test_a_worker_that_is_killed_from_outside_is_replaced(cluster: RayCluster, hospital: World, tmp_path: Path) -> None:
    choice: dict[str, Any] = {"tasks": "01", "variations": "0-3", "world": hospital}
    agent = Waiting(tmp_path)
    killer = threading.Thread(target=agent.kill)
    killer.start()
    found = lines([*run(ENV_ID, agent, workers=RayCluster(actors=1), **choice)])
    killer.join()
    assert found == lines([*run(ENV_ID, agent, **choice)])


class Waiting(RandomAgent):
    """A random agent that waits in variation 2 until its process is killed."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    @override
    def reset(self, observation: str, context: EpisodeContext) -> None:
        super().reset(observation, context)
        if context.variation == 2 and not (self.folder / "go").exists():
            (self.folder / "part").write_text(str(os.getpid()))
            (self.folder / "part").rename(self.folder / "waits")
            time.sleep(600)

    def kill(self) -> None:
        """Kill the process that waits."""
        while not (self.folder / "waits").exists():
            time.sleep(0.05)
        (self.folder / "go").touch()
        os.kill(int((self.folder / "waits").read_text()), signal.SIGKILL)


class Failing(IdleAgent):
    """An agent with an error in its code."""

    @override
    def act(self, observation: str) -> str:
        raise ZeroDivisionError("by nothing")


def test_an_agents_own_bug_is_not_hidden(cluster: RayCluster, hospital: World) -> None:
    with pytest.raises(AgentError, match="in task 01, variation 7, step 1: ZeroDivisionError: by nothing"):
        list(run(ENV_ID, Failing(), tasks="01", variations=7, world=hospital, workers=cluster))


def test_a_failing_server_is_a_record_without_reward(cluster: RayCluster, hospital: World) -> None:
    (rollout,) = run(ENV_ID, Unreachable(), tasks="01", variations=0, world=hospital, workers=cluster)
    assert (rollout.stop_reason, rollout.error, rollout.reward) == ("infra_error", "the server is down", None)


class Unreachable(IdleAgent):
    """An agent whose server fails."""

    @override
    def act(self, observation: str) -> str:
        raise InfraError("the server is down")


def test_concurrent_agents_run_several_episodes_in_each_actor(cluster: RayCluster, hospital: World) -> None:
    choice: dict[str, Any] = {"tasks": ["01", "02a"], "variations": "0-9", "world": hospital}
    expected = sorted(lines([*run(ENV_ID, Slow(), **choice)]))
    rollouts = [*run(ENV_ID, Meeting(), workers=RayCluster(actors=1), concurrency=10, **choice)]
    assert sorted(lines(rollouts)) == expected
    budget = Budget(tokens=1_000)  # an episode uses 220 tokens, and an actor has one episode at a time
    few = [*run(ENV_ID, Slow(), workers=RayCluster(actors=1), concurrency=1, budget=budget, **choice)]
    assert len(few) == 5


class Meeting(Slow):
    """A concurrent agent that waits until ten episodes of its process wait at the same time."""

    @override
    async def complete(self, messages: Sequence[Message], opening: Opening) -> Completion:
        self.begun = getattr(self, "begun", 0) + 1
        for _ in range(6_000):
            if self.begun >= 10:
                return await super().complete(messages, opening)
            await asyncio.sleep(0.01)
        raise InfraError("the episodes of an actor run one at a time")


class SlowAndDying(Slow):
    """A concurrent agent that once kills its process."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    @override
    async def complete(self, messages: Sequence[Message], opening: Opening) -> Completion:
        if self.completions == 8 and not (self.folder / "died").exists():
            (self.folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().complete(messages, opening)


def test_killed_workers_lose_no_concurrent_episode(cluster: RayCluster, hospital: World, tmp_path: Path) -> None:
    choice: dict[str, Any] = {"tasks": ["01", "02a"], "variations": "0-9", "world": hospital, "concurrency": 4}
    found = sorted(lines([*run(ENV_ID, SlowAndDying(tmp_path), workers=cluster, **choice)]))
    assert (tmp_path / "died").exists()
    assert found == sorted(lines([*run(ENV_ID, SlowAndDying(tmp_path), **choice)]))


def test_a_node_without_the_world_receives_it_once(
    cluster: RayCluster, hospital: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = Shipment.of
    monkeypatch.setattr(Shipment, "of", lambda *how: replace(of(*how), world_path=tmp_path / "elsewhere"))
    copy = cache_dir() / "copies"
    for left in copy.glob("*.sqlite"):
        left.unlink()
    choice: dict[str, Any] = {"tasks": ["01"], "variations": "0-9", "world": hospital}
    assert lines([*run(ENV_ID, "random", workers=cluster, **choice)]) == lines([*run(ENV_ID, "random", **choice)])
    (path,) = copy.glob("*.sqlite")
    before = path.stat().st_mtime_ns
    assert len([*run(ENV_ID, "random", workers=cluster, **choice)]) == 10
    assert path.stat().st_mtime_ns == before


def test_task_files_reach_the_actors(cluster: RayCluster, mini: World, tmp_path: Path) -> None:
    env_id = "FHIRAgent/ActionReasoning-v0"
    target = tmp_path / "tasks.json"
    target.write_bytes(dumped(generate(mini, per_family=2)))
    choice: dict[str, Any] = {"world": mini, "task_file": target}
    assert lines([*run(env_id, "gold", workers=cluster, **choice)]) == lines([*run(env_id, "gold", **choice)])


def test_agents_that_cannot_be_sent_are_refused_at_once(cluster: RayCluster, hospital: World) -> None:
    with pytest.raises(FhirGymError, match="agent idle cannot be sent to Ray actors: TypeError: cannot pickle"):
        run(ENV_ID, Locked(), world=hospital, workers=cluster)


class Locked(IdleAgent):
    """An agent that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def test_a_connection_of_the_caller_is_used_and_kept(cluster: RayCluster, hospital: World) -> None:
    assert len([*run(ENV_ID, "idle", tasks="01", variations=0, world=hospital, workers="ray")]) == 1
    assert ray.is_initialized()
    with pytest.raises(FhirGymError, match="already connected"):
        list(run(ENV_ID, "idle", tasks="01", variations=0, world=hospital, workers=RayCluster("auto")))


def test_a_run_that_is_left_frees_its_cpus(cluster: RayCluster, hospital: World) -> None:
    for _ in range(2):
        running = run(ENV_ID, "idle", tasks="01", variations="0-99", world=hospital, workers=cluster)
        assert [next(running).task.variation for _ in range(3)] == [0, 1, 2]
        assert isinstance(running, Generator)
        running.close()


_SCRIPT = """
import sys
import fhir_gym
from fhir_gym.rollouts import RayCluster
from tests.tasks.fakes import Greeting

class Salute(Greeting):
    key = "salute"
    pack = ""

class Polite:
    name = "polite"
    settings = {}
    def reset(self, observation, context): pass
    def act(self, observation): return "FINISH([])"

fhir_gym.tasks.register("Script/Greetings-v0", Salute(), world="empty")
for workers in (0, RayCluster("local", actors=2)):
    for rollout in fhir_gym.run("Script/Greetings-v0", Polite(), variations="0-3", workers=workers):
        print(rollout.line(timings=False))
"""


def test_packs_and_agents_of_a_script_reach_the_actors(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, env=environment)
    found = done.stdout.splitlines()
    assert len(found) == 8, done.stderr
    assert found[:4] == found[4:]


def test_the_command_runs_on_a_cluster(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "fhir_gym", "rollout", ENV_ID, "--agent", "random", "--variations", "0-1"]
    for out, extra in (("serial", ""), ("ray", "--ray local --workers 2")):
        subprocess.run(
            [*words, "--out", str(tmp_path / out), *extra.split()], check=True, cwd=ROOT, capture_output=True
        )
    assert lines([*read_rollouts(tmp_path / "ray")]) == lines([*read_rollouts(tmp_path / "serial")])


def test_a_missing_cluster_is_a_clear_error(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "fhir_gym", "rollout", ENV_ID, "--ray", "127.0.0.1:9"]
    done = subprocess.run([*words, "--out", tmp_path / "out"], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1
    assert "the Ray cluster 127.0.0.1:9 does not answer" in done.stderr
    assert "Traceback" not in done.stderr and not done.stdout


@pytest.mark.usefixtures("sigint_interrupts")
def test_ctrl_c_ends_a_run_cleanly(tmp_path: Path) -> None:
    out = tmp_path / "rollouts.jsonl"
    words = [sys.executable, "-m", "fhir_gym", "rollout", ENV_ID, "--variations", "0-999", "--ray", "local"]
    pipe = subprocess.PIPE
    with subprocess.Popen([*words, "--out", out], cwd=ROOT, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            while not (out.exists() and out.read_bytes().count(b"\n") >= 5):
                assert process.poll() is None
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGINT)  # a terminal sends Ctrl-C to the whole process group
            _, errors = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130, errors
    assert "--resume" in errors and "Traceback" not in errors
    assert sum(rollout.graded for rollout in read_rollouts(out)) >= 5


@pytest.mark.slow
def test_a_node_that_dies_loses_no_episode(hospital: World, tmp_path: Path) -> None:
    """Two nodes with one actor each; the node without the driver dies in the middle."""
    if ray.is_initialized():
        ray.shutdown()
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    choice: dict[str, Any] = {"tasks": ["01", "02a"], "variations": "0-99", "world": hospital}
    try:
        node = nodes.add_node(num_cpus=1)
        nodes.connect()
        running = run(ENV_ID, "random", workers=RayCluster(actors=2), **choice)
        rollouts = [next(running) for _ in range(20)]
        nodes.remove_node(node, allow_graceful=False)
        rollouts += running
    finally:
        ray.shutdown()
        nodes.shutdown()
    assert lines(rollouts) == lines([*run(ENV_ID, "random", **choice)])
