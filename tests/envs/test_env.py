from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env, data_equivalence

import fhir_gym
from fhir_gym.agents import make_agent
from fhir_gym.agents.protocol import EpisodeContext
from fhir_gym.envs import FHIREnv
from fhir_gym.errors import ArgumentError, FhirGymError, TaskError, UnknownNameError, WrongTypeError
from fhir_gym.fhir import World
from fhir_gym.registration import SHIPPED

ENV_ID = "FHIRAgent/Appointment-v0"
Env = gym.Env[str, str]


@pytest.fixture
def env(hospital: World) -> Iterator[Env]:
    made: Env = gym.make(ENV_ID, world=hospital)
    yield made
    made.close()


def test_every_pack_is_registered() -> None:
    assert fhir_gym.tasks.pack_ids() == tuple(SHIPPED)
    assert set(SHIPPED) <= set(gym.registry)


@pytest.mark.parametrize("env_id", SHIPPED)
@pytest.mark.parametrize("render_mode", [None, "ansi"])
def test_check_env_finds_nothing(env_id: str, render_mode: str | None) -> None:
    made = gym.make(env_id, render_mode=render_mode)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(made.unwrapped)
    made.close()


@pytest.mark.parametrize("env_id", SHIPPED)
def test_two_envs_in_lock_step_agree(env_id: str, own_world: Callable[[str], World]) -> None:
    world = own_world(env_id)
    first, second = gym.make(env_id, world=world), gym.make(env_id, world=world)
    agent = make_agent("random")
    for seed in range(6):
        start, other = first.reset(seed=seed), second.reset(seed=seed)
        assert data_equivalence(start, other, exact=True)
        agent.reset(start[0], EpisodeContext(env_id, start[1]["task"], start[1]["variation"], world, seed, 15, ""))
        observation, done = start[0], False
        while not done:
            action = agent.act(observation)
            assert isinstance(action, str)
            step, twin = first.step(action), second.step(action)
            assert data_equivalence(step, twin, exact=True)
            observation, done = step[0], step[2] or step[3]
    first.close()
    second.close()


def test_a_spec_survives_json() -> None:
    made = gym.make(ENV_ID, tasks=["01"], split="test", reward="dense")
    assert made.spec is not None
    spec = EnvSpec.from_json(made.spec.to_json())
    again = gym.make(spec)
    assert again.reset(seed=5) == made.reset(seed=5)
    assert made.unwrapped.tasks == again.unwrapped.tasks == ("01",)  # type: ignore[attr-defined]
    made.close()
    again.close()


def test_make_imports_the_package_by_its_prefix() -> None:
    made = gym.make(f"fhir_gym:{ENV_ID}")
    assert isinstance(made.unwrapped, FHIREnv)
    made.close()


def test_options_choose_task_and_variation(env: Env) -> None:
    _, info = env.reset(options={"task": "15a", "variation": 7})
    assert info.pop("phrasing") in (0, 1, 2)
    assert info == {"task": "15a", "variation": 7, "step": 0, "status": 0, "invalid": False}
    _, info = env.reset(seed=1, options={"task": "01"})
    assert info["task"] == "01"
    _, info = env.reset(seed=1, options={"variation": 4})
    assert info["variation"] == 4


def test_without_options_np_random_chooses_in_tasks_and_split(hospital: World) -> None:
    made = FHIREnv(ENV_ID, tasks=["01", "02a"], split="test", world=hospital)
    made.reset(seed=0)
    drawn = {(info["task"], info["variation"]) for _, info in (made.reset() for _ in range(20))}
    assert {task for task, _ in drawn} == {"01", "02a"}
    assert all(1000 <= variation < 2000 for _, variation in drawn)
    assert len(drawn) > 10
    made.close()


def test_each_reward_rule_is_used(hospital: World) -> None:
    rewards = {}
    wrong = 'POST /Patient\n{"resourceType": "Patient", "name": [{"use": "official", "family": "Nobody"}]}'
    for rule in ("sparse", "dense"):
        made = FHIREnv(ENV_ID, world=hospital, reward=rule)
        made.reset(options={"task": "01", "variation": 0})
        assert made.step("GET /Patient?_count=1")[1] == 0.0
        made.step(wrong)
        _, reward, terminated, _, info = made.step("FINISH([])")
        assert made._episode is not None
        verdict = made._episode.verdict()
        assert terminated
        assert reward == verdict.reward(rule)
        assert not info["success"]
        rewards[rule] = reward
        made.reset(options={"task": "01", "variation": 0})
        assert made.step("FINISH([])")[1] == 0.0
        made.close()
    assert rewards["sparse"] == 0.0
    assert 0.0 <= rewards["dense"] < 1.0


def test_evidence_grading_reaches_the_verdict(hospital: World) -> None:
    made = FHIREnv(ENV_ID, world=hospital, grading="evidence")
    made.reset(options={"task": "02a", "variation": 0})
    info = made.step("FINISH([])")[4]
    assert "evidence" in [check["name"] for check in info["verdict"]["checks"]]
    made.close()


def test_stepping_needs_a_reset(env: Env) -> None:
    with pytest.raises(ResetNeeded):
        env.step("FINISH([])")
    env.reset(seed=0)
    env.step("FINISH([])")
    with pytest.raises(ResetNeeded):
        env.unwrapped.step("FINISH([])")


def test_render_shows_the_latest_turn(hospital: World) -> None:
    made = gym.make(ENV_ID, world=hospital, render_mode="ansi")
    observation, _ = made.reset(seed=0)
    assert made.render() == observation
    observation, *_ = made.step("hello")
    assert made.render() == f"> hello\n{observation}"
    made.close()


def test_closing_twice_and_closing_early_is_fine(hospital: World) -> None:
    made = FHIREnv(ENV_ID, world=hospital)
    made.close()
    made.reset(seed=0)
    made.close()
    made.close()


def test_the_open_episode_is_used_again(hospital: World) -> None:
    made = FHIREnv(ENV_ID, tasks="02a", world=hospital)
    first = made.reset(options={"variation": 0})
    episode = made._episode
    assert made.reset(options={"variation": 0}) == first
    assert made._episode is episode
    made.reset(options={"variation": 1})
    assert made._episode is not episode
    assert made.reset(options={"variation": 0}) == first
    made.close()


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        ({"taks": ["01"]}, "tasks"),
        ({"tasks": ["2b"]}, "02b"),
        ({"split": "tests"}, "test"),
        ({"world": "hospital_small"}, "hospital-small"),
        ({"reward": "dens"}, "dense"),
        ({"grading": "states"}, "state"),
    ],
)
def test_unknown_arguments_suggest_the_nearest_name(arguments: dict[str, Any], nearest: str) -> None:
    for make in (gym.make, gym.make_vec):
        with pytest.raises(UnknownNameError, match=f"did you mean '{nearest}'"):
            make(ENV_ID, **arguments)


def test_an_environment_works_after_a_first_reset_with_a_wrong_option(env: Env) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'task'"):
        env.reset(options={"tsk": "02a"})
    env.reset(options={"task": "02a"})
    assert [env.step("GET /Patient?_count=1")[2] for _ in range(2)] == [False, False]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"taks": "01"}, UnknownNameError, "did you mean 'task'"),
        ({"task": "11"}, UnknownNameError, "did you mean '11a'"),
        ({"variation": "first"}, FhirGymError, "whole number"),
        ({"variation": True}, FhirGymError, "whole number"),
        ({"variation": -1}, ArgumentError, "from 0"),
    ],
)
def test_wrong_options_are_refused(env: Env, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        env.reset(options=options)


def test_an_env_needs_a_task() -> None:
    with pytest.raises(FhirGymError, match="at least one task"):
        FHIREnv(ENV_ID, tasks=[])


def test_an_unknown_render_mode_is_refused(hospital: World) -> None:
    with pytest.raises(UnknownNameError, match="render mode"):
        FHIREnv(ENV_ID, world=hospital, render_mode="rgb_array")


def test_gymnasium_statistics_wrapper_fits(env: Env) -> None:
    wrapped = gym.wrappers.RecordEpisodeStatistics(env)
    wrapped.reset(seed=0)
    info = wrapped.step("FINISH([])")[4]
    assert info["episode"]["l"] == 1
    json.dumps(info["verdict"])


def test_the_docstring_has_the_fixed_sections() -> None:
    sections = [line.strip()[3:] for line in (FHIREnv.__doc__ or "").splitlines() if line.strip().startswith("## ")]
    assert sections == [
        "Action",
        "Observation",
        "Starting state",
        "Rewards",
        "Episode end",
        "Info",
        "Arguments",
        "Version history",
    ]


def test_a_phrasing_can_be_chosen(hospital: World) -> None:
    made = FHIREnv(ENV_ID, tasks="01", world=hospital, phrasing=2)
    chosen = {"task": "01", "variation": 5}
    texts = [
        made.reset(options=chosen | more)[0] for more in ({}, {"phrasing": 0}, {"phrasing": 2}, {"phrasing": None})
    ]
    assert texts[0] == texts[2]
    assert texts[1] != texts[0]
    assert texts[3] in [made.reset(options=chosen | {"phrasing": n})[0] for n in range(3)]
    with pytest.raises(ArgumentError, match="phrasings 0 to"):
        made.reset(options=chosen | {"phrasing": 99})
    with pytest.raises(FhirGymError, match="option phrasing must be a whole number"):
        made.reset(options=chosen | {"phrasing": "1"})
    made.close()


def test_held_out_tasks_only(hospital: World) -> None:
    made = FHIREnv(ENV_ID, split="heldout_tasks", world=hospital)
    assert "11a" in made.tasks
    assert "01" not in made.tasks
    assert made.reset(seed=1)[1]["variation"] >= 1_000
    made.close()
    with pytest.raises(FhirGymError, match="has none of 01"):
        FHIREnv(ENV_ID, tasks="01", split="heldout_tasks", world=hospital)


def test_test_variations_are_drawn_only_if_asked_for(hospital: World) -> None:
    made = gym.make(ENV_ID, world=hospital)
    assert isinstance(made.unwrapped, FHIREnv)
    assert made.unwrapped.variations == range(1_000)
    made.close()
    everything = FHIREnv(ENV_ID, split=None, world=hospital)
    assert everything.variations == range(2_000)
    everything.close()


@pytest.mark.parametrize("limited", ["make", "wrapper", "wrapped wrapper"])
def test_gymnasiums_step_limits_are_graded_like_our_own(hospital: World, limited: str) -> None:
    plain: Env = gym.make(ENV_ID, tasks="01", world=hospital, max_steps=2)
    if limited == "make":
        other: Env = gym.make(ENV_ID, tasks="01", world=hospital, max_episode_steps=2)
    elif limited == "wrapper":
        other = gym.wrappers.TimeLimit(gym.make(ENV_ID, tasks="01", world=hospital), 2)
    else:
        inner: Env = gym.wrappers.RecordEpisodeStatistics(gym.make(ENV_ID, tasks="01", world=hospital))
        other = gym.wrappers.TimeLimit(gym.wrappers.TimeLimit(inner, 2), 7)
    first, second = plain.reset(seed=4), other.reset(seed=4)
    assert first == second
    assert "at most 2 actions" in first[0]
    for _ in range(2):
        step, twin = plain.step("GET /Patient?_count=1"), other.step("GET /Patient?_count=1")
        twin[4].pop("episode", None)
        assert step == twin
    assert twin[3] and not twin[4]["verdict"]["success"]
    assert other.unwrapped.reset(seed=4)[0] != second[0], "without the wrapper its limit does not hold"
    plain.close()
    other.close()


def test_the_step_limit_of_another_env_is_ignored(hospital: World) -> None:
    """The reset of an environment may reset another environment."""
    inner = FHIREnv(ENV_ID, tasks="01", world=hospital)

    class Nested(gym.Wrapper[str, str, str, str]):
        def reset(self, **arguments: Any) -> tuple[str, dict[str, Any]]:
            self.seen = inner.reset(seed=1)[0]
            return super().reset(**arguments)

    nested = Nested(FHIREnv(ENV_ID, tasks="01", world=hospital))
    outer: Env = gym.wrappers.TimeLimit(nested, 3)
    assert "at most 3 actions" in outer.reset(seed=1)[0]
    assert "at most 15 actions" in nested.seen
    outer.close()
    inner.close()


@pytest.mark.parametrize("action", [None, 3, b"GET /Patient", ["GET /Patient"], {"kind": "GET"}])
def test_an_action_must_be_a_text(env: Env, action: Any) -> None:
    env.reset(seed=0)
    with pytest.raises(
        WrongTypeError, match=r"an action must be a text such as 'GET /Patient\?_count=1', not "
    ) as told:
        env.step(action)
    assert "\n" not in str(told.value)
    assert env.step("FINISH([])")[2], "it costs no step"


def test_stepping_after_the_end_is_an_error(hospital: World) -> None:
    made = FHIREnv(ENV_ID, world=hospital)
    with pytest.raises(ResetNeeded, match="no episode has started"):
        made.step("FINISH([])")
    made.reset(seed=0)
    made.step("FINISH([])")
    with pytest.raises(ResetNeeded, match="the episode is over"):
        made.step("FINISH([])")
    made.close()


@pytest.mark.parametrize(
    "wrap",
    [
        lambda env: gym.wrappers.FrameStackObservation(env, 4),
        lambda env: gym.wrappers.FlattenObservation(env),
        lambda env: gym.wrappers.DelayObservation(env, 1),
    ],
)
def test_wrappers_that_need_arrays_get_a_helpful_error(env: Env, wrap: Callable[[Env], Env]) -> None:
    with pytest.raises(WrongTypeError, match=r"observations are texts .*TransformObservation"):
        wrap(env).reset(seed=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tasks": 5}, "tasks must be one task key or several"),
        ({"world": 5}, "world must be a World"),
        ({"fhir_server": 5}, "fhir_server must be a base URL"),
        ({"phrasing": "x"}, "phrasing must be a whole number"),
        ({"phrasing": 99}, "task 01 has phrasings 0 to"),
        ({"max_steps": "8"}, "max_steps must be a whole number"),
    ],
)
def test_invalid_values_are_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(FhirGymError, match=message):
        gym.make(ENV_ID, **arguments)


def test_tasks_come_in_the_order_of_the_pack_and_once(hospital: World) -> None:
    made = FHIREnv(ENV_ID, tasks=["02b", "01", "02b"], world=hospital)
    assert made.tasks == ("01", "02b")
    made.close()


def test_tasks_that_the_world_does_not_support_are_left_out(hospital: World) -> None:
    pack = "FHIRAgent/ActionReasoning-v0"
    made = gym.make(pack, world=hospital)
    assert made.unwrapped.tasks == ("01", "03", "04", "05", "06")  # type: ignore[attr-defined]
    for seed in range(20):
        assert made.reset(seed=seed)[1]["task"] != "02"
    made.close()
    for make in (gym.make, gym.make_vec):
        with pytest.raises(TaskError, match=r"does not support 02 of FHIRAgent/ActionReasoning-v0: .* no cluster"):
            make(pack, world=hospital, tasks=["01", "02"])
    with pytest.raises(TaskError, match="world empty does not support 01, 02, 03, 04, 05, 06 of "):
        gym.make(pack, world="empty")
