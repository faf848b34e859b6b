"""The package of docs/publishing.md, built and installed with pip, is found wherever a pack is named."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ENV_ID = "Example/Weights-v0"
FILE = re.compile(r"^`([\w/.]+)` (?:has|names)\b.*?^```\w+\n(.*?)^```", re.DOTALL | re.MULTILINE)
BUILD_SYSTEM = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
BACKEND = '''
"""Build a wheel with the standard library alone, because tests install nothing from a registry."""
import tomllib, zipfile
from pathlib import Path

def build_wheel(folder, config_settings=None, metadata_directory=None):
    project = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"]
    stem = f"{project['name'].replace('-', '_')}-{project['version']}"
    info = f"{stem}.dist-info"
    points = "".join(
        f"[{group}]\\n" + "".join(f"{name} = {value}\\n" for name, value in found.items())
        for group, found in project["entry-points"].items()
    )
    files = {path.as_posix(): path.read_text("utf-8") for path in Path("my_clinic").glob("*.py")} | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\\nName: {project['name']}\\nVersion: {project['version']}\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        f"{info}/entry_points.txt": points,
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(Path(folder, f"{stem}-py3-none-any.whl"), "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return f"{stem}-py3-none-any.whl"
'''
IN_PYTHON = f"""
import gymnasium
import fhir_gym
env = gymnasium.make("{ENV_ID}")
env.reset(options={{"task": "latest-weight", "variation": 0}})
env.close()

from fhir_gym.integrations.trl import FHIRToolEnv
tools = FHIRToolEnv()
tools.reset("{ENV_ID}", "latest-weight", 0)
tools.finish([])
print("reward", tools.get_reward())

from fhir_gym.training.sb3 import Sb3Config
print("trains", *Sb3Config(env_ids=("{ENV_ID}",)).train_tasks()[0])

from fhir_gym import EpisodeConfig
from fhir_gym.mcp_servers import McpClient, TaskTools
with TaskTools([EpisodeConfig("{ENV_ID}")]) as server:
    task = {{"env_id": "{ENV_ID}", "task": "latest-weight", "variation": 0}}
    print("serves", server.call_now("start_task", task, McpClient("tester", "1")).data is not None)

from typer.testing import CliRunner
from fhir_gym.cli._app import app
for listed in ("tasks", "worlds", "suites"):
    print(CliRunner().invoke(app, [listed, "list"]).output)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the package of the page, and install it into a folder."""
    source, target = tmp_path_factory.mktemp("my-clinic"), tmp_path_factory.mktemp("site-packages")
    page = (ROOT / "docs" / "publishing.md").read_text("utf-8")
    files = dict(FILE.findall(page)) | {"my_clinic/__init__.py": "", "backend.py": BACKEND}
    files["my_clinic/weights.py"] = (ROOT / "examples" / "own_task.py").read_text("utf-8")
    assert files.keys() > {"pyproject.toml", "my_clinic/agents.py", "my_clinic/worlds.py", "my_clinic/suites.py"}
    files["pyproject.toml"] = re.sub(
        r"^\[build-system\].*?\n\n", BUILD_SYSTEM, files["pyproject.toml"], flags=re.DOTALL
    )
    for name, text in files.items():
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(text, "utf-8")
    options = ["--quiet", "--no-index", "--no-deps", "--no-cache-dir", "--target", str(target)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(source)], check=True)
    return target


def run(installed: Path, folder: Path, *command: str) -> str:
    """Run Python with the package installed, in another folder; return what it prints."""
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(installed)])}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=folder, env=os.environ | path)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_run_with_workers_finds_the_pack_and_the_agent(installed: Path, tmp_path: Path) -> None:
    choice = ["--agent", "counter", "--set", "type=Observation", "--variations", "0-3", "--workers", "2"]
    run(installed, tmp_path, "-m", "fhir_gym", "rollout", ENV_ID, *choice, "--out", "rollouts.jsonl")
    rollouts = [json.loads(line) for line in (tmp_path / "rollouts.jsonl").read_text("utf-8").splitlines()]
    assert [(rollout["agent"]["name"], rollout["stop_reason"]) for rollout in rollouts] == [("counter", "finished")] * 4


@pytest.mark.slow
def test_lists_gymnasium_trainers_and_servers_find_the_package(installed: Path, tmp_path: Path) -> None:
    printed = run(installed, tmp_path, "-c", IN_PYTHON)
    for expected in ("reward 0.0", f"trains {ENV_ID} latest-weight", "serves True"):
        assert expected in printed.splitlines()
    for listed in (ENV_ID, "three patients", "weights-v1"):
        assert listed in printed
