"""Benchmarks compare equal work and report a machine unit."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from benchmarks._gold import gold_episodes
from benchmarks._measure import Report, Times, measure
from benchmarks._players import ENV_ID, GoldActions, Player
from benchmarks.integrations import gold_actions, overhead
from benchmarks.server import Workload
from benchmarks.shift import measure_task
from benchmarks.shift_agents import measure as shift_scores
from benchmarks.shift_live_agents import AGENTS
from benchmarks.shift_live_agents import play as play_shift
from benchmarks.training import Episodes
from fhir_gym import Episode, tasks, worlds
from fhir_gym.actions import Action
from fhir_gym.tasks.packs.shift.static_task import StaticShift


def test_the_baseline_finds_the_same_as_the_server() -> None:
    with worlds.load("hospital-small") as world, world.session() as session:
        load = Workload(session, patients=3)
        for call in range(6):
            assert json.loads(load.read_baseline(call)) == json.loads(load.read(call))
            for server, baseline in (
                (load.search, load.search_baseline),
                (load.search_sorted, load.search_sorted_baseline),
                (load.search_5000, load.search_5000_baseline),
            ):
                answered, by_hand = json.loads(server(call)), json.loads(baseline(call))
                assert by_hand["entry"] == answered.get("entry", [])
                assert by_hand["total"] == answered["total"]
        load.close()


def test_a_measurement_has_the_machine_unit_and_the_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[int] = []
    times = measure(calls.append, 30, baseline=lambda call: sum(range(1_000)), prepare=lambda call: None)
    assert sorted(set(calls)) == list(range(-3, 30))
    assert len(times) == 30 and times == sorted(times)
    Report("w", 7).times("figure", Times([2.0, 1.0, 3.0], unit_us=4.0, baseline=Times([1.0, 1.0, 1.0], 4.0)))
    Report("w", 7).times("measured", times)
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (first["p50_us"], first["units"], first["times_baseline"]) == (2.0, 0.5, 2.0)
    assert second.keys() >= {"p50_us", "p95_us", "unit_us", "units", "baseline_us", "times_baseline"}


def test_gold_episodes_cover_all_tasks() -> None:
    env_id = "FHIRAgent/GeneticTesting-v0"
    with worlds.load("hospital-small") as world:
        times = gold_episodes(env_id, world, range(3))
    assert times.episodes.keys() == tasks.task_set(env_id).keys()
    assert all(len(units) == 2 and min(units) > 0 for units in times.episodes.values())
    assert len(times.resets) == len(times.last_steps) == 2 * len(times.episodes) < len(times.steps)


def test_the_overhead_of_a_framework_is_measured_at_every_step() -> None:
    class Plain(Player):
        """Plays an episode without a framework."""

        async def start(self, gold: GoldActions) -> None:
            self.episode = Episode(ENV_ID, task=gold.task, variation=gold.variation, world=world)
            self.episode.start()

        async def step(self, action: Action) -> None:
            self.done = self.episode.step(action)

    with worlds.load("hospital-small") as world:
        episodes = gold_actions(world, [0])[:3]
        player = Plain()
        through, plain = asyncio.run(overhead(player, world, episodes))
    assert len(through) == len(plain) == sum(len(episode.actions) for episode in episodes)
    assert min(*through, *plain) > 0
    assert player.done.info["success"]


def test_training_episodes_time_every_reset_and_step() -> None:
    with worlds.load("hospital-small") as world:
        episodes = Episodes(world, range(1), prepared=100)
        for _ in range(2):
            episodes.play(time.process_time_ns)
            assert len(episodes.resets) == 43
            assert len(episodes.steps) > 100 and min(episodes.steps) > 0
        episodes.close()


def test_scripted_agents_of_shift_score_less_than_the_reference_solution() -> None:
    task = tasks.get_task("FHIRAgent/Shift-v0", "Q1-1")
    assert isinstance(task, StaticShift)
    with worlds.load("hospital-small") as world:
        best, *others = shift_scores(task, world, [1])
    assert (best.success, best.score) == (True, 1.0)
    assert len(others) == 7
    assert all(score.score < 1 and not score.success for score in others)


@pytest.mark.slow
def test_agents_of_live_shifts_score_less_than_the_reference_solution() -> None:
    with worlds.load("hospital-small") as world:
        found = {agent: play_shift(agent, "day-3", 0, world) for agent in AGENTS}
    best = found.pop("reference solution")
    assert best["success"] and best["score"] == 1
    assert all(resource["score"] <= 1 for resource in found.values())
    half = found["handles the first half of the requests"]
    assert not half["success"] and half["score"] < 0.75
    for idle in ("closes every request as done", "does nothing"):
        assert not found[idle]["success"] and found[idle]["score"] == 0


def test_shift_tasks_are_measured_from_new_and_prepared_start_states() -> None:
    with worlds.load("hospital-small") as world:
        figures = measure_task("I2-1", world, range(2))
    assert figures["steps"] > 5
    assert all(figure > 0 for figure in figures.values())
