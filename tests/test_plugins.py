"""Plugins from a distribution with real metadata."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import pytest

import fhir_gym
from fhir_gym import suites, tasks, worlds
from fhir_gym.agents import Agent, ScriptedAgent, agent_names, make_agent
from fhir_gym.envs import FHIREnv
from fhir_gym.episode_config import EpisodeConfig
from fhir_gym.errors import AgentError, FhirGymError, PluginError, PluginWarning, TaskError, UnknownNameError
from fhir_gym.fhir import World
from fhir_gym.plugins import find_object
from fhir_gym.tasks import find_packs
from fhir_gym.tasks.core import registry
from fhir_gym.tasks.core.registry import pickle_packs, unpickle_packs
from tests.tasks.fakes import Greeting

ENV_ID = "Clinic/Greetings-v0"
ROOT = Path(__file__).resolve().parent.parent

TASKS = """
from fhir_gym.tasks import register
from tests.tasks.fakes import Greeting

class Salute(Greeting):
    key = "salute"
    pack = ""

register("Clinic/Greetings-v0", Salute(), world="empty")
"""
PACK_VALUE = """
from fhir_gym.tasks import Pack
from tests.tasks.fakes import Greeting

class Salute(Greeting):
    key = "salute"
    pack = ""

PACK = Pack("Clinic/Value-v0", tasks=(Salute,), world="empty", max_steps=4, held_out=("salute",))
"""
AGENTS = '''
class Once:
    """Asks once."""

    name = "once"

    def __init__(self, url: str = "/Patient") -> None:
        self.settings = {"url": url}

    def reset(self, observation, context):
        self.left = ["FINISH([])", f"GET {self.settings['url']}"]

    def act(self, observation):
        return self.left.pop()

def policy(observation):
    return "FINISH([])"

def made(url: str) -> Once:
    return Once(url)

def fails():
    raise KeyError("no key")

ready = Once("/Slot")
'''
WORLDS = """
from datetime import UTC, datetime
from pathlib import Path
from fhir_gym.worlds import Recipe

NOW = datetime(2024, 1, 1, tzinfo=UTC)
clinic = Recipe("any", "one patient", 1, NOW, lambda seed: [{"resourceType": "Patient", "id": "1"}])

def file():
    return Path(__file__).with_name("world.sqlite")
"""
SUITES = """
from fhir_gym.suites import Suite, balanced

def clinic():
    return Suite("clinic-v1", "greetings", tuple(balanced("Clinic/Greetings-v0", ["salute"], [1000, 1001])))
"""
ENTRY_POINTS = f"""
[fhir_gym.packs]
{ENV_ID} = clinic_pack.tasks
Clinic/Broken-v0 = clinic_pack.nowhere
Clinic/Nothing-v0 = clinic_pack.agents

[fhir_gym.agents]
once = clinic_pack.agents:Once
broken = clinic_pack.agents:Nobody

[fhir_gym.worlds]
clinic = clinic_pack.worlds:clinic
clinic-file = clinic_pack.worlds:file
number = clinic_pack.worlds:NOW

[fhir_gym.suites]
clinic-v1 = clinic_pack.suites:clinic
clinic-v2 = clinic_pack.suites:clinic
quick-v1 = clinic_pack.suites:clinic
nothing-v1 = clinic_pack.suites:nothing
"""


@pytest.fixture
def clinic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put a plugin distribution on the import path, and remove its registrations afterwards."""
    package, metadata = tmp_path / "clinic_pack", tmp_path / "clinic_pack-1.2.dist-info"
    files = {
        package / "__init__.py": "",
        package / "tasks.py": TASKS,
        package / "agents.py": AGENTS,
        package / "worlds.py": WORLDS,
        package / "suites.py": SUITES,
        metadata / "METADATA": "Metadata-Version: 2.1\nName: clinic-pack\nVersion: 1.2\n",
        metadata / "entry_points.txt": ENTRY_POINTS,
    }
    for path, text in files.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    modules, ids, packs, tried = (set(sys.modules), set(gym.registry), set(registry._registered), set(registry._tried))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - modules:
        if name.startswith(("clinic_pack", "my_")):
            del sys.modules[name]
    for env_id in set(gym.registry) - ids:
        del gym.registry[env_id]
    for env_id in set(registry._registered) - packs:
        del registry._registered[env_id]
    registry._tried &= tried


def test_an_installed_pack_is_loaded_when_it_is_asked_for(clinic: Path) -> None:
    fhir_gym._register_installed()
    assert "clinic_pack.tasks" not in sys.modules
    env = gym.make(ENV_ID)
    assert isinstance(env.unwrapped, FHIREnv)
    assert (env.unwrapped.tasks, env.unwrapped.world.name) == (("salute",), "empty")
    env.close()
    assert find_packs("clinic_pack") == find_packs("clinic_pack.tasks") == find_packs(f"clinic_pack.tasks:{ENV_ID}")


def test_a_broken_pack_gives_one_line_and_breaks_nothing_else(clinic: Path) -> None:
    line = r"fhir_gym\.packs Clinic/Broken-v0 \(clinic_pack\.nowhere\) of clinic-pack 1\.2 cannot be loaded: Module"
    with pytest.warns(PluginWarning, match=line):
        assert {*tasks.pack_ids()} >= {ENV_ID, "FHIRAgent/Appointment-v0"}
    assert ENV_ID in tasks.pack_ids(), "and is told once"
    registry._tried.clear()
    with pytest.raises(PluginError, match=line) as told:
        fhir_gym.get_task("Clinic/Broken-v0", "any")
    assert "\n" not in str(told.value)


def test_workers_get_the_pack(clinic: Path, hospital: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(clinic), str(ROOT)]))
    (rollout,) = fhir_gym.run(ENV_ID, "once", variations=1, workers=1, world=hospital)
    assert (rollout.agent.name, rollout.env_id, rollout.steps) == ("once", ENV_ID, 2)


def test_agents_by_entry_point_and_by_reference(clinic: Path) -> None:
    assert {"once", "broken", "gold"} <= set(agent_names())
    assert make_agent("once", url="/Slot").settings == {"url": "/Slot"}
    assert make_agent("clinic_pack.agents:Once").name == "once"
    assert make_agent("clinic_pack.agents:made", url="/Slot").settings == {"url": "/Slot"}
    assert make_agent("clinic_pack.agents:ready").settings == {"url": "/Slot"}
    policy = make_agent("clinic_pack.agents:policy")
    assert isinstance(policy, ScriptedAgent) and policy.name == "policy"
    assert policy.act("anything") == "FINISH([])"
    assert isinstance(make_agent("tests.test_plugins:says_its_step"), Agent)


def says_its_step(observation: str, step: int) -> str:
    return str(step)


@pytest.mark.parametrize(
    ("name", "settings", "error", "message"),
    [
        ("onc", {}, UnknownNameError, "did you mean 'once'"),
        (
            "broken",
            {},
            PluginError,
            r"fhir_gym\.agents broken \(clinic_pack\.agents:Nobody\) of clinic-pack 1\.2 cannot",
        ),
        ("nowhere:Once", {}, UnknownNameError, "unknown module 'nowhere'"),
        ("clinic_pack.agents:Onc", {}, UnknownNameError, "did you mean 'Once'"),
        ("clinic_pack.agents:Once", {"ur": "x"}, UnknownNameError, "did you mean 'url'"),
        ("clinic_pack.agents:Once", {"url": 3}, FhirGymError, "url of agent clinic_pack.agents:Once should be a valid"),
        ("clinic_pack.agents:made", {}, FhirGymError, "needs a value for url"),
        ("clinic_pack.agents:fails", {}, AgentError, "cannot be created: KeyError: 'no key'"),
        ("clinic_pack.worlds:NOW", {}, FhirGymError, "is not an agent: .* lacks name, settings, reset, act"),
        ("clinic_pack.worlds:file", {}, FhirGymError, "is not an agent"),
    ],
)
def test_unusable_agents_give_one_line(
    clinic: Path, name: str, settings: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as told:
        make_agent(name, **settings)
    assert "\n" not in str(told.value)


def test_worlds_by_entry_point(clinic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FHIR_GYM_CACHE", str(tmp_path / "cache"))
    with worlds.load("clinic") as world:
        assert (world.name, world.manifest.total) == ("clinic", 1)
    worlds.build("clinic", clinic / "clinic_pack" / "world.sqlite")
    with worlds.load("clinic-file") as world:
        assert world.manifest.total == 1
    with pytest.raises(PluginError, match=r"number .* returns a datetime; expected a Recipe"):
        worlds.load("number")
    with pytest.warns(PluginWarning, match="number"):
        found = {world.name: world for world in worlds.available()}
    assert (found["clinic"].description, found["clinic"].built) == ("one patient", True)
    assert found["clinic-file"].description == "installed"


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("clinic_pack.agents", TaskError, "registers no tasks"),
        ("my_broken", PluginError, "module my_broken cannot be imported: ZeroDivisionError"),
        ("my_missing", UnknownNameError, "unknown environment or module 'my_missing'. Known: FHIR.*Shift-v0$"),
        ("my_brokn", UnknownNameError, "did you mean 'my_broken'"),
        ("FHIRAgent/Appointments-v0", UnknownNameError, "did you mean 'FHIRAgent/Appointment-v0'"),
        ("my_missing:A/B-v0", UnknownNameError, "unknown module"),
    ],
)
def test_entry_points_without_a_pack(
    clinic: Path, text: str, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(clinic)  # similar modules here are suggested, others are not listed
    (clinic / "my_broken.py").write_text("1 / 0\n")
    (clinic / "clinic_pack-1.2.dist-info" / "entry_points.txt").write_text("")
    with pytest.raises(error, match=message):
        find_packs(text)


def test_a_requested_broken_pack_raises_the_reason(clinic: Path) -> None:
    with pytest.warns(PluginWarning, match="Clinic/Broken-v0"):
        tasks.pack_ids()
    for _ in range(2):
        with pytest.raises(
            PluginError, match=r"Clinic/Nothing-v0 .* of clinic-pack 1\.2 registers no task of Clinic/No"
        ):
            tasks.task_keys("Clinic/Nothing-v0")
        with pytest.raises(PluginError, match=r"Clinic/Broken-v0 .* cannot be loaded"):
            tasks.task_keys("Clinic/Broken-v0")


def test_invalid_env_ids_load_no_pack(clinic: Path) -> None:
    points = f"[fhir_gym.packs]\nany name = clinic_pack.agents\n{ENV_ID} = clinic_pack.tasks\n"
    (clinic / "clinic_pack-1.2.dist-info" / "entry_points.txt").write_text(points)
    fhir_gym._register_installed()
    assert "clinic_pack.agents" in sys.modules
    assert "clinic_pack.tasks" not in sys.modules


@pytest.mark.parametrize("point", ["my_pack", "my_pack:PACK"])
def test_a_distribution_may_define_a_pack_value(clinic: Path, point: str) -> None:
    (clinic / "my_pack.py").write_text(PACK_VALUE)
    (clinic / "clinic_pack-1.2.dist-info" / "entry_points.txt").write_text(
        f"[fhir_gym.packs]\nClinic/Value-v0 = {point}\n"
    )
    fhir_gym._register_installed()
    env = gym.make("Clinic/Value-v0", split="heldout_tasks")
    assert isinstance(env.unwrapped, FHIREnv)
    assert (env.unwrapped.tasks, env.unwrapped.world.name) == (("salute",), "empty")
    env.close()
    assert EpisodeConfig("Clinic/Value-v0").step_limit == 4
    assert find_packs("my_pack") == ("Clinic/Value-v0",)


def test_a_function_may_register(clinic: Path) -> None:
    points = "[fhir_gym.packs]\nanything = my_functions:add\nother = my_functions:bad\n"
    (clinic / "clinic_pack-1.2.dist-info" / "entry_points.txt").write_text(points)
    (clinic / "my_functions.py").write_text("def add():\n    import clinic_pack.tasks\n\ndef bad():\n    1 / 0\n")
    with pytest.warns(PluginWarning, match="other .* fails: ZeroDivisionError"):
        fhir_gym._register_installed()
    assert ENV_ID in gym.registry, "its name does not say which env ids it has"


def test_an_env_id_that_gymnasium_refuses_breaks_nothing(clinic: Path) -> None:
    gym.register("Clinic/Taken", entry_point="nowhere:Nothing")
    points = f"[fhir_gym.packs]\nClinic/Taken-v1 = clinic_pack.tasks\n{ENV_ID} = clinic_pack.tasks\n"
    (clinic / "clinic_pack-1.2.dist-info" / "entry_points.txt").write_text(points)
    with pytest.warns(PluginWarning, match=r"Clinic/Taken-v1 \(clinic_pack\.tasks\) of clinic-pack 1\.2 a pack needs"):
        fhir_gym._register_installed()
    assert ENV_ID in gym.registry


def test_a_pack_that_is_imported_first_registers_once(clinic: Path) -> None:
    """A pack that imports `fhir_gym` must not be imported twice."""
    points = "[fhir_gym.packs]\nanything = clinic_pack.tasks:register\n"
    (clinic / "clinic_pack-1.2.dist-info" / "entry_points.txt").write_text(points)
    script = f"import clinic_pack.tasks, gymnasium; assert {ENV_ID!r} in gymnasium.registry"
    path = {"PYTHONPATH": os.pathsep.join([str(clinic), str(ROOT)])}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=os.environ | path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_class_in_a_function_cannot_be_sent_to_workers(clinic: Path) -> None:
    class Local(Greeting):
        pack = ""

    registry.register("Clinic/Local-v0", Local())
    with pytest.raises(TaskError, match="worker processes cannot import all tasks of Clinic/Local-v0"):
        pickle_packs(["Clinic/Local-v0"])


def test_a_process_that_does_not_know_a_pack_takes_it(clinic: Path) -> None:
    packed = pickle_packs([ENV_ID])
    del registry._registered[ENV_ID]
    unpickle_packs(packed)
    assert tasks.task_keys(ENV_ID) == ("salute",)


@pytest.mark.parametrize("wrong", [Greeting, "greet", None])
def test_only_tasks_are_registered(wrong: object) -> None:
    with pytest.raises(TaskError, match="register takes a task"):
        registry.register("Clinic/Wrong-v0", wrong)  # type: ignore[arg-type]


def test_a_pack_needs_an_env_id() -> None:
    class Other(Greeting):
        pack = ""

    with pytest.raises(TaskError, match="such as My/Pack-v0"):
        registry.register("not an id", Other())


def test_references() -> None:
    assert find_object("fhir_gym.tasks:get_task") is tasks.get_task


@pytest.mark.slow
def test_the_command_line_uses_a_users_tasks_and_agents(clinic: Path) -> None:
    (clinic / "my_tasks.py").write_text(TASKS.replace("Clinic/", "Mine/"))
    (clinic / "my_agents.py").write_text(AGENTS)

    def called(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fhir_gym", *arguments]
        path = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(clinic)])}
        return subprocess.run(command, capture_output=True, text=True, cwd=clinic, env=os.environ | path)

    checked = called("tasks", "check", "my_tasks", "--variations", "1")
    assert "Mine/Greetings-v0  gold" in checked.stdout
    choice = ["--variations", "0", "--workers", "1", "--overwrite"]
    done = called("rollout", "my_tasks", "--agent", "my_agents:Once", *choice)
    assert (done.returncode, done.stderr) == (0, "1 episodes written to rollouts.jsonl\n"), done.stderr
    failed = called("rollout", ENV_ID, "--agent", "broken", *choice)
    assert failed.returncode == 1
    assert failed.stderr.startswith("error: fhir_gym.agents broken (clinic_pack.agents:Nobody) of clinic-pack 1.2")
    assert failed.stderr.count("\n") == 1


def test_an_installed_suite_is_found(clinic: Path, tmp_path: Path) -> None:
    assert suites.suite_names()[-3:] == ("clinic-v1", "clinic-v2", "nothing-v1")
    card = suites.evaluate("clinic-v1", "gold", tmp_path / "out")
    assert card.complete and card.overall.success.count == 2
    with pytest.raises(PluginError, match=r"clinic-v2 .* of clinic-pack 1\.2 is not a Suite with the name 'clinic-v2'"):
        suites.get_suite("clinic-v2")
    with pytest.raises(PluginError, match=r"nothing-v1 .* cannot be loaded"):
        suites.get_suite("nothing-v1")
    with pytest.warns(PluginWarning) as told:
        assert [suite.name for suite in suites.known_suites()][-1] == "clinic-v1"
    assert len(told) == 2
    assert len(suites.get_suite("quick-v1").episodes) == 60, "a plugin cannot replace a suite of this package"
