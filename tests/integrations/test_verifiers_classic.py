"""The classic environment in the loop of verifiers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verifiers.legacy", reason="this version of verifiers has no classic interface")

import verifiers as vf

from fhir_gym.fhir import World
from fhir_gym.testing import ChatServer, GoldOverChat
from tests.integrations.conftest import VERIFIERS_ID
from tests.integrations.contract import Outcome, Policy, TrainerContract, looking
from tests.integrations.gold import GoldEpisode

pytestmark = [pytest.mark.usefixtures("published"), pytest.mark.parametrize("published", [True], indirect=True)]


def evaluate(policy: Policy, options: Mapping[str, Any] = {}, **settings: Any) -> Any:
    """Play the training dataset as a trainer does; return the results of verifiers."""
    environment = vf.load_environment(VERIFIERS_ID, **settings)
    environment.set_kwargs(**options)
    with ChatServer(policy) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCRIPTED_KEY", "none")
        client = vf.ClientConfig(api_key_var="SCRIPTED_KEY", api_base_url=server.base_url)
        results = asyncio.run(environment.generate(environment.get_dataset(), client, "scripted"))
    return results["outputs"]


class TestClassicVerifiers(TrainerContract):
    def play(self, row: Mapping[str, Any], policy: Policy, **settings: Any) -> Outcome:
        chosen = {"pack": row["env_id"], "tasks": row["task"], "variations": row["variation"]}
        (output,) = evaluate(policy, **chosen, **settings)
        if output.get("error"):
            assert "the FHIR server is down" in str(output["error"])
            return Outcome(None, False)
        assert output["metrics"]["truncated"] == output["is_truncated"]
        return Outcome(output["reward"], output["is_truncated"])


def test_a_limit_of_verifiers_is_a_truncation_and_graded() -> None:
    (output,) = evaluate(looking, {"max_turns": 2}, tasks="01", variations=0)
    assert (output["is_truncated"], output["reward"], output["metrics"]["steps"]) == (True, 0.0, 1.0)


def test_evaluations_get_test_variations() -> None:
    environment = vf.load_environment(VERIFIERS_ID, tasks=["01"], variations="0-4")
    assert [row["info"]["episode"]["variation"] for row in environment.get_dataset()] == [0, 1, 2, 3, 4]
    assert [row["info"]["episode"]["variation"] for row in environment.get_eval_dataset()] == [*range(1000, 1010)]


@pytest.mark.slow
def test_vf_eval_runs_the_environment(hospital: World, tmp_path: Path) -> None:
    gold = GoldOverChat(hospital, [GoldEpisode("FHIRAgent/Appointment-v0", "01", 1000)])
    with ChatServer(gold) as server:
        command = [
            str(Path(sys.executable).with_name("vf-eval")),
            VERIFIERS_ID,
            "-m",
            "scripted",
            "-b",
            server.base_url,
        ]
        command += ["-a", '{"tasks": ["01"], "eval_variations": 1000}', "-n", "1", "-r", "2", "-k", "HOME"]
        done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert "reward: avg - 1.000" in done.stdout
