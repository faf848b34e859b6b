"""The Dockerfile and the compose file agree with the commands and the docs; `make test-docker` builds and runs them."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from fhir_gym.cli._app import app

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text("utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text("utf-8"))["services"]
PAGE = (ROOT / "docs" / "docker.md").read_text("utf-8")
PORTS = {"server": 8080, "openenv": 8000}


def stage(name: str) -> str:
    """Return the instructions of a stage of the Dockerfile."""
    (text,) = re.findall(rf"^FROM \S+ AS {name}\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.DOTALL | re.MULTILINE)
    return str(text)


def check_command(words: list[str]) -> None:
    """Check that the command line accepts these words."""
    command: Any = get_command(app)
    while getattr(command, "commands", None):
        command = command.commands[words.pop(0)]
    command.make_context("fhir-gym", words)


@pytest.mark.parametrize("name", PORTS)
def test_an_image_runs_a_command_as_an_ordinary_user_and_checks_its_health(name: str) -> None:
    text = stage(name)
    assert f"FROM runtime AS {name}\n" in DOCKERFILE and "USER" not in text
    assert re.findall(r"^USER (\d+):", stage("runtime"), re.MULTILINE) == ["10001"]
    assert 'ENTRYPOINT ["fhir-gym"]' in stage("runtime")
    assert re.findall(r"^EXPOSE (\d+)", text, re.MULTILINE) == [str(PORTS[name])]
    assert f"http://127.0.0.1:{PORTS[name]}/" in text.partition("HEALTHCHECK")[2]
    words = json.loads(re.findall(r"^CMD (.*)", text, re.MULTILINE)[-1])
    assert words[-2:] == ["--host", "0.0.0.0"]
    check_command(words)


def test_the_images_contain_every_package_and_its_licenses() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        assert f"\n!{package}\n" in (ROOT / ".dockerignore").read_text("utf-8")
        assert f"COPY {package} {package}\n" in stage("wheel")
    for notice in project["project"]["license-files"]:
        assert f"\n!{notice}\n" in (ROOT / ".dockerignore").read_text("utf-8")
        assert stage("wheel").count(f" {notice} ") == 1


def test_the_default_image_is_the_server() -> None:
    assert re.findall(r"^FROM \S+ AS (\S+)", DOCKERFILE, re.MULTILINE)[-1] == "server"


def test_services_listen_on_loopback_without_privileges() -> None:
    ports = {name: service["ports"] for name, service in COMPOSE.items() if "ports" in service}
    assert ports == {
        "fhir": ["127.0.0.1:8080:8080"],
        "openenv": ["127.0.0.1:8000:8000"],
        "hapi": ["127.0.0.1:8090:8080"],
    }
    for name, service in COMPOSE.items():
        if name != "hapi":
            assert service["cap_drop"] == ["ALL"], name
            assert service["build"]["target"] in PORTS, name
            assert (ROOT / "docker" / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        assert ("profiles" in service) == (name in ("hapi", "upload"))
    check_command(list(COMPOSE["upload"]["command"]))


def test_the_page_names_every_service_port_and_argument() -> None:
    for name, service in COMPOSE.items():
        assert f"`{name}`" in PAGE
        for port in service.get("ports", ()):
            assert f"127.0.0.1:{port.split(':')[1]}" in PAGE
    for argument in set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE)):
        assert f"`{argument}`" in PAGE
    assert COMPOSE["hapi"]["image"] in PAGE


def test_commands_of_the_page_exist() -> None:
    commands = re.findall(r"^    docker run .*? fhir-gym(?:-openenv)? (\S.*)$", PAGE, re.MULTILINE)
    assert len(commands) >= 2
    for command in commands:
        check_command(shlex.split(command))
