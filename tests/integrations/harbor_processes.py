"""An environment for Harbor that runs the services of a task folder as processes, because tests have no containers.

Each service has a folder of its own in place of its file system; absolute paths of containers in commands and files
are mapped to it. The host name of the server is mapped to a free port of this machine.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import yaml
from harbor.agents.base import BaseAgent
from harbor.agents.capabilities import AgentCapabilities
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities
from typing_extensions import override

ORIGIN = "http://fhir:8080"
_CONTAINER_PATH = re.compile(r"(?<![\w/.])/(logs|solution|tests|tmp/fhir-gym[\w.-]*)(?![\w-])")


class ProcessEnvironment(BaseEnvironment):
    """The services ``main`` and ``fhir`` of a task folder, as processes of this machine.

    Args:
        server_dies: Whether the server is killed when the agent's container stops.
    """

    def __init__(self, *args: Any, server_dies: bool = False, **kwargs: Any) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="fhir-gym-harbor-"))
        self._server: subprocess.Popen[bytes] | None = None
        self._server_dies = server_dies
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.origin = f"http://127.0.0.1:{free.getsockname()[1]}"
        super().__init__(*args, **kwargs)

    @staticmethod
    @override
    def type() -> str:
        return "processes"

    @property
    @override
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(docker_compose=True)

    @override
    def _validate_definition(self) -> None:
        assert (self.environment_dir / "Dockerfile").is_file()

    @override
    async def start(self, force_build: bool) -> None:
        for name in ("agent", "artifacts", "verifier"):
            (self._root / "main" / "logs" / name).mkdir(parents=True)
        for line in (self.environment_dir / "Dockerfile").read_text().splitlines():
            if line.startswith("COPY "):
                _, source, target = line.split()
                await self.upload_file(self.environment_dir / source, target)
        compose = self.environment_dir / "docker-compose.yaml"
        if compose.is_file():
            self._start_server(yaml.safe_load(compose.read_text())["services"]["fhir"])

    def _start_server(self, service: dict[str, Any]) -> None:
        port = self.origin.rpartition(":")[2]
        changed = {"host": "127.0.0.1", "port": port, "base-url": f"{self.origin}/fhir"}
        command = [command for command in service["command"] if command[2:].partition("=")[0] not in changed]
        command += [f"--{name}={value}" for name, value in changed.items()]
        command.append(f"--socket={self._mapped('/tmp/fhir-gym.sock', 'fhir')}")
        (self._root / "fhir" / "tmp").mkdir(parents=True)
        self._server = subprocess.Popen([sys.executable, "-m", "fhir_gym", *command])
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{self.origin}/health", timeout=2).close()
            except OSError:
                assert self._server.poll() is None, "the server stopped"
                time.sleep(0.1)
            else:
                return
        raise AssertionError("the server did not start")

    @override
    async def stop(self, delete: bool) -> None:
        self._stop_server()
        shutil.rmtree(self._root, ignore_errors=True)

    @override
    async def stop_service(self, service: str) -> None:
        assert service == "main"
        if self._server_dies:
            self._stop_server()

    def _stop_server(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()

    @override
    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        target = Path(self._mapped(target_path))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(self._mapped(Path(source_path).read_text()))
        target.chmod(0o755)

    @override
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        for path in Path(source_dir).rglob("*"):
            if path.is_file():
                await self.upload_file(path, f"{target_dir}/{path.relative_to(source_dir)}")

    @override
    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        await self.service_download_file(source_path, target_path)

    @override
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        await self.service_download_dir(source_dir, target_dir)

    @override
    async def service_download_file(
        self, source_path: str, target_path: Path | str, *, service: str | None = None
    ) -> None:
        shutil.copyfile(self._mapped(source_path, service), target_path)

    @override
    async def service_download_dir(
        self, source_dir: str, target_dir: Path | str, *, service: str | None = None
    ) -> None:
        shutil.copytree(self._mapped(source_dir, service), target_dir, dirs_exist_ok=True)

    @override
    async def exec(self, command: str, *args: Any, **kwargs: Any) -> ExecResult:
        return await self.service_exec(command)

    @override
    async def service_exec(self, command: str, *, service: str | None = None, **_: Any) -> ExecResult:
        command, is_ours, arguments = self._mapped(command, service).rpartition("fhir-gym ")
        if is_ours:
            places = self._mapped("--socket /tmp/fhir-gym.sock --out /tmp/fhir-gym-verdict", service)
            arguments = f"{shlex.quote(sys.executable)} -m fhir_gym {arguments} {places}"
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", command + arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        output = (await process.communicate())[0]
        return ExecResult(stdout=output.decode(), stderr=None, return_code=process.returncode or 0)

    def _mapped(self, text: str, service: str | None = None) -> str:
        """Map the paths and the server's address in a path, a command or a file."""
        folder = self._root / (service or "main")
        return _CONTAINER_PATH.sub(lambda match: f"{folder}{match[0]}", text).replace(ORIGIN, self.origin)


class ForgingAgent(BaseAgent):
    """An agent that writes rewards instead of solving the task, and looks for the verdict."""

    capabilities = AgentCapabilities(mcp_servers=True)

    @staticmethod
    @override
    def name() -> str:
        return "forging"

    @override
    def version(self) -> str:
        return "1"

    @override
    async def setup(self, environment: BaseEnvironment) -> None:
        return

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: Any) -> None:
        reward = """'{"reward": 1}'"""
        for folder in (
            "/logs/verifier",
            "/logs/artifacts",
            "/logs/artifacts/tmp/fhir-gym-verdict",
            "/tmp/fhir-gym-verdict",
        ):
            await environment.exec(
                f"mkdir -p {folder} && echo {reward} > {folder}/reward.json && echo 1 > {folder}/reward.txt"
            )
        for path in ("verdict", "reward", "reset", "finish"):
            await environment.exec(f"curl -s -X POST {ORIGIN}/{path} -d {reward}")
