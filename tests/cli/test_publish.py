"""The folders that `fhir-gym publish` writes, without the frameworks that use them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from fhir_gym import EpisodeConfig, __version__
from fhir_gym.errors import FhirGymError
from fhir_gym.integrations.publish import write_openenv_folder, write_verifiers_folder
from tests.cli.conftest import Cli

APPOINTMENT, SHIFT = "FHIRAgent/Appointment-v0", "FHIRAgent/Shift-v0"


def paths(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def check_style(folder: Path) -> None:
    """Compile the Python files: a framework imports them only when somebody uses the folder."""
    for path in folder.rglob("*.py"):
        compile(path.read_text("utf-8"), str(path), "exec")


def test_a_folder_for_openenv_has_the_layout_of_openenv_init(cli: Cli, tmp_path: Path) -> None:
    out, wheel = tmp_path / "fhir-desk", tmp_path / "fhir_gym-0-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    options = ("--dial", "minutes=60", "--reward", "dense", "--wheel", wheel)
    assert cli("publish", "openenv", SHIFT, "--out", out, *options).code == 0
    assert paths(out) >= {"openenv.yaml", "__init__.py", "client.py", "models.py", "README.md", "pyproject.toml"}
    assert paths(out) >= {"server/__init__.py", "server/app.py", "Dockerfile", f"wheels/{wheel.name}"}
    manifest = yaml.safe_load((out / "openenv.yaml").read_text("utf-8"))
    assert (manifest["name"], manifest["app"], manifest["version"]) == ("fhir-desk", "server.app:app", __version__)
    assert SHIFT in manifest["description"]
    project = tomllib.loads((out / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["scripts"] == {"server": "fhir_desk.server.app:main"}
    call = f"EpisodeConfig('{SHIFT}', reward='dense', dials={{'minutes': 60.0}})"
    assert call in (out / "server" / "app.py").read_text("utf-8")
    check_style(out)


@pytest.mark.parametrize("classic", [True, False])
def test_a_folder_for_verifiers_has_the_layout_of_vf_init(tmp_path: Path, classic: bool) -> None:
    out = tmp_path / "fhir-desk"
    write_verifiers_folder(EpisodeConfig(APPOINTMENT, max_steps=9), out, classic=classic)
    module = "fhir_desk.py" if classic else "fhir_desk/__init__.py"
    assert paths(out) == {"README.md", "pyproject.toml", module}
    project = tomllib.loads((out / "pyproject.toml").read_text("utf-8"))["project"]
    extra = "verifiers-classic" if classic else "verifiers"
    assert (project["name"], project["dependencies"]) == ("fhir-desk", [f"fhir-gym[{extra}]=={__version__}"])
    assert "max_steps=9" in (out / module).read_text("utf-8")
    check_style(out)


def test_equal_folders_are_equal_byte_for_byte_and_are_kept(tmp_path: Path) -> None:
    configs = [EpisodeConfig(APPOINTMENT), EpisodeConfig(SHIFT, level=2)]
    write_openenv_folder(configs, tmp_path / "fhir")
    before = {path: (tmp_path / "fhir" / path).read_bytes() for path in paths(tmp_path / "fhir")}
    with pytest.raises(FhirGymError, match="exists; use --overwrite"):
        write_openenv_folder(configs, tmp_path / "fhir")
    write_openenv_folder(configs, tmp_path / "fhir", overwrite=True)
    assert before == {path: (tmp_path / "fhir" / path).read_bytes() for path in paths(tmp_path / "fhir")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("openenv", "FHIRAgent/Appointmnt-v0", "--out", "fhir"), "did you mean 'FHIRAgent/Appointment-v0'?"),
        (("openenv", APPOINTMENT, "--level", "2", "--out", "fhir"), "has no levels, not level 2"),
        (("openenv", SHIFT, "--phrasing", "brief", "--out", "fhir"), "but not 'brief'"),
        (("verifiers", SHIFT, "--dial", "hours=1", "--out", "fhir"), "hours"),
        (("verifiers", APPOINTMENT, "--out", "My Tasks"), "use small letters, digits and -, not 'My Tasks'"),
    ],
)
def test_a_wrong_setting_is_refused_before_a_file_is_written(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = cli("publish", *arguments)
    assert outcome.code in (1, 2) and message in outcome.err and outcome.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_publishing_imports_no_framework(tmp_path: Path) -> None:
    command = ["publish", "openenv", APPOINTMENT, "--out", str(tmp_path / "fhir")]
    source = (
        f"import sys, fhir_gym.cli as c\ntry: c.main({command})\nexcept SystemExit: print('openenv' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", source], check=True, capture_output=True).stdout == b"False\n"
