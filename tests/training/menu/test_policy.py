"""The policies for Stable-Baselines3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fhir_gym.training.config import TaskName
from fhir_gym.training.menu import MenuEnv, Templates

torch = pytest.importorskip("torch")
contrib = pytest.importorskip("sb3_contrib")
checker = pytest.importorskip("stable_baselines3.common.env_checker")


@pytest.fixture
def env(templates: Templates, tasks: list[TaskName]) -> MenuEnv:
    return MenuEnv(templates, tasks, max_steps=4)


@pytest.fixture
def model(env: MenuEnv) -> Any:
    from fhir_gym.training.menu.policy import MenuPolicy

    return contrib.MaskablePPO(MenuPolicy, env, n_steps=16, batch_size=8, n_epochs=1, seed=1)


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_the_checker_of_stable_baselines(env: MenuEnv) -> None:
    checker.check_env(env)


def test_equal_rows_have_equal_scores(env: MenuEnv, model: Any) -> None:
    seen = {name: value[None] for name, value in env.reset(seed=4)[0].items()}
    count = len(env.places)
    turned = seen | {
        "candidates": np.concatenate([seen["candidates"][:, :count][:, ::-1], seen["candidates"][:, count:]], 1)
    }
    logits, values = [], []
    for observation in (seen, turned):
        tensors = {name: torch.as_tensor(value.copy()) for name, value in observation.items()}
        logits.append(model.policy.get_distribution(tensors).distribution.logits[0, :count].detach().numpy())
        values.append(model.policy.predict_values(tensors).item())
    np.testing.assert_allclose(logits[0], logits[1][::-1], atol=1e-5)
    assert values[0] == pytest.approx(values[1], abs=1e-5)
    assert len(set(np.round(logits[0], 5))) > 1


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_an_episode_that_is_over_has_the_value_0(env: MenuEnv) -> None:
    from stable_baselines3 import DQN

    from fhir_gym.training.menu.policy import MenuQPolicy

    model = DQN(MenuQPolicy, env, buffer_size=8, seed=1)
    first = env.reset(seed=4)[0]
    filled = env.action_masks()
    for _ in range(4):
        last, *_, truncated, _ = env.step(len(filled) - 1)
    assert truncated
    for observation, empty in ((first, ~filled), (last, filled | True)):
        values = model.policy.q_net(model.policy.obs_to_tensor(observation)[0])[0].detach().numpy()
        assert set(values[empty]) == {-1.0 if observation is first else 0.0}


def test_training_changes_the_policy_and_a_saved_model_is_the_same(env: MenuEnv, model: Any, tmp_path: Path) -> None:
    before = [value.clone() for value in model.policy.parameters()]
    model.learn(32)
    assert any(not torch.equal(old, new) for old, new in zip(before, model.policy.parameters(), strict=True))
    model.save(tmp_path / "model")
    again = contrib.MaskablePPO.load(tmp_path / "model")
    seen, _ = env.reset(seed=5)
    places = [policy.predict(seen, action_masks=env.action_masks(), deterministic=True)[0] for policy in (model, again)]
    assert places[0] == places[1]
