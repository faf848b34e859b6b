"""The taskset, the environment and the harness in the loop of verifiers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verifiers")

import verifiers.v1 as vf
from verifiers.v1.types import SamplingConfig
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

from fhir_gym.fhir import World
from fhir_gym.testing import ChatServer, GoldOverChat, ReplyPolicy, serving
from tests.integrations.conftest import VERIFIERS_ID
from tests.integrations.gold import GoldEpisode, all_tasks, one_task_of_each_pack
from tests.integrations.pages import run_page

OwnWorld = Callable[[str], World]
pytestmark = [pytest.mark.usefixtures("published"), pytest.mark.parametrize("published", [False], indirect=True)]
APPOINTMENT = "FHIRAgent/Appointment-v0"
SHIFT = "FHIRAgent/Shift-v0"


@contextmanager
def model(policy: ReplyPolicy, **settings: Any) -> Iterator[vf.ModelContext]:
    """Serve a scripted model; yield it as verifiers names it."""
    with ChatServer(policy, **settings) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCRIPTED_KEY", "none")
        client = vf.EvalClientConfig(base_url=server.base_url, api_key_var="SCRIPTED_KEY")
        yield vf.ModelContext(model="scripted", client=client, sampling=SamplingConfig())


def play(policy: ReplyPolicy, taskset: dict[str, Any], rollouts: int = 1, **env: Any) -> list[vf.Episode]:
    """Run the environment as `vf-eval` does, and return the episodes in the order of the tasks."""

    async def run(context: vf.ModelContext) -> list[vf.Episode]:
        environment = load_environment(resolve_env_config({"taskset": {"id": VERIFIERS_ID, **taskset}, **env}))
        async with environment.serving():
            slots = [slot for task in environment.taskset for slot in environment.slots(task, rollouts)]
            return await asyncio.gather(*(environment.run_slot(slot, context) for slot in slots))

    with model(policy) as context:
        return asyncio.run(run(context))


def options(episodes: Sequence[GoldEpisode], **further: Any) -> dict[str, Any]:
    numbers = ",".join(map(str, dict.fromkeys(episode.variation for episode in episodes)))
    keys = list(dict.fromkeys(episode.task for episode in episodes))
    return {"env_id": episodes[0].env_id, "tasks": keys, "variations": numbers, **further}


def check_success(episodes: Sequence[vf.Episode], number: int) -> None:
    traces = [trace for episode in episodes for trace in episode.traces]
    failed = [(trace.task.key, trace.info, trace.errors) for trace in traces if trace.reward != 1]
    assert (failed, len(traces)) == ([], number)
    assert all(episode.ok for episode in episodes)


def only_trace(episodes: Sequence[vf.Episode]) -> vf.Trace:
    ((trace,),) = (episode.traces for episode in episodes)
    return trace


@pytest.mark.parametrize("episode", one_task_of_each_pack(), ids=lambda episode: episode.env_id.partition("/")[2])
def test_gold_succeeds_in_the_loop_of_verifiers(own_world: OwnWorld, episode: GoldEpisode) -> None:
    played = play(GoldOverChat(own_world(episode.env_id), [episode]), options([episode]))
    check_success(played, 1)
    trace = only_trace(played)
    result = trace.info["fhir_gym"]
    assert result["explanation"].startswith("Success") and result["stop_reason"] == "finished"
    assert all(check["passed"] for check in result["verdict"]["checks"])
    parts = {check["name"]: check["reward"] for check in result["check_rewards"]}
    rewards = {name.removeprefix("check: "): part for name, part in trace.rewards.items() if name != "fhir"}
    assert {name: (part.score, part.weight) for name, part in rewards.items()} == {
        name: (part, 0.0) for name, part in parts.items()
    }
    assert trace.task.key == f"{episode.env_id}/{episode.task}/0/{result['phrasing']}"
    assert (trace.stop_condition, trace.is_truncated) == ("agent_completed", False)
    json.dumps(trace.to_record())


@pytest.mark.slow
def test_gold_solves_every_task(own_world: OwnWorld) -> None:
    for env_id in dict.fromkeys(task.env_id for task in all_tasks()):
        episodes = [task for task in all_tasks() if task.env_id == env_id]
        check_success(play(GoldOverChat(own_world(env_id), episodes), options(episodes)), len(episodes))


def test_repeats_do_not_see_each_other(hospital: World) -> None:
    episode = GoldEpisode(APPOINTMENT, "01")
    played = play(GoldOverChat(hospital, [episode]), options([episode]), rollouts=4)
    check_success(played, 4)
    assert len({json.dumps([node.message.content for node in option.traces[0].nodes]) for option in played}) == 1


def test_the_step_limit_is_a_truncation() -> None:
    trace = only_trace(play(lambda _: "GET /Patient?_count=1", {"tasks": ["01"], "variations": "0", "max_steps": 2}))
    assert (trace.is_truncated, trace.stop_condition, trace.num_turns) == (True, "max_turns", 2)
    assert (trace.reward, trace.metrics["truncated"]) == (0.0, 1.0)
    assert trace.info["fhir_gym"]["stop_reason"] == "step_limit"
    assert trace.info["fhir_gym"]["explanation"].startswith("Failed")


def test_a_limit_of_verifiers_is_a_truncation_too() -> None:
    taskset = {"tasks": ["01"], "variations": "0"}
    trace = only_trace(play(lambda _: "GET /Patient?_count=1", taskset, agent={"max_turns": 3}))
    assert (trace.is_truncated, trace.num_turns) == (True, 3)
    assert (trace.reward, trace.info["fhir_gym"]["stop_reason"]) == (0.0, "unfinished")


@pytest.mark.parametrize("reply", ["", "I cannot do this.", "<script>\x00\x1b[2J", "GET /" + "x" * 300_000])
def test_replies_without_an_action_count_as_steps(reply: str) -> None:
    trace = only_trace(play(lambda _: reply, {"tasks": ["01"], "variations": "0", "max_steps": 2}))
    assert not trace.errors
    assert (trace.metrics["step"], trace.metrics["invalid_actions"]) == (2.0, 2.0)


def test_a_failing_server_is_an_error_and_no_reward(server_is_down: None) -> None:
    (episode,) = play(lambda _: "GET /Patient?_count=1", {"tasks": ["01"], "variations": "0"})
    trace = only_trace([episode])
    assert not episode.ok and "the FHIR server is down" in episode.errors[0].message
    assert not trace.ok and "the FHIR server is down" in trace.errors[0].message
    assert not trace.rewards


def test_a_failing_model_is_an_error_and_no_reward() -> None:
    def broken(_: Any) -> str:
        raise RuntimeError("out of memory")

    (episode,) = play(broken, {"tasks": ["01"], "variations": "0"})
    assert not episode.ok and not only_trace([episode]).rewards


def test_episodes_on_a_running_server_take_turns(hospital: World) -> None:
    episodes = [GoldEpisode(APPOINTMENT, "01", number) for number in range(3)]
    with serving(hospital) as url:
        check_success(play(GoldOverChat(hospital, episodes), options(episodes, fhir_server=url)), 3)


def test_levels_and_dials_choose_tasks() -> None:
    def tasks(**taskset: Any) -> set[str]:
        config = resolve_env_config({"taskset": {"id": VERIFIERS_ID, "env_id": SHIFT, "variations": "0", **taskset}})
        return {task.data.task for task in load_environment(config).taskset}

    assert tasks(level=4) == {"day-4"}
    assert tasks(tasks=["day-3"], dials={"minutes": 60}) == {"day-3+minutes=60"}


def test_a_dial_reaches_the_episode() -> None:
    taskset = {"env_id": SHIFT, "tasks": ["day-3"], "dials": {"minutes": 60}, "variations": "0"}
    trace = only_trace(play(lambda _: "FINISH([])", taskset))
    assert trace.info["fhir_gym"]["task"] == "day-3+minutes=60"


def test_test_variations_are_chosen_by_the_split() -> None:
    def numbers(**taskset: Any) -> set[int]:
        config = resolve_env_config({"taskset": {"id": VERIFIERS_ID, "tasks": ["01"], **taskset}})
        return {task.data.variation for task in load_environment(config).taskset}

    assert numbers() == set(range(10))
    assert numbers(split="test") == set(range(1000, 1010))
    assert numbers(split=None, variations="999-1000") == {999, 1000}


@pytest.mark.parametrize(
    ("taskset", "message"),
    [
        ({"env_id": "FHIRAgent/Nothing-v0"}, "unknown environment"),
        ({"tasks": ["zz"]}, "unknown task 'zz'"),
        ({"variations": "1000"}, "not in split 'train'"),
        ({"variations": "2000", "split": None}, "numbered from 0 to 1999"),
        ({"max_steps": 0}, "at least 1"),
        ({"fhir_server": "http://user:secret@host/fhir"}, "results would contain the password"),
        ({"fhir_token_from_env": "NO_SUCH_VARIABLE"}, "no environment variable"),
    ],
)
def test_a_wrong_option_is_an_error_of_the_config(taskset: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve_env_config({"taskset": {"id": VERIFIERS_ID, **taskset}})


@pytest.mark.slow
def test_vf_eval_runs_the_taskset(hospital: World, tmp_path: Path) -> None:
    episodes = [GoldEpisode(APPOINTMENT, key, 0) for key in ("01", "02a")]
    with model(GoldOverChat(hospital, episodes)) as context:
        command = [
            str(Path(sys.executable).with_name("vf-eval")),
            VERIFIERS_ID,
            "-m",
            "scripted",
            "--no-push",
            "--no-rich",
        ]
        command += ["--client.base-url", context.client.base_url, "--client.api-key-var", "SCRIPTED_KEY"]
        command += ["--env.taskset.tasks", '["01","02a"]', "--env.taskset.variations", "0", "-r", "2"]
        subprocess.run([*command, "--output-dir", str(tmp_path)], cwd=tmp_path, check=True, capture_output=True)
    (file,) = tmp_path.rglob("traces.jsonl")
    traces = [trace for line in file.read_text("utf-8").splitlines() for trace in json.loads(line)["traces"]]
    assert [trace["rewards"]["fhir"]["score"] for trace in traces] == [1.0] * 4


@pytest.mark.slow
def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    assert run_page("integrations_verifiers.md", tmp_path).startswith("['01/0', '01/1',")
