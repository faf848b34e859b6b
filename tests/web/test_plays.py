"""Episodes that people play: started, graded and recorded like those of an agent."""

from __future__ import annotations

import pytest

from fhir_gym.episode_config import EpisodeConfig
from fhir_gym.errors import FhirGymError
from fhir_gym.fhir import World
from fhir_gym.rollouts import Rollout, run
from fhir_gym.rollouts.plan import EpisodeSpec
from fhir_gym.web.plays import Play, PlayError, Plays

ENV = "FHIRAgent/Appointment-v0"


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def start(plays: Plays, world: World, task: str = "02a") -> Play:
    return plays.start(EpisodeConfig(ENV), EpisodeSpec(task, 0, 0), world)


@pytest.fixture(scope="module")
def gold(hospital: World) -> Rollout:
    [rollout] = run(ENV, "gold", tasks=["02a"], variations=0, world=hospital)
    return rollout


def test_a_play_is_recorded_and_graded_like_an_agent(hospital: World, gold: Rollout) -> None:
    play = start(Plays(), hospital)
    for step, turn in enumerate(gold.turns):
        assert not play.over
        play.act(turn.action, step)
    record = play.record()
    assert play.over and record.success
    unlike = {"agent", "timings", "seed"}
    assert record.model_dump(exclude=unlike) == gold.model_dump(exclude=unlike)
    assert record.agent.name == "human"
    assert Rollout.model_validate_json(record.line()) == record


def test_an_invalid_action_counts_as_a_step(hospital: World) -> None:
    play = start(Plays(), hospital)
    play.act("please help \ud800", 0)
    [turn] = play.record().turns
    assert turn.error is not None and play.steps == 1


def test_a_form_that_is_sent_twice_acts_once(hospital: World) -> None:
    play = start(Plays(), hospital)
    play.act("GET Patient?_count=1", 0)
    play.act("GET Patient?_count=1", 0)
    assert play.steps == 1


def test_giving_up_ends_with_a_verdict(hospital: World) -> None:
    play = start(Plays(), hospital)
    assert play.record().stop_reason == "interrupted"
    play.give_up()
    play.give_up()
    play.act("GET Patient", 0)
    record = play.record()
    assert (record.success, record.stop_reason, record.steps) == (False, "unfinished", 0)


def test_the_step_limit_ends_a_play(hospital: World) -> None:
    plays = Plays()
    play = plays.start(EpisodeConfig(ENV, max_steps=2), EpisodeSpec("02a", 0, 0), hospital)
    play.act("GET Patient?_count=1", 0)
    play.act("GET Patient?_count=1", 1)
    assert play.over and play.record().stop_reason == "step_limit"


def test_plays_are_independent(hospital: World) -> None:
    plays = Plays()
    play, other = start(plays, hospital), start(plays, hospital)
    assert play.id != other.id
    play.act("DELETE Patient/S1", 0)
    assert (play.steps, other.steps) == (1, 0)
    assert plays.get(play.id) is play and plays.get(other.id) is other
    with pytest.raises(PlayError, match="expired"):
        plays.get("x")


def test_unused_plays_are_forgotten(hospital: World, clock: Clock) -> None:
    plays = Plays(idle_seconds=10, clock=clock)
    old = start(plays, hospital)
    clock.now = 6
    new = start(plays, hospital)
    clock.now = 11
    assert plays.all() == [new]
    with pytest.raises(PlayError, match="expired"):
        plays.get(old.id)


def test_looking_at_a_play_keeps_it(hospital: World, clock: Clock) -> None:
    plays = Plays(idle_seconds=10, clock=clock)
    play = start(plays, hospital)
    for now in (8, 16, 24):
        clock.now = now
        plays.get(play.id).record()
    assert plays.all() == [play]


def test_finished_plays_make_room_for_new_ones(hospital: World, clock: Clock) -> None:
    plays = Plays(most=2, clock=clock)
    first, second = start(plays, hospital), start(plays, hospital)
    with pytest.raises(PlayError, match="2 episodes are being played"):
        start(plays, hospital)
    second.give_up()
    assert plays.get(second.id) is second, "its verdict can be read until somebody starts another"
    third = start(plays, hospital)
    assert {play.id for play in plays.all()} == {first.id, third.id}


def test_the_time_of_the_person_is_recorded(hospital: World, clock: Clock) -> None:
    play = start(Plays(clock=clock), hospital)
    clock.now = 30
    play.act("GET Patient?_count=1", 0)
    clock.now = 45
    play.give_up()
    timings = play.record().timings
    assert timings is not None and timings.agent == 45


def test_what_does_not_exist_cannot_be_played(hospital: World) -> None:
    plays = Plays()
    for config, spec in (
        (EpisodeConfig(ENV), EpisodeSpec("nothing", 0, 0)),
        (EpisodeConfig(ENV, phrasing=99), EpisodeSpec("02a", 0, 0)),
        (EpisodeConfig(ENV), EpisodeSpec("02a", -1, 0)),
    ):
        with pytest.raises(FhirGymError):
            plays.start(config, spec, hospital)
    assert plays.all() == []


def test_failed_starts_take_no_room(hospital: World) -> None:
    plays = Plays(most=1)
    with pytest.raises(FhirGymError):
        start(plays, hospital, "nothing")
    start(plays, hospital)


def test_closing_ends_all_plays(hospital: World) -> None:
    plays = Plays()
    play = start(plays, hospital)
    plays.close()
    assert play.over and plays.all() == []
