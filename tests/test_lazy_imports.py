"""An import loads only the modules that it needs. Fresh processes check it."""

from __future__ import annotations

import subprocess
import sys

import pytest

_HEAD = """
import sys

def absent(*names):
    found = [module for module in sys.modules if module.split(".")[0] in names or module in names]
    assert not found, found
"""

_ENVIRONMENT = (
    _HEAD
    + """
import fhir_gym
absent("fhir_gym.episode", "fhir_gym.fhir", "fhir_gym.tasks", "fhir_gym.worlds", "pydantic")

import gymnasium
env = gymnasium.make("FHIRAgent/Appointment-v0")
env.reset(seed=1)
env.step("FINISH([])")
env.close()
absent("typer", "click", "rich", "starlette", "uvicorn", "httpx")
"""
)

_VIEWER = (
    _HEAD
    + """
from starlette.testclient import TestClient
from fhir_gym.web import create_viewer
with TestClient(create_viewer(), base_url="http://127.0.0.1") as browser:
    assert browser.get("/").status_code == 200
absent("fhir_gym.agents", "fhir_gym.evaluation", "fhir_gym.fhir", "fhir_gym.rollouts", "pydantic")

import fhir_gym
from fhir_gym.fhir import definitions
assert definitions._table.cache_info().currsize == 1  # only the list of types

import fhir_gym.fhir.validation
absent("fhir")

import fhir_gym.mcp_servers
fhir_gym.make_agent("chat", model="m", base_url="http://h/v1")
absent("openai", "torch", "transformers", "mcp", "mcp_types")

assert fhir_gym.worlds.upload and "upload" in dir(fhir_gym.worlds) and "run" in dir(fhir_gym)
"""
)


@pytest.mark.parametrize("script", [_ENVIRONMENT, _VIEWER], ids=["environment", "viewer"])
def test_imports_load_only_what_is_used(script: str) -> None:
    subprocess.run([sys.executable, "-c", script], check=True)
