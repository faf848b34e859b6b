from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from fhir_gym.errors import ArgumentError, FhirGymError, TrainingError, UnknownNameError
from fhir_gym.training.config import TaskName
from fhir_gym.training.curriculum import Curriculum, EpisodeChoice, other_phrasings

ENV_ID = "FHIRAgent/Appointment-v0"
NAMES = [TaskName(ENV_ID, key) for key in ("01", "02a", "03", "04a")]


def make(**settings: Any) -> Curriculum:
    given: dict[str, Any] = {"tasks": NAMES, "variations": range(10), "rule": "success", "seed": 3} | settings
    return Curriculum(**given)


def test_tasks_that_succeed_half_of_the_time_are_drawn_most() -> None:
    curriculum = make()
    for number in range(100):
        for name, success in zip(NAMES, (True, False, number % 2 == 0), strict=False):
            curriculum.record(name, success)
    always, never, half, untried = (curriculum.weights()[name] for name in NAMES)
    assert always < half / 3 and never < half / 3
    assert half == pytest.approx(untried, rel=0.05)
    drawn = Counter(curriculum.draw().task for _ in range(4_000))
    for name, weight in curriculum.weights().items():
        assert drawn[name.task] / 4_000 == pytest.approx(weight, abs=0.03)


def test_the_floor_keeps_solved_and_hopeless_tasks_in_the_draw() -> None:
    curriculum = make(floor=0.2, decay=1.0)
    for name, success in zip(NAMES, (True, False), strict=False):
        for _ in range(1_000):
            curriculum.record(name, success)
    assert list(curriculum.weights().values()) == pytest.approx([0.2 / 2.4, 0.2 / 2.4, 1 / 2.4, 1 / 2.4])


def test_old_episodes_are_forgotten() -> None:
    curriculum = make(decay=0.8)
    for success in [True] * 50 + [False] * 50:
        curriculum.record(NAMES[0], success)
    assert curriculum.success_rates()[NAMES[0]] < 0.15


def test_a_uniform_curriculum_ignores_success() -> None:
    curriculum = make(rule="uniform")
    curriculum.record(NAMES[0], True)
    assert set(curriculum.weights().values()) == {0.25}
    choices = [curriculum.draw() for _ in range(400)]
    assert {choice.name for choice in choices} == set(NAMES)
    assert {choice.variation for choice in choices} == set(range(10))
    assert {choice.phrasing for choice in choices} == {None}


def test_held_out_tasks_and_phrasings_are_never_drawn() -> None:
    curriculum = make(held_out=NAMES[:1], phrasings=other_phrasings(NAMES, 1))
    choices = [curriculum.draw() for _ in range(300)]
    assert {choice.name for choice in choices} == set(NAMES[1:])
    phrasings = {choice.phrasing for choice in choices}
    assert 1 not in phrasings and {0, 2} <= phrasings


def test_equal_seeds_draw_the_same_episodes() -> None:
    first, second, other = (make(seed=seed) for seed in (7, 7, 8))
    draws = [[curriculum.draw() for _ in range(20)] for curriculum in (first, second, other)]
    assert draws[0] == draws[1] != draws[2]


def test_a_saved_curriculum_continues_with_the_same_draws() -> None:
    curriculum = make()
    for _ in range(30):
        choice = curriculum.draw()
        curriculum.record(choice.name, choice.variation > 4)
    state = json.loads(json.dumps(curriculum.state_dict()))
    again = make(seed=0)
    again.load_state_dict(state)
    assert again.drawn == 30 and again.weights() == curriculum.weights()
    assert [again.draw() for _ in range(20)] == [curriculum.draw() for _ in range(20)]


@pytest.mark.parametrize("broken", [{}, {"random": 1, "counts": [], "drawn": 0}, {"counts": [[1]]}])
def test_an_unusable_state_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(TrainingError, match="curriculum"):
        make().load_state_dict(broken)


def test_a_state_of_other_tasks_is_refused() -> None:
    with pytest.raises(TrainingError, match="other tasks"):
        make().load_state_dict(make(tasks=NAMES[:2]).state_dict())


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"variations": [5, 1000]}, ArgumentError, "variation 1000 is not in split 'train'"),
        ({"variations": []}, ArgumentError, "at least one variation"),
        ({"held_out": NAMES}, ArgumentError, "at least one task"),
        ({"floor": 0}, ArgumentError, "floor must be above 0"),
        ({"decay": 1.5}, ArgumentError, "decay must be above 0"),
        ({"rule": "succes"}, UnknownNameError, "did you mean 'success'"),
        ({"tasks": [TaskName(ENV_ID, "99")]}, UnknownNameError, "unknown task"),
        ({"phrasings": {NAMES[0]: [99]}}, ArgumentError, "not 99"),
        ({"phrasings": {NAMES[0]: []}}, ArgumentError, "empty list of phrasings"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], error: type[FhirGymError], said: str) -> None:
    with pytest.raises(error, match=said):
        make(**settings)


def test_an_unknown_task_cannot_be_counted() -> None:
    with pytest.raises(TrainingError, match="does not have task '05'"):
        make().record(TaskName(ENV_ID, "05"), True)


def test_a_choice_names_its_task() -> None:
    assert EpisodeChoice(ENV_ID, "01", 4).name == NAMES[0]
