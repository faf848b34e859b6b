from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fhir_gym import worlds
from fhir_gym.actions import GRAMMAR, Get
from fhir_gym.agents import EpisodeContext, GoldAgent, IdleAgent, Reply, ScriptedAgent, Usage
from fhir_gym.errors import AgentError, FhirGymError, InfraError, TaskError, UnknownNameError, WrongTypeError
from fhir_gym.fhir import World
from fhir_gym.fhir.adapters.http import create_app
from fhir_gym.rollouts import (
    Budget,
    BudgetTracker,
    Prices,
    Rollout,
    completed,
    parse_numbers,
    plan,
    read_rollouts,
    run,
    run_plan,
    write_rollouts,
)
from fhir_gym.tasks import get_task, task_keys
from tests.worlds.serving import served

ENV_ID = "FHIRAgent/Appointment-v0"


def lines(rollouts: list[Rollout]) -> list[str]:
    return [rollout.line(timings=False) for rollout in rollouts]


def test_gold_rollouts_are_complete_records(gold: list[Rollout], hospital: World) -> None:
    assert [rollout.task.key for rollout in gold] == list(task_keys(ENV_ID))
    for rollout in gold:
        assert (rollout.success, rollout.reward, rollout.stop_reason) == (True, 1.0, "finished")
        assert rollout.verdict is not None and rollout.verdict.success
        assert rollout.steps == len(rollout.turns) > 0
        assert rollout.turns[-1].action.startswith("FINISH(")
        assert rollout.world.hash == hospital.manifest.content_hash
        assert rollout.agent.name == "gold"
        assert rollout.task.split == "train"
        assert rollout.first_observation.startswith(rollout.prompt)
        assert rollout.timings is not None and rollout.timings.server > 0
        assert Rollout.model_validate_json(rollout.line()) == rollout


def test_a_step_limit_is_a_stop_reason_and_is_graded(hospital: World) -> None:
    agent = ScriptedAgent(["GET /Patient?_count=1"] * 9)
    (rollout,) = run(ENV_ID, agent, tasks="02a", variations=0, world=hospital, max_steps=3)
    assert (rollout.stop_reason, rollout.steps, rollout.reward, rollout.success) == ("step_limit", 3, 0.0, False)


def test_turns_record_status_and_errors(hospital: World) -> None:
    agent = ScriptedAgent(["GET /Patient/nobody", "hello \ud800", "GET http://example.org/Patient", "FINISH([])"])
    (rollout,) = run(ENV_ID, agent, tasks="02a", variations=0, world=hospital)
    assert [turn.status for turn in rollout.turns] == [404, 0, 0, 0]
    errors = [turn.error for turn in rollout.turns]
    assert errors[0] is None and errors[3] is None
    assert "lone surrogates" in str(errors[1])
    assert "only the server at" in str(errors[2])
    assert rollout.turns[1].action == "hello \\ud800"


class ToolAgent(IdleAgent):
    """An agent that acts by tool calls."""

    name = "tools"

    def reset(self, observation: str, context: EpisodeContext) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = [
            ("searchResources", {"resourceType": "Patient", "params_json": {"_count": 1}}),
            ("deleteEverything", {}),
            ("finish", {"answer": []}),
        ]

    def act(self, observation: str) -> Reply:  # type: ignore[override]
        name, arguments = self.calls.pop(0)
        return Reply(GRAMMAR.from_tool_call(name, arguments), "I call a tool", name, {"tokens": 3})


def test_replies_carry_tool_text_and_notes_into_the_record(hospital: World) -> None:
    (rollout,) = run(ENV_ID, ToolAgent(), tasks="01", variations=0, world=hospital)
    first, second, third = rollout.turns
    assert (first.action, first.tool, first.text, first.notes) == (
        Get("/Patient?_count=1").text(),
        "searchResources",
        "I call a tool",
        {"tokens": 3},
    )
    assert second.error is not None and "there is no tool 'deleteEverything'" in second.error
    assert third.action == "FINISH([])"


class FailingAgent(IdleAgent):
    """An agent that raises an exception at its second action."""

    name = "failing"

    def __init__(self, failure: BaseException) -> None:
        super().__init__()
        self.failure = failure

    def reset(self, observation: str, context: EpisodeContext) -> None:
        self.left = 1

    def act(self, observation: str) -> str:
        self.left -= 1
        if self.left < 0:
            raise self.failure
        return "GET /Patient?_count=1"


def test_an_infrastructure_failure_is_a_record_without_reward(hospital: World) -> None:
    agent = FailingAgent(InfraError("the provider is down"))
    rollouts = list(run(ENV_ID, agent, tasks="01", variations="0-1", world=hospital))
    assert len(rollouts) == 2
    for rollout in rollouts:
        assert (rollout.stop_reason, rollout.error) == ("infra_error", "the provider is down")
        assert rollout.reward is None and rollout.success is None and rollout.verdict is None
        assert rollout.steps == 1
        assert not rollout.graded


def test_an_unusable_server_is_refused_before_the_first_episode(hospital: World) -> None:
    choice: dict[str, Any] = {"tasks": "01", "variations": 0, "world": hospital}
    with pytest.raises(InfraError, match="does not answer"):
        run(ENV_ID, "idle", fhir_server="http://127.0.0.1:9/fhir", **choice)
    other = pytest.raises(InfraError, match="does not contain the world 'hospital-small'")
    with worlds.load("empty") as empty, served(create_app(empty)) as url, other:
        run(ENV_ID, "idle", fhir_server=url, **choice)
    assert not list(run(ENV_ID, "idle", fhir_server="http://127.0.0.1:9/fhir", skip={("01", 0, 0)}, **choice))


def test_a_server_failure_is_recorded(hospital: World) -> None:
    with served(create_app(hospital)) as url:
        running = run(ENV_ID, "idle", tasks="01", variations=0, world=hospital, fhir_server=url)
    (rollout,) = running
    assert rollout.stop_reason == "infra_error"
    assert rollout.reward is None and rollout.steps == 0
    assert "does not answer" in str(rollout.error)


def test_an_interrupt_gives_the_record_so_far_and_then_stops(hospital: World) -> None:
    rollouts = run(ENV_ID, FailingAgent(KeyboardInterrupt()), tasks="01", variations="0-1", world=hospital)
    first = next(rollouts)
    assert (first.stop_reason, first.steps, first.reward) == ("interrupted", 1, None)
    with pytest.raises(KeyboardInterrupt):
        next(rollouts)


def test_an_agents_own_bug_is_not_hidden(hospital: World) -> None:
    bug = ZeroDivisionError("one\nby nothing")
    expected = "agent failing failed in task 01, variation 7, step 2: ZeroDivisionError: one by nothing"
    with pytest.raises(AgentError, match=f"^{re.escape(expected)}$") as told:
        list(run(ENV_ID, FailingAgent(bug), tasks="01", variations=7, world=hospital))
    assert told.value.__cause__ is bug


def test_an_agents_own_bug_in_a_worker_is_not_hidden(hospital: World) -> None:
    with pytest.raises(AgentError, match="in task 01, variation 7, step 2: ZeroDivisionError: again") as told:
        list(run(ENV_ID, FailingAgent(ZeroDivisionError("again")), tasks="01", variations=7, world=hospital, workers=1))
    assert "ZeroDivisionError" in str(told.value.__cause__)


class FailingLater(IdleAgent):
    """An agent that raises an exception in its fourth episode."""

    episodes = 0

    def act(self, observation: str) -> str:
        self.episodes += 1
        return "FINISH([])" if self.episodes < 4 else str(1 / 0)


@pytest.mark.parametrize("workers", [0, 1])
def test_rollouts_before_an_error_are_kept(hospital: World, workers: int) -> None:
    found: list[Rollout] = []
    with pytest.raises(AgentError, match="task 01, variation 3, step 1: ZeroDivisionError"):
        found.extend(run(ENV_ID, FailingLater(), tasks="01", variations="0-9", workers=workers, world=hospital))
    assert [rollout.task.variation for rollout in found] == [0, 1, 2]


class Forgetful(IdleAgent):
    """An agent that returns no action."""

    def act(self, observation: str) -> str:
        return None  # type: ignore[return-value]


def test_an_agent_must_return_an_action(hospital: World) -> None:
    with pytest.raises(AgentError, match=r"step 1: TypeError: act\(\) must return a text, .*, not None"):
        list(run(ENV_ID, Forgetful(), tasks="01", variations=0, world=hospital))


def test_values_that_are_not_agents_are_refused_at_once() -> None:
    refused: list[tuple[Any, str]] = [
        (IdleAgent, r"pass IdleAgent\(\.\.\.\) in place of IdleAgent"),
        (None, "None is not an agent: it lacks name, settings, reset, act"),
        (object(), "object is not an agent"),
    ]
    for value, message in refused:
        with pytest.raises(WrongTypeError, match=message):
            run(ENV_ID, value)


def test_an_agent_that_workers_cannot_import_is_refused_at_once() -> None:
    class Local(IdleAgent):
        pass

    with pytest.raises(FhirGymError, match="at the top of a file, or use workers=0"):
        run(ENV_ID, Local(), workers=1)


@pytest.mark.slow
def test_an_agent_of_an_interactive_session_cannot_be_sent_to_workers() -> None:
    script = (
        "import fhir_gym\nfrom fhir_gym.agents import IdleAgent\nclass Mine(IdleAgent): pass\n"
        f"try: fhir_gym.run({ENV_ID!r}, Mine(), workers=1)\nexcept fhir_gym.errors.FhirGymError as e: print(e)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("worker processes cannot import Mine")


def test_unsupported_tasks_are_known_before_the_first_episode(hospital: World) -> None:
    pack = "FHIRAgent/ActionReasoning-v0"
    kept = {episode.task for episode in plan(pack).supported(hospital).episodes}
    assert kept == {"01", "03", "04", "05", "06"}
    with pytest.raises(TaskError, match="does not support 02 of"):
        run(pack, "idle", tasks=["01", "02"], world=hospital)
    with pytest.raises(TaskError, match="does not support 01, 02, 03, 04, 05, 06 of"):
        run(pack, "idle", world="empty")


def test_workers_give_the_same_records_in_the_same_order(hospital: World) -> None:
    choice: dict[str, Any] = {"tasks": ["01", "02a"], "variations": "0-4", "repeats": 2, "seed": 7, "world": hospital}
    serial = list(run(ENV_ID, "random", **choice))
    parallel = list(run(ENV_ID, "random", workers=2, **choice))
    assert lines(serial) == lines(parallel)
    assert len({rollout.seed for rollout in serial}) == 20


def test_taking_only_some_rollouts_of_workers_stops_them(hospital: World) -> None:
    running = run(ENV_ID, "idle", tasks="01", variations="0-40", workers=1, world=hospital)
    assert [rollout.task.variation for rollout in islice(running, 2)] == [0, 1]
    running.close()  # type: ignore[attr-defined]


class DyingAgent(IdleAgent):
    """An agent that kills its process."""

    def act(self, observation: str) -> str:
        os._exit(3)


def test_a_worker_that_dies_is_an_infrastructure_failure(hospital: World) -> None:
    with pytest.raises(InfraError, match="a worker process died"):
        list(run(ENV_ID, DyingAgent(), tasks="01", variations=0, workers=1, world=hospital))


_CTRL_C = """
import sys
import fhir_gym

if __name__ == "__main__":
    def announced(rollouts):
        for number, rollout in enumerate(rollouts):
            yield rollout
            if number == 3:
                print("running", flush=True)
    choice = {"variations": "0-1999", "world": sys.argv[1], "workers": int(sys.argv[3])}
    running = fhir_gym.run("FHIRAgent/Appointment-v0", "random", **choice)
    fhir_gym.write_rollouts(sys.argv[2], announced(running))
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.usefixtures("sigint_interrupts")
def test_ctrl_c_keeps_finished_rollouts(tmp_path: Path, hospital: World, workers: int) -> None:
    script, target = tmp_path / "script.py", tmp_path / "r.jsonl"
    script.write_text(_CTRL_C)
    command = [sys.executable, str(script), str(hospital.path), str(target), str(workers)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "running\n"
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends Ctrl-C to the workers too
        _, errors = process.communicate(timeout=30)
    assert process.returncode != 0
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert "Process SpawnProcess" not in errors
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the interrupt may truncate a line
        kept = [rollout for rollout in read_rollouts(target) if rollout.graded]
    assert len(kept) >= 4
    assert len(completed(target)) == len(kept)


def test_episodes_are_done_in_the_order_of_tasks_variations_repeats() -> None:
    todo = plan(ENV_ID, tasks=["02a", "01"], variations=[3, 1], repeats=2)
    assert [tuple(episode) for episode in todo.episodes] == [
        *(("02a", 3, 0), ("02a", 3, 1), ("02a", 1, 0), ("02a", 1, 1)),
        *(("01", 3, 0), ("01", 3, 1), ("01", 1, 0), ("01", 1, 1)),
    ]


def test_variations_may_be_numbers_of_any_kind() -> None:
    episodes = plan(ENV_ID, tasks="01", variations=np.arange(2)).episodes
    assert [type(episode.variation) for episode in episodes] == [int, int]


def test_finished_episodes_can_be_skipped() -> None:
    todo = plan(ENV_ID, tasks="01", variations="0-2", skip={("01", 1, 0)})
    assert [episode.variation for episode in todo.episodes] == [0, 2]


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_variations_of_a_plan_can_have_different_phrasings(hospital: World, tmp_path: Path, workers: int) -> None:
    phrasings = {("01", 0): 2, ("01", 1): 1, ("02a", 0): 0}
    mixed = replace(plan(ENV_ID, tasks=["01", "02a"], variations="0-1", world=hospital), phrasings=phrasings)
    write_rollouts(tmp_path / "r.jsonl", run_plan(mixed, "idle", workers=workers))
    drawn = get_task(ENV_ID, "02a").variation(1, hospital).phrasing
    found = {(r.task.key, r.task.variation): r.task.phrasing for r in read_rollouts(tmp_path / "r.jsonl")}
    assert found == phrasings | {("02a", 1): drawn}
    other = replace(mixed, phrasings=phrasings | {("01", 1): 0})
    assert not mixed.unfinished(tmp_path / "r.jsonl", IdleAgent(), hospital).episodes
    assert [episode[:2] for episode in other.unfinished(tmp_path / "r.jsonl", IdleAgent(), hospital).episodes] == [
        ("01", 1)
    ]


def test_runs_can_share_a_budget(hospital: World) -> None:
    tracker = BudgetTracker(Budget(episodes=3))
    chosen = plan(ENV_ID, tasks="01", variations="0-1", world=hospital)
    assert [len(list(run_plan(chosen, "idle", budget=tracker))) for _ in range(3)] == [2, 1, 0]


def test_a_budget_within_another_is_limited_by_both() -> None:
    project = BudgetTracker(Budget(tokens=100, episodes=2, prices=Prices(1.0, 1.0)))
    part = BudgetTracker(Budget(tokens=50), project, spent=Usage(prompt=10))
    assert [part.try_begin() for _ in range(3)] == [True, True, False] and project.exhausted
    project = BudgetTracker(Budget(cost=1.0, prices=Prices(1.0, 1.0)))
    part = BudgetTracker(Budget(prices=Prices(0.0, 100_000.0)), project)
    part.spend(Usage(prompt=5, completion=9))
    assert [project.usage.total, part.exhausted] == [14, False]
    part.spend(Usage(completion=1))
    assert [part.exhausted, project.exhausted] == [True, True]


def test_seeds_differ_by_episode_and_not_by_plan() -> None:
    few, many = plan(ENV_ID, tasks="01", variations=4), plan(ENV_ID, variations="0-9")
    assert few.seed_of(few.episodes[0]) == many.seed_of(many.episodes[4])
    assert len({many.seed_of(episode) for episode in many.episodes}) == len(many.episodes)
    assert plan(ENV_ID, tasks="01", variations=4, seed=1).seed_of(few.episodes[0]) != few.seed_of(few.episodes[0])


@pytest.mark.parametrize(("split", "first"), [("train", 0), ("test", 1000), (None, 0)])
def test_without_variations_the_first_ten_of_the_split_are_done(split: str | None, first: int) -> None:
    assert [episode.variation for episode in plan(ENV_ID, tasks="01", split=split).episodes] == list(
        range(first, first + 10)
    )


@pytest.mark.parametrize(
    ("text", "expected"), [("3", (3,)), ("0-2", (0, 1, 2)), (" 0 - 1 , 1000-1001,1", (0, 1, 1000, 1001))]
)
def test_numbers(text: str, expected: tuple[int, ...]) -> None:
    assert parse_numbers(text) == expected


@pytest.mark.parametrize("text", ["", "a", "-1", "1-", "5-2", "0-9999999", "1,,2", "1.5"])
def test_invalid_numbers(text: str) -> None:
    with pytest.raises(FhirGymError, match="variations"):
        parse_numbers(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tasks": ["1"]}, "unknown task"),
        ({"split": "tests"}, "did you mean 'test'"),
        ({"grading": "stat"}, "did you mean 'state'"),
        ({"reward": "dens"}, "did you mean 'dense'"),
        ({"world": "emty"}, "did you mean 'empty'"),
        ({"split": "test", "variations": "0-3"}, "variation 0 is not in split 'test'"),
        ({"repeats": 0}, "repeats"),
        ({"workers": -1}, "workers"),
        ({"workers": 1, "fhir_server": "http://localhost:1"}, "one episode at a time"),
        ({"max_steps": 0}, "max_steps"),
    ],
)
def test_arguments_are_checked_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(FhirGymError, match=message):
        run(ENV_ID, "idle", **arguments)


def test_an_unknown_agent_or_pack_is_refused_at_once() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'gold'"):
        run(ENV_ID, "gol")
    with pytest.raises(UnknownNameError, match=f"did you mean '{ENV_ID}'"):
        run("FHIRAgent/Appointments-v0", GoldAgent())


_DETERMINISM = """
import sys
import fhir_gym

for agent, variation in (("gold", 0), ("random", 1000)):
    choice = {"variations": variation, "world": sys.argv[1], "seed": 5}
    fhir_gym.write_rollouts(sys.argv[2], fhir_gym.run("FHIRAgent/Appointment-v0", agent, **choice), timings=False)
"""


def test_bytes_do_not_depend_on_the_process(tmp_path: Path, hospital: World) -> None:
    written = []
    tokyo = {"PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"}
    boston = {"PYTHONHASHSEED": "2", "TZ": "America/New_York", "LC_ALL": "C", "PYTHONUTF8": "0"}
    for number, surroundings in enumerate((tokyo, boston | {"PYTHONCOERCECLOCALE": "0"})):
        target = tmp_path / f"{number}.jsonl"
        command = [sys.executable, "-c", _DETERMINISM, str(hospital.path), str(target)]
        subprocess.run(command, check=True, env={**os.environ, **surroundings})
        written.append(target.read_bytes())
    assert written[0] == written[1]
    assert written[0].count(b"\n") == 2 * len(task_keys(ENV_ID))
