"""All documented public names exist, and every `__all__` is complete."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType

import pytest

import fhir_gym
from fhir_gym.errors import MissingExtraError

PROMISED = {
    "fhir_gym": {
        "Check",
        "Episode",
        "Rollout",
        "Step",
        "Task",
        "Verdict",
        "__version__",
        "errors",
        "fhir",
        "get_task",
        "make_agent",
        "read_rollouts",
        "run",
        "task_keys",
        "tasks",
        "worlds",
        "write_rollouts",
    },
    "fhir_gym.worlds": {"available", "build", "import_files", "load"},
    "fhir_gym.fhir": {"Request", "Response", "Session", "World"},
    "fhir_gym.tasks": {"Check", "FinishedEpisode", "Task", "Verdict", "register"},
    "fhir_gym.cli": {"main"},
    "fhir_gym.errors": {"FhirGymError", "UnknownNameError"},
}


def modules() -> dict[str, bool]:
    """Return every module and whether it needs `__all__`; packages and top-level modules need it."""
    found = pkgutil.walk_packages(fhir_gym.__path__, "fhir_gym.")
    inner = {info.name: info.ispkg or info.name.count(".") == 1 for info in found if not info.name.endswith("__main__")}
    return {"fhir_gym": True, **inner}


@pytest.mark.parametrize("name", sorted(PROMISED))
def test_promised_names_are_exported(name: str) -> None:
    module = importlib.import_module(name)
    missing = PROMISED[name] - set(module.__all__)
    assert not missing, f"{name}.__all__ lacks {sorted(missing)}"


@pytest.mark.parametrize("name", [name for name, exports in modules().items() if exports])
def test_all_is_complete(name: str) -> None:
    module = _import_if_possible(name)
    if module is None:
        pytest.skip("needs an extra that is not installed")
    assert hasattr(module, "__all__"), f"{name} has no __all__"
    missing = [export for export in module.__all__ if not hasattr(module, export)]
    assert not missing, f"{name}.__all__ names what is not there: {missing}"
    forgotten = _own_public_names(module) - set(module.__all__)
    assert not forgotten, f"{name} defines public names that __all__ lacks: {sorted(forgotten)}"


def test_modules_inside_of_packages_leave_exports_to_their_package() -> None:
    """Modules inside a package have no `__all__`; a leading underscore marks their private names.

    Integrations are public modules, and some frameworks read their `__all__`.
    """
    inner = [name for name, exports in modules().items() if not exports and ".integrations." not in name]
    assert not [name for name in inner if hasattr(_import_if_possible(name), "__all__")]


def _import_if_possible(name: str) -> ModuleType | None:
    """Import a module; None if it needs a library of an extra that is not installed."""
    try:
        return importlib.import_module(name)
    except MissingExtraError:
        return None
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "stable_baselines3", "sb3_contrib", "trl"):
            raise
        return None


def _own_public_names(module: ModuleType) -> set[str]:
    """Return the public classes and functions that a module defines."""
    return {
        name
        for name, value in vars(module).items()
        if name.isidentifier()
        and not name.startswith("_")  # pydantic names generic models Params[~T]
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    }
