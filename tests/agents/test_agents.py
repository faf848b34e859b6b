from __future__ import annotations

import pickle
from typing import Any

import pytest

from fhir_gym.actions import Action, Get, parse
from fhir_gym.agents import AGENTS, Agent, EpisodeContext, RandomAgent, ScriptedAgent, make_agent
from fhir_gym.episode import Episode, Step
from fhir_gym.errors import FhirGymError, UnknownNameError
from fhir_gym.fhir import World
from fhir_gym.rollouts import run
from fhir_gym.tasks import Gold, Params, get_task

ENV_ID = "FHIRAgent/Appointment-v0"


def play(agent: Agent, world: World, task: str, variation: int, *, seed: int = 0) -> list[Step]:
    with Episode(ENV_ID, task=task, variation=variation, world=world) as episode:
        observation = episode.start()
        agent.reset(observation, EpisodeContext(ENV_ID, task, variation, world, seed, 15, episode.prompt))
        steps: list[Step] = []
        while not steps or not steps[-1].done:
            action = agent.act(observation)
            assert isinstance(action, str)
            steps.append(episode.step(action))
            observation = steps[-1].observation
        return steps


def test_gold_succeeds_repeatedly(hospital: World) -> None:
    """A few tasks are enough here, because the soundness tests run every task."""
    agent = make_agent("gold")
    for task in ("01", "02a", "11a"):
        for variation in (0, 1000):
            assert play(agent, hospital, task, variation)[-1].reward == 1.0


def test_gold_can_write_plain_letters_in_urls(hospital: World) -> None:
    encoded, plain = (
        [*run(ENV_ID, make_agent("gold", **settings), tasks="02a", variations="0,3", phrasing="brief", world=hospital)]
        for settings in ({}, {"plain_letters": True})
    )
    assert [rollout.turns[0].action for rollout in encoded] == [
        "GET /Patient?family=O%27Sullivan-Hallstr%C3%B6m&given=Stephen&birthdate=1936-09-09",
        "GET /Patient?family=Hern%C3%A1ndez&given=J%C3%BCrgen&birthdate=1971-03-21",
    ]
    assert [rollout.turns[0].action for rollout in plain] == [
        "GET /Patient?family=O%27Sullivan-Hallström&given=Stephen&birthdate=1936-09-09",
        "GET /Patient?family=Hernández&given=Jürgen&birthdate=1971-03-21",
    ]
    assert [rollout.verdict for rollout in plain] == [rollout.verdict for rollout in encoded]
    assert all(rollout.success and rollout.agent.settings == {"plain_letters": True} for rollout in plain)


def test_idle_finishes_at_once_without_reward(hospital: World) -> None:
    steps = play(make_agent("idle"), hospital, "02b", 0)
    assert len(steps) == 1
    assert steps[0].terminated
    assert steps[0].reward == 0.0


def test_random_sends_valid_and_invalid_requests_by_seed(hospital: World) -> None:
    agent = RandomAgent()
    runs = [play(agent, hospital, "02a", 0, seed=seed) for seed in range(12)]
    steps = [step for run in runs for step in run]
    assert any(step.info["invalid"] for step in steps)
    assert any(step.info["status"] >= 400 for step in steps)
    assert any(200 <= step.info["status"] < 300 for step in steps)
    assert any(step.terminated for step in steps)
    assert len({run[0].observation for run in runs}) > 3
    assert play(agent, hospital, "02a", 0, seed=3) == runs[3]


def test_random_uses_seen_values() -> None:
    agent = RandomAgent(finish=0.0)
    seen = '{"resourceType":"Slot","id":"slot-77","schedule":{"reference":"Schedule/sch-8"}}'
    said = [str(agent.act(seen)) for _ in range(60)]
    assert any("Slot/slot-77" in text for text in said)
    assert any("Schedule/sch-8" in text for text in said)


def test_scripted_writes_its_texts_then_finishes(hospital: World) -> None:
    agent = ScriptedAgent(["GET /Patient?_count=1", "hello"])
    for _ in range(2):
        steps = play(agent, hospital, "01", 0)
        assert [step.info["status"] for step in steps] == [200, 0, 0]
        assert steps[-1].terminated
    assert agent.settings == {"script": ["GET /Patient?_count=1", "hello"]}


def test_scripted_may_be_a_function_of_observation_and_step() -> None:
    agent = make_agent("scripted", script=lambda observation, step: f"{step}: {observation}", name="echo")
    assert [agent.act("a"), agent.act("b")] == ["0: a", "1: b"]
    assert agent.name == "echo"
    assert "lambda" in str(agent.settings["function"])


def test_one_text_is_a_script_of_one() -> None:
    assert make_agent("scripted", script="FINISH([1])").act("") == "FINISH([1])"


@pytest.mark.parametrize("name", sorted(set(AGENTS) - {"local"}))  # `local` needs a model; see test_local
def test_every_agent_implements_the_protocol_and_can_be_pickled(name: str) -> None:
    if name == "chat":
        pytest.importorskip("openai")
    settings: dict[str, dict[str, Any]] = {
        "scripted": {"script": ["FINISH([])"]},
        "chat": {"model": "m", "base_url": "http://localhost/v1"},
    }
    agent = make_agent(name, **settings.get(name, {}))
    assert isinstance(agent, Agent)
    assert agent.name == name
    twin = pickle.loads(pickle.dumps(agent))
    assert (twin.name, twin.settings) == (agent.name, agent.settings)


def test_gold_can_be_pickled_during_an_episode(hospital: World) -> None:
    agent = make_agent("gold")
    agent.reset("", EpisodeContext(ENV_ID, "01", 0, hospital, 0, 15, ""))
    first = agent.act("")
    assert isinstance(first, str) and isinstance(parse(first), Action)
    with pytest.raises(RuntimeError, match="before reset"):
        pickle.loads(pickle.dumps(agent)).act("")


def test_gold_finishes_with_an_empty_answer_when_its_solution_ends(
    hospital: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(p: Params) -> Gold:
        bundle = yield Get("/Patient?_count=1")
        assert bundle["resourceType"] == "Bundle"

    monkeypatch.setattr(get_task(ENV_ID, "01"), "gold", short)
    steps = play(make_agent("gold"), hospital, "01", 0)
    assert [step.info["status"] for step in steps] == [200, 0]
    assert steps[-1].info["verdict"]["answer"] == []


def test_unknown_agents_and_settings_suggest_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'gold'"):
        make_agent("golden")
    with pytest.raises(UnknownNameError, match="did you mean 'finish'"):
        make_agent("random", finnish=0.5)
    with pytest.raises(FhirGymError, match="needs a value for script"):
        make_agent("scripted")


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("random", {"finish": "often"}, "finish of agent random should be a valid number"),
        ("random", {"finish": True}, "finish of agent random should be a valid number"),
        ("scripted", {"script": 5}, "script of agent scripted should be a valid string"),
        ("chat", {"model": 7}, "model of agent chat should be a valid string"),
        ("chat", {"model": "m", "temperature": "hot"}, "temperature of agent chat should be a valid number"),
        ("chat", {"model": "m", "retries": 1.5}, "retries of agent chat should be a valid integer"),
        ("chat", {"model": "m", "extra_body": [1]}, "extra_body of agent chat should be a valid dictionary"),
    ],
)
def test_settings_of_the_wrong_type_are_refused(name: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(FhirGymError) as raised:
        make_agent(name, **settings)
    assert str(raised.value) == said


def test_a_secret_of_the_wrong_type_is_not_shown() -> None:
    with pytest.raises(FhirGymError) as raised:
        make_agent("chat", model="m", api_key=123456789)
    assert "1234" not in str(raised.value)


def test_whole_numbers_are_numbers() -> None:
    assert make_agent("random", finish=1).settings == {"finish": 1}
