"""Write folders that publish tasks as an environment for OpenEnv or verifiers. Needs neither of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from fhir_gym import __version__
from fhir_gym.episode_config import EpisodeConfig
from fhir_gym.errors import FhirGymError
from fhir_gym.files import write_files
from fhir_gym.layouts import layout_files

__all__ = ["write_openenv_folder", "write_verifiers_folder"]

_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")


def write_openenv_folder(
    configs: Sequence[EpisodeConfig], out: Path, *, wheel: Path | None = None, overwrite: bool = False
) -> None:
    """Write the folder of an OpenEnv environment, which is the folder of a Hugging Face Space too.

    Args:
        configs: The settings of the episodes, one config for each pack, as for `fhir_gym.integrations.openenv.serve`.
        out: The folder. Its name is the name of the environment.
        wheel: Wheel of fhir_gym that the folder contains and installs; None to install from the package index.
        overwrite: Whether to replace files that exist.

    Raises:
        UnknownNameError: A pack does not exist.
        FhirGymError: The name is not possible, a setting cannot be written, or a file exists or cannot be written.
    """
    calls = (f"EpisodeConfig({config.env_id!r}{_arguments(config)})" for config in configs)
    values = {"configs": ",\n    ".join(calls)}
    packs = ", ".join(config.env_id for config in configs)
    _write("openenv", out, f"Tasks with health records on a FHIR R4 server: {packs}.", "openenv", values, overwrite)
    if wheel is not None:
        write_files({out / "wheels" / wheel.name: wheel.read_bytes()}, FhirGymError)


def write_verifiers_folder(config: EpisodeConfig, out: Path, *, classic: bool = False, overwrite: bool = False) -> None:
    """Write the folder of an environment for verifiers, as ``vf-init`` does.

    Args:
        config: The default settings of the episodes.
        out: The folder. Its name is the id of the environment.
        classic: Whether to write it for verifiers before 0.4, with `load_environment`.
        overwrite: Whether to replace files that exist.

    Raises:
        UnknownNameError: The pack does not exist.
        FhirGymError: The name is not possible, a setting cannot be written, or a file exists or cannot be written.
    """
    first = "pack" if classic else "env_id"
    values = {"settings": f"{first}={config.env_id!r}{_arguments(config)}"}
    layout, extra = ("verifiers_classic", "verifiers-classic") if classic else ("verifiers", "verifiers")
    about = f"Tasks with health records on a FHIR R4 server: {config.env_id}."
    _write(layout, out, about, extra, values, overwrite)


def _write(layout: str, out: Path, description: str, extra: str, values: Mapping[str, str], overwrite: bool) -> None:
    name = out.resolve().name
    if not _NAME.fullmatch(name):
        raise FhirGymError(
            f"the folder's name is the name of the environment: use small letters, digits and -, not {name!r}"
        )
    shared = {
        "name": name,
        "package": name.replace("-", "_"),
        "version": __version__,
        "description": description,
        "requirement": f"fhir-gym[{extra}]=={__version__}",
    }
    files = {out / path: content for path, content in layout_files(layout, {**shared, **values}).items()}
    for path in files:
        if path.exists() and not overwrite:
            raise FhirGymError(f"{path} exists; use --overwrite to replace it")
    write_files(files, FhirGymError)


def _arguments(config: EpisodeConfig) -> str:
    """Return the settings that differ from the defaults as arguments of a call, after the first one."""
    config.require_support(config.choose_tasks(None))
    default = EpisodeConfig(config.env_id)
    changed: dict[str, Any] = {
        field.name: value
        for field in fields(config)
        if (value := getattr(config, field.name)) != getattr(default, field.name)
    }
    for name, value in changed.items():
        if not isinstance(value, str | int | float | dict):
            raise FhirGymError(f"{name} cannot be published: {value!r}")
    return "".join(f", {name}={value!r}" for name, value in changed.items())
