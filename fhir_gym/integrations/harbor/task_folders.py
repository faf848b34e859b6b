"""Write episodes as task folders of Harbor."""

from __future__ import annotations

import json
import socket
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from pydantic import ValidationError

from fhir_gym import __version__
from fhir_gym.actions import GRAMMAR, Action, to_request
from fhir_gym.errors import FhirGymError, InfraError, TaskError
from fhir_gym.fhir import Request
from fhir_gym.files import write_files
from fhir_gym.integrations.harbor.server import FINISH_PATH, HEALTH_PATH
from fhir_gym.layouts import layout_files
from fhir_gym.mcp_servers.server import HTTP_PATH
from fhir_gym.rollouts import Rollout, RunPlan, run_plan
from fhir_gym.types import Json

SOCKET = Path("/tmp/fhir-gym.sock")  # only the server's own container has this path
"""Path of the socket over which the server of the episode sends the result."""
VERDICT_FOLDER = Path("/tmp/fhir-gym-verdict")
"""Folder that Harbor copies from the server's container to the verifier's container."""
REWARD, VERDICT, ROLLOUT = "reward.json", "verdict.json", "rollout.jsonl"
"""Names of the files: the reward, the verdict for people, and the record of the episode."""
_PIECE = 65_536
_TIMEOUT = 60.0


def fetch_result(path: Path) -> Rollout:
    """End the episode of a server, if it still runs, and return its record.

    Args:
        path: The server's socket.

    Raises:
        InfraError: The server does not answer.
    """
    received = bytearray()
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_TIMEOUT)
            connection.connect(str(path))
            while piece := connection.recv(_PIECE):
                received += piece
        return Rollout.model_validate_json(bytes(received))
    except (OSError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else "the answer is incomplete"
        raise InfraError(f"the server of the episode at {path} does not answer: {reason or error}") from error


def write_verdict_files(rollout: Rollout, folder: Path) -> None:
    """Write the record, the verdict and the reward. An episode without a verdict has no reward file.

    Raises:
        FhirGymError: A file cannot be written.
        InfraError: The episode has no verdict.
    """
    files: dict[Path, str | bytes] = {folder / ROLLOUT: rollout.line() + "\n"}
    files[folder / VERDICT] = json.dumps(_summary(rollout), ensure_ascii=False, indent=2) + "\n"
    if rollout.graded:
        files[folder / REWARD] = json.dumps({"reward": rollout.reward}) + "\n"
    write_files(files, FhirGymError)
    if not rollout.graded:
        raise InfraError(f"the episode has no verdict: {rollout.error or rollout.stop_reason}")


def _summary(rollout: Rollout) -> dict[str, object]:
    verdict = rollout.verdict
    return {
        "task": rollout.task.model_dump(mode="json", include={"key", "variation", "phrasing"}),
        "stop_reason": rollout.stop_reason,
        "truncated": rollout.stop_reason in ("step_limit", "unfinished"),
        "error": rollout.error,
        "steps": rollout.steps,
        "success": rollout.success,
        "reward": rollout.reward,
        "checks": [{"name": check.name, "passed": check.passed} for check in (verdict.checks if verdict else ())],
        "explanation": verdict.explanation if verdict else None,
    }


SERVICE, PORT = "fhir", 8080
"""Compose service of the episode's server, which is its host name too, and the server's port."""
ORIGIN = f"http://{SERVICE}:{PORT}"
BASE_URL = f"{ORIGIN}/fhir"
"""Base URL of the FHIR server as the agent reaches it."""
IMAGE = "fhir-gym-harbor"
"""Default image of the server: docker/Dockerfile with the extra ``mcp`` and the worlds of all packs."""
_WITH_MCP = {
    "mcp_server": f'''[[environment.mcp_servers]]
name = "{SERVICE}"
transport = "streamable-http"
url = "{ORIGIN}{HTTP_PATH}"

''',
    "tools": f", or call the tools of the MCP server `{SERVICE}` ({ORIGIN}{HTTP_PATH})",
    "actions": "requests and tool calls",
    "finish_tool": "The MCP tool `finish` does the same. ",
}
_WITHOUT_MCP = {"mcp_server": "", "tools": "", "actions": "requests", "finish_tool": ""}
ORGANIZATION = "fhir-gym"
"""Default organization in the names of tasks and datasets."""
_HEALTH = f"import urllib.request as r; r.urlopen('http://127.0.0.1:{PORT}{HEALTH_PATH}', timeout=2)"


def write_task_folders(
    plan: RunPlan,
    out: Path,
    *,
    image: str = IMAGE,
    mcp: bool = True,
    organization: str = ORGANIZATION,
    overwrite: bool = False,
) -> Iterator[Path]:
    """Write one task folder per episode of a plan, and yield each folder's path.

    Args:
        plan: The episodes.
        out: Folder for the task folders.
        image: Image of the server; it must contain this version of the package.
        mcp: Whether Harbor configures the agent with the MCP server. Harbor then refuses agents that cannot use MCP.
        organization: First part of the names of the tasks.
        overwrite: Whether to replace folders that exist.

    Raises:
        TaskError: A reference solution fails.
        FhirGymError: A folder exists or cannot be written.
    """
    config = replace(plan.config, base_url=BASE_URL)
    for rollout in run_plan(replace(plan, config=config), "gold"):
        path = out / folder_name(rollout)
        if path.exists() and not overwrite:
            raise FhirGymError(f"{path} exists; use --overwrite to replace it")
        files = task_files(rollout, image, mcp=mcp, organization=organization)
        write_files({path / name: content for name, content in files.items()}, FhirGymError)
        yield path


def folder_name(rollout: Rollout) -> str:
    """Return the name of an episode's folder, such as ``appointment-v0-02a-1000``."""
    text = f"{rollout.env_id.rpartition('/')[2]}-{rollout.task.key}-{rollout.task.variation}"
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in text).lower()


def task_files(
    rollout: Rollout, image: str = IMAGE, *, mcp: bool = True, organization: str = ORGANIZATION
) -> dict[str, str]:
    """Return the content of the files of a task folder.

    Args:
        rollout: The record of the episode as the reference solution plays it at `BASE_URL`.
        image: Image of the server.
        mcp: Whether Harbor configures the agent with the MCP server.
        organization: First part of the task's name.

    Raises:
        TaskError: The reference solution does not solve the task.
    """
    if not rollout.success:
        task = rollout.task
        raise TaskError(f"the reference solution of task {task.key}, variation {task.variation} fails")
    task, folder = rollout.task, folder_name(rollout)
    metadata: dict[str, Json] = {
        "env_id": rollout.env_id,
        "task": task.key,
        "variation": task.variation,
        "phrasing": task.phrasing,
        "split": task.split,
        "category": task.category,
        "world": rollout.world.name,
        "grading": rollout.grading,
        "reward": rollout.reward_rule,
        "max_steps": rollout.max_steps,
        "fhir_gym": rollout.package_version,
    }
    values = {
        "name": f"{organization}/{folder}",
        "title": _json(task.title),
        "metadata": "\n".join(f"{name} = {_json(value)}" for name, value in metadata.items()),
        "service": SERVICE,
        "image": _json(image),
        "command": _json(_serve_command(rollout)),
        "health": _json(["CMD", "python", "-c", _HEALTH]),
        "verdict_folder": str(VERDICT_FOLDER),
        "reward_file": REWARD,
        "verdict_file": VERDICT,
        "prompt": rollout.prompt,
        "base_url": BASE_URL,
        "finish_url": f"{ORIGIN}{FINISH_PATH}",
        "max_steps": str(rollout.max_steps),
        "requests": json.dumps(_solution(rollout), ensure_ascii=False, indent=2),
    }
    return layout_files("harbor_task", values | (_WITH_MCP if mcp else _WITHOUT_MCP))


def write_dataset(out: Path, organization: str = ORGANIZATION) -> None:
    """Write ``dataset.toml``, which names all task folders in a folder, and a README.

    Raises:
        FhirGymError: A file cannot be written or read.
    """
    tasks = []
    for config in sorted(out.glob("*/task.toml")):
        name = tomllib.loads(config.read_text("utf-8"))["task"]["name"]
        tasks.append(f'\n[[tasks]]\nname = "{name}"\ndigest = "sha256:{_digest(config.parent)}"')
    values = {
        "name": f"{organization}/{out.resolve().name}",
        "version": __version__,
        "description": f"{len(tasks)} tasks with health records on a FHIR R4 server.",
        "tasks": "\n".join(tasks),
    }
    files = layout_files("harbor_dataset", values)
    write_files({out / name: content for name, content in files.items()}, FhirGymError)


def _digest(folder: Path) -> str:
    """Return the digest of a task folder as Harbor computes it."""
    digest = sha256()
    for name, path in sorted((path.relative_to(folder).as_posix(), path) for path in folder.rglob("*")):
        if path.is_file():
            digest.update(f"{name}\0{sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def _serve_command(rollout: Rollout) -> list[Json]:
    task = rollout.task
    options: dict[str, Json] = {
        "task": task.key,
        "variation": task.variation,
        "phrasing": task.phrasing,
        "world": rollout.world.name,
        "grading": rollout.grading,
        "reward": rollout.reward_rule,
        "max-steps": rollout.max_steps,
        "task-hash": task.hash,
        "world-hash": rollout.world.hash,
        "base-url": BASE_URL,
        "host": "0.0.0.0",
        "port": PORT,
    }
    return ["research", "harbor", "serve", rollout.env_id, *(f"--{name}={value}" for name, value in options.items())]


def _solution(rollout: Rollout) -> list[dict[str, Json]]:
    """Return the requests of the reference solution; the last one posts the answer."""
    steps: list[dict[str, Json]] = []
    for turn in rollout.turns:
        action = GRAMMAR.parse(turn.action)
        assert isinstance(action, Action)
        if action.kind == "FINISH":
            headers = {"content-type": "application/json"}
            steps.append(_step("POST", f"{ORIGIN}{FINISH_PATH}", headers, _json(action.answer)))
            continue
        request = to_request(action, BASE_URL)
        assert isinstance(request, Request)
        query = f"?{request.query}" if request.query else ""
        url = f"{BASE_URL}{request.path}{query}"
        steps.append(_step(request.method, url, dict(request.headers), request.body.decode() or None))
    return steps


def _step(method: str, url: str, headers: dict[str, str], body: str | None) -> dict[str, Json]:
    return {"method": method, "url": url, "headers": {**headers}, "body": body}


def _json(value: Json) -> str:
    """Return a value as JSON, which is also TOML (for text and numbers) and YAML."""
    return json.dumps(value, ensure_ascii=False)
