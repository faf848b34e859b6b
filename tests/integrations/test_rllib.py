"""RLlib trains on the menu."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fhir_gym.errors import UnknownNameError
from fhir_gym.fhir import World
from fhir_gym.rollouts import run
from fhir_gym.training.menu import PLACES, learn_templates
from fhir_gym.training.rllib import menu_ppo

ray: Any = pytest.importorskip("ray")
torch: Any = pytest.importorskip("torch")
pytest.importorskip("ray.rllib")

ENV_ID = "FHIRAgent/Appointment-v0"
TASKS = ("01", "02b")


def test_an_iteration_changes_the_policy_and_never_chooses_empty_places(hospital: World, tmp_path: Path) -> None:
    learn_templates(run(ENV_ID, "gold", tasks=TASKS, variations="0-4", world=hospital)).save(tmp_path / "menu.json")
    config = menu_ppo(tmp_path / "menu.json", [(ENV_ID, key) for key in TASKS], variations=range(10), prepared=20)
    config.training(train_batch_size_per_learner=128, minibatch_size=64, num_epochs=2)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        algorithm = config.build_algo()
        before = {name: value.copy() for name, value in algorithm.get_module().get_state().items()}
        found = algorithm.train()["env_runners"]
        assert found["num_env_steps_sampled"] >= 128
        assert 0.0 <= found["episode_return_min"] <= found["episode_return_max"] <= 1.0
        after = algorithm.get_module().get_state()
        assert any((after[name] != value).any() for name, value in before.items())
        rows = torch.zeros(1, PLACES, 48, dtype=torch.int16)
        rows[0, 3, 0] = rows[0, 5, 0] = 7
        seen = {"obs": {"state": torch.ones(1, 384, dtype=torch.int16), "candidates": rows}}
        chances = torch.softmax(algorithm.get_module().forward_inference(seen)["action_dist_inputs"], -1)[0]
        assert chances.nonzero().flatten().tolist() == [3, 5]
        algorithm.stop()
    finally:
        ray.shutdown()


@pytest.mark.parametrize(("env_id", "task", "unknown"), [(ENV_ID, "99", "'99'"), ("Nothing-v0", "01", "'Nothing-v0'")])
def test_a_wrong_name_is_refused_before_ray_starts(tmp_path: Path, env_id: str, task: str, unknown: str) -> None:
    with pytest.raises(UnknownNameError, match=unknown):
        menu_ppo(tmp_path / "menu.json", [(env_id, task)])
