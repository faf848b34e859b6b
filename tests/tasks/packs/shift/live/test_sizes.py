from __future__ import annotations

from itertools import product

import pytest

from fhir_gym import Episode, get_task
from fhir_gym.fhir import World
from fhir_gym.tasks import Dial
from fhir_gym.tasks.packs.shift.live.plan import LiveParams
from fhir_gym.tasks.packs.shift.t20_live import LiveLevel3, LiveLevel4, LiveShift
from tests.tasks.packs.shift.live.playing import failed, play
from tests.tasks.packs.shift.playing import ENV

DIALS = [*LiveLevel3.dials]
CORNERS = [
    pytest.param(task, highest, marks=pytest.mark.slow if len({*highest}) == 1 else pytest.mark.exhaustive)
    for task, highest in product((LiveLevel3, LiveLevel4), product((False, True), repeat=len(DIALS)))
]


def end_of(dial: Dial, highest: bool) -> float:
    return dial.most if highest else dial.least


def drawn(task: type[LiveShift], world: World, dials: dict[str, float], variation: int = 0) -> LiveParams:
    key = "+".join([task.key, *(f"{name}={value:g}" for name, value in dials.items())])
    params = get_task(ENV, key).variation(variation, world).params
    assert isinstance(params, LiveParams)
    return params


@pytest.mark.parametrize("highest", [False, True])
@pytest.mark.parametrize("name", DIALS)
def test_each_dial_may_be_at_its_ends(hospital: World, name: str, highest: bool) -> None:
    usual = drawn(LiveLevel3, hospital, {})
    params = drawn(LiveLevel3, hospital, {name: end_of(LiveLevel3.dials[name], highest)})
    assert params.requests
    if name in ("minutes", "load"):
        assert (len(params.requests) > len(usual.requests)) == highest


@pytest.mark.parametrize(("task", "highest"), CORNERS)
def test_all_dials_may_be_at_their_ends(hospital: World, task: type[LiveShift], highest: tuple[bool, ...]) -> None:
    dials = {name: end_of(task.dials[name], at_most) for name, at_most in zip(DIALS, highest, strict=True)}
    assert drawn(task, hospital, dials).requests


@pytest.mark.exhaustive
@pytest.mark.parametrize("asking", [0, 5])
def test_gold_succeeds_in_the_largest_shift(hospital: World, asking: int) -> None:
    dials: dict[str, float] = {"minutes": 720, "load": 1.5, "policies": 500, "events": 4, "asking": asking}
    with Episode(ENV, task="day-3", world=hospital, reward="dense", dials=dials) as episode:
        episode.start()
        step = play(episode)
        assert step.info["success"] and step.reward == 1, failed(episode)
