"""MenuEnv: an agent chooses actions from a menu."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import fhir_gym
from fhir_gym.errors import TrainingError
from fhir_gym.training.menu import MenuEnv, Templates, learn_templates

APPOINTMENT = "FHIRAgent/Appointment-v0"
TASKS = [(APPOINTMENT, "02a"), (APPOINTMENT, "16c")]


@pytest.fixture(scope="module")
def templates() -> Templates:
    keys = [task for _, task in TASKS]
    return learn_templates(fhir_gym.run(APPOINTMENT, "gold", tasks=keys, variations="0-11"))


def test_gymnasium_checker(templates: Templates) -> None:
    check_env(MenuEnv(templates, TASKS), skip_render_check=True)


def test_an_empty_place_counts_as_a_step(templates: Templates) -> None:
    env = MenuEnv(templates, TASKS, max_steps=2)
    env.reset(seed=1)
    mask = env.action_masks()
    assert mask.any() and not mask.all()
    empty = int(np.flatnonzero(~mask)[0])
    assert env.step(empty)[2:4] == (False, False)
    assert env.step(empty)[2:4] == (False, True)


def test_test_variations_are_refused(templates: Templates) -> None:
    with pytest.raises(TrainingError, match="must not be learnt from test variations"):
        learn_templates(fhir_gym.run(APPOINTMENT, "gold", tasks="02a", variations=1000))
