"""Tasks, tools and scores in Inspect's own loop."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

pytest.importorskip("inspect_ai")

import click
import inspect_ai
from inspect_ai import Epochs, Task, task_with
from inspect_ai.agent import react
from inspect_ai.log import EvalLog, EvalSample
from inspect_ai.model import ChatMessage, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Target
from inspect_ai.solver import Generate, Solver, TaskState, solver

from fhir_gym.errors import FhirGymError
from fhir_gym.fhir import World
from fhir_gym.integrations import inspect as integration
from fhir_gym.testing import GoldOverChat, ReplyPolicy, ScriptedReply, serving
from tests.integrations.gold import GoldEpisode, all_tasks, one_task_of_each_pack
from tests.integrations.pages import run_page

OwnWorld = Callable[[str], World]
APPOINTMENT = "FHIRAgent/Appointment-v0"
TASKS = {
    APPOINTMENT: integration.appointment,
    "FHIRAgent/GeneticTesting-v0": integration.genetic_testing,
    "FHIRAgent/MedAgentBench-v0": integration.medagentbench,
    "FHIRAgent/ActionReasoning-v0": integration.action_reasoning,
    "FHIRAgent/Shift-v0": integration.shift,
}
SEARCH = ScriptedReply(calls=[("searchResources", {"resourceType": "Patient", "params_json": {"_count": 1}})])


def play(task: Task, policy: ReplyPolicy, folder: Path, **options: Any) -> EvalLog:
    """Evaluate a task with a scripted model, and return the log as read from its file."""

    def complete(messages: Sequence[ChatMessage], tools: Sequence[Any], *_: object) -> ModelOutput:
        offered = [{"function": {"name": tool.name}} for tool in tools]
        reply = policy(
            {"messages": [{"role": message.role, "content": message.text} for message in messages], "tools": offered}
        )
        reply = ScriptedReply(reply) if isinstance(reply, str) else reply
        output = ModelOutput.from_content("mockllm/model", reply.content or "", reply.finish_reason or "stop")
        for name, arguments in reply.calls:
            assert not isinstance(arguments, str)
            call = ModelOutput.for_tool_call("mockllm/model", name, dict(arguments))
            output.message.tool_calls = [*(output.message.tool_calls or ()), *(call.message.tool_calls or ())]
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)  # else it downloads a tokenizer
        return output

    model = get_model("mockllm/model", custom_outputs=complete)
    (log,) = inspect_ai.eval(task, model=model, log_dir=str(folder), display="none", **options)
    return inspect_ai.log.read_eval_log(log.location)


def gold(world: World, episodes: Sequence[GoldEpisode]) -> GoldOverChat:
    return GoldOverChat(world, episodes)


def only_sample(log: EvalLog) -> EvalSample:
    assert log.samples is not None
    (sample,) = log.samples
    return sample


def search(_: Any) -> ScriptedReply:
    """A policy that never finishes."""
    return SEARCH


def check_success(log: EvalLog, number: int) -> None:
    assert log.status == "success", log.error
    assert log.samples is not None and log.results is not None
    failed = [
        (sample.id, sample.scores, sample.error)
        for sample in log.samples
        if not sample.scores or sample.scores["verdict"].value != 1
    ]
    assert (failed, len(log.samples)) == ([], number)
    assert log.results.scores[0].metrics["mean"].value == 1.0


@pytest.mark.parametrize("episode", one_task_of_each_pack(), ids=lambda episode: episode.env_id.partition("/")[2])
@pytest.mark.parametrize("protocol", ["tools", "text"])
def test_gold_succeeds_in_the_loop_of_inspect(
    own_world: OwnWorld, tmp_path: Path, episode: GoldEpisode, protocol: Any
) -> None:
    policy = gold(own_world(episode.env_id), [episode._replace(variation=1000)])
    task = TASKS[episode.env_id](tasks=episode.task, variations=1000, protocol=protocol)
    log = play(task, policy, tmp_path)
    check_success(log, 1)
    sample = only_sample(log)
    assert sample.metadata["task"] == episode.task and sample.metadata["variation"] == 1000
    score = (sample.scores or {})["verdict"]
    assert score.explanation is not None and score.explanation.startswith("Success")
    assert score.metadata is not None and all(check["passed"] for check in score.metadata["checks"])
    assert not integration._playing, "an episode was not closed"


@pytest.mark.slow
def test_gold_solves_every_task(own_world: OwnWorld, tmp_path: Path) -> None:
    for env_id, make in TASKS.items():
        episodes = [task for task in all_tasks() if task.env_id == env_id]
        log = play(make(variations="0", split="train"), gold(own_world(env_id), episodes), tmp_path)
        check_success(log, len(episodes))


def test_react_solves_a_task_with_the_tools(hospital: World, tmp_path: Path) -> None:
    task = integration.appointment(tasks=["02a"], variations="1000,1001")
    agent = react(prompt=None, tools=integration.fhir_tools(), submit=False)
    policy = gold(hospital, [GoldEpisode(APPOINTMENT, "02a", number) for number in (1000, 1001)])

    def stop_at_the_end(request: Any) -> ScriptedReply | str:
        over = request["messages"][-1]["content"] == "The episode is over."
        return "Done." if over else policy(request)

    check_success(play(task_with(task, solver=agent), stop_at_the_end, tmp_path), 2)


def test_epochs_are_equal_repeats(hospital: World, tmp_path: Path) -> None:
    policy = gold(hospital, [GoldEpisode(APPOINTMENT, "01", 1000)])
    log = play(integration.appointment(tasks=1, variations=1000), policy, tmp_path, epochs=3)
    check_success(log, 3)
    texts = {json.dumps([message.text for message in sample.messages]) for sample in log.samples or ()}
    assert len(texts) == 1, "the patient that the first repeat created is visible in the others"


def test_the_step_limit_is_a_truncation(tmp_path: Path) -> None:
    log = play(integration.appointment(tasks="01", variations=1000, max_steps=3), search, tmp_path)
    sample = only_sample(log)
    assert sample.limit is not None and (sample.limit.type, sample.limit.limit) == ("custom", 3)
    score = (sample.scores or {})["verdict"]
    assert score.value == 0.0 and score.metadata is not None and score.explanation is not None
    assert (score.metadata["truncated"], score.metadata["stop_reason"]) == (True, "step_limit")
    assert score.explanation.startswith("Failed")


def test_a_limit_of_inspect_is_a_truncation_too(tmp_path: Path) -> None:
    log = play(integration.appointment(tasks="01", variations=1000), search, tmp_path, message_limit=5)
    sample = only_sample(log)
    assert sample.limit is not None and sample.limit.type == "message"
    metadata = (sample.scores or {})["verdict"].metadata or {}
    assert (metadata["truncated"], metadata["stop_reason"]) == (True, "unfinished")


def test_a_full_context_window_ends_the_episode(tmp_path: Path) -> None:
    log = play(
        integration.appointment(tasks="01", variations=1000),
        lambda _: ScriptedReply("", finish_reason="model_length"),
        tmp_path,
    )
    metadata = (only_sample(log).scores or {})["verdict"].metadata or {}
    assert (metadata["truncated"], metadata["stop_reason"]) == (True, "context_limit")


@pytest.mark.parametrize(
    "reply",
    [
        ScriptedReply("I cannot do this."),
        ScriptedReply(calls=[("noSuchTool", {})]),
        ScriptedReply(calls=[("getResourceById", {"resourceType": "Patient"})]),
        ScriptedReply(calls=[("getResourceById", {"resourceType": "<script>\x00", "resourceId": "\x1b[2J"})]),
        ScriptedReply(""),
    ],
    ids=["text", "unknown tool", "missing argument", "control characters", "nothing"],
)
def test_replies_without_a_valid_action_count_as_steps(tmp_path: Path, reply: ScriptedReply) -> None:
    log = play(integration.appointment(tasks="01", variations=1000, max_steps=2), lambda _: reply, tmp_path)
    sample = only_sample(log)
    assert sample.error is None
    metadata = (sample.scores or {})["verdict"].metadata or {}
    assert (metadata["steps"], metadata["invalid_actions"]) == (2, 2)


def test_actions_after_the_end_are_not_performed(tmp_path: Path) -> None:
    reply = ScriptedReply(calls=[("finish", {"answer": []}), *SEARCH.calls])
    log = play(integration.appointment(tasks="01", variations=1000), lambda _: reply, tmp_path)
    sample = only_sample(log)
    assert [message.text for message in sample.messages[-2:]] == ["The episode is over."] * 2
    metadata = (sample.scores or {})["verdict"].metadata or {}
    assert (metadata["stop_reason"], metadata["steps"], metadata["truncated"]) == ("finished", 1, False)


@pytest.mark.parametrize("score_on_error", [False, True])
def test_a_failing_server_is_an_error_and_no_score(server_is_down: None, tmp_path: Path, score_on_error: bool) -> None:
    task = integration.appointment(tasks="01", variations=1000)
    log = play(task, search, tmp_path, fail_on_error=False, score_on_error=score_on_error)
    sample = only_sample(log)
    assert sample.error is not None and "the FHIR server is down" in sample.error.message
    assert not sample.scores and (log.results is None or log.results.completed_samples == 0)
    assert not integration._playing


def test_an_error_that_a_solver_hides_is_no_score(server_is_down: None, tmp_path: Path) -> None:
    @solver
    def careless() -> Solver:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            state.tools.extend(integration.fhir_tools())
            try:
                return await generate(state)
            except Exception:
                return state

        return solve

    task = task_with(integration.appointment(tasks="01", variations=1000), solver=careless())
    sample = only_sample(play(task, search, tmp_path, fail_on_error=False))
    assert sample.error is not None and not sample.scores


def test_episodes_on_a_running_server_take_turns(hospital: World, tmp_path: Path) -> None:
    episodes = [GoldEpisode(APPOINTMENT, "01", number) for number in range(1000, 1003)]
    with serving(hospital) as url:
        task = integration.appointment(tasks="01", variations="1000-1002", fhir_server=url)
        check_success(play(task, gold(hospital, episodes), tmp_path, max_samples=3), 3)


def test_the_token_of_a_server_is_not_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_error(401)

        do_POST = do_PUT = do_DELETE = do_GET

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setenv("WARD_TOKEN", "abracadabra-4711")
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/fhir"
        task = integration.appointment(tasks="01", variations=1000, fhir_server=url, fhir_token_from_env="WARD_TOKEN")
        log = play(task, search, tmp_path, fail_on_error=False, log_format="json")
        server.shutdown()
    assert seen and set(seen) == {"Bearer abracadabra-4711"}
    assert only_sample(log).error is not None
    assert "abracadabra" not in Path(log.location).read_text("utf-8")


def test_a_server_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    task = integration.appointment(tasks="01", variations="1000,1001", fhir_server="http://127.0.0.1:9/fhir")
    log = play(task, search, tmp_path, fail_on_error=False)
    assert [bool(sample.error) for sample in log.samples or ()] == [True, True]


def test_any_pack_by_its_env_id(hospital: World, tmp_path: Path) -> None:
    policy = gold(hospital, [GoldEpisode("FHIRAgent/GeneticTesting-v0", "20", 1000)])
    task = integration.pack("FHIRAgent/GeneticTesting-v0", tasks=20, variations=1000)
    check_success(play(task, policy, tmp_path), 1)


def test_the_task_file_of_a_benchmark(tiny_world: World, tmp_path: Path) -> None:
    question = "What's the MRN of the patient with name Ana O'Brien and DOB of 1963-11-13?"
    case = {"id": "task1_1", "instruction": question, "context": "", "sol": ["S1"], "eval_MRN": "S1"}
    file = tmp_path / "tasks.json"
    file.write_text(json.dumps([case]))
    task = integration.medagentbench(
        task_file=str(file), world=str(tiny_world.path), grading="official", protocol="text", system=""
    )
    sample = only_sample(play(task, lambda _: 'FINISH(["S1"])', tmp_path))
    assert sample.messages[0].role == "user" and sample.id == "task1_1/0"
    assert (sample.scores or {})["verdict"].value == 1.0


def test_a_system_prompt_may_contain_commas(tmp_path: Path) -> None:
    task = integration.appointment(tasks="01", variations=1000, max_steps=1, system=["Work fast", " and well."])
    assert only_sample(play(task, search, tmp_path)).messages[0].text == "Work fast, and well."


def test_an_interim_score_does_not_end_the_episode() -> None:
    state = TaskState("mockllm/model", "01/1000", 1, "", [])  # outside of a sample, as for `inspect ctl task score`
    score = asyncio.run(integration.verdict()(state, Target("")))
    assert score is not None and math.isnan(score.value) and score.explanation == "the episode is still running"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"taks": "01"}, "did you mean 'tasks'"),
        ({"tasks": ["01", "zz"]}, "unknown task 'zz'"),
        ({"tasks": True}, "unknown task 'True'"),
        ({"variations": "x"}, "must be numbers"),
        ({"variations": 3}, "not in split 'test'"),
        ({"variations": 1000, "split": "train"}, "not in split 'train'"),
        ({"variations": 2000, "split": None}, "numbered from 0 to 1999"),
        ({"protocol": ["text"]}, "unknown protocol"),
        ({"world": "nowhere"}, "unknown world"),
        ({"fhir_server": "http://user:secret@host/fhir"}, "log would contain the credentials"),
        ({"fhir_credentials": None}, "unknown argument 'fhir_credentials'"),
        ({"level": 1}, "has no levels, not level 1"),
        ({"fhir_token_from_env": "NO_SUCH_VARIABLE"}, "no environment variable"),
    ],
)
def test_a_wrong_parameter_is_a_one_line_error(settings: Any, message: str) -> None:
    with pytest.raises(FhirGymError, match=message) as refused:
        integration.appointment(**settings)
    assert isinstance(refused.value, click.ClickException)  # the command line of Inspect prints its message only


def test_the_known_parameters_are_those_of_the_task(tmp_path: Path) -> None:
    with pytest.raises(FhirGymError, match="did you mean 'tasks'") as refused:
        integration.appointment(taks="01")
    known = str(refused.value).partition("Known: ")[2].split(", ")
    assert sorted(known) == sorted({*integration.TaskSettings.__annotations__} - {"fhir_credentials"})


def test_level_and_dials_choose_tasks(tmp_path: Path) -> None:
    def tasks(**settings: Any) -> set[str]:
        return {sample.metadata["task"] for sample in integration.shift(variations=1000, **settings).dataset}

    assert tasks(level=4) == {"day-4"}
    assert tasks(tasks="day-3", dials={"minutes": 60}) == tasks(tasks="day-3", minutes=60) == {"day-3+minutes=60"}


def test_truncation_and_invalid_actions_are_scores_and_epochs_have_pass_at_k(tmp_path: Path) -> None:
    task = integration.appointment(tasks="01", variations=1000, max_steps=1, protocol="text")
    log = play(task, lambda _: "no action", tmp_path, epochs=Epochs(2, ["mean", "pass_at_2", "pass_k_2"]))
    assert log.results is not None
    means = {score.name: score.metrics["mean"].value for score in log.results.scores if score.reducer == "mean"}
    assert means == {"verdict": 0.0, "truncated": 1.0, "invalid_actions": 1.0}
    assert {score.reducer for score in log.results.scores} == {"mean", "pass_at_2", "pass_k_2"}
    for sample in log.samples or ():
        parts = (sample.scores or {})["verdict"].metadata["check_rewards"]
        assert len(parts) > 1 and max(0.0, sum(part["reward"] for part in parts)) == 0.0


def test_a_log_can_be_scored_again(tmp_path: Path) -> None:
    log = play(integration.appointment(tasks="01", variations=1000, max_steps=1), search, tmp_path)
    again = inspect_ai.score(log, integration.verdict(), action="overwrite", display="none")
    assert (only_sample(again).scores or {})["verdict"] == (only_sample(log).scores or {})["verdict"]


@pytest.mark.slow
def test_the_command_line_finds_the_tasks_and_reads_the_logs(tmp_path: Path) -> None:
    environment = os.environ | {"INSPECT_LOG_DIR": str(tmp_path / "logs")}

    def inspect(*arguments: str) -> str:
        command = [sys.executable, "-m", "inspect_ai", *arguments]
        return subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    log = play(integration.appointment(tasks="01", variations=1000, max_steps=1), search, tmp_path / "logs")
    assert "fhir_gym/appointment" in json.dumps(json.loads(inspect("log", "dump", str(log.location)))["eval"])
    inspect("view", "bundle", "--output-dir", str(tmp_path / "site"))
    assert (tmp_path / "site" / "index.html").is_file()


@pytest.mark.slow
def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    lines = run_page("integrations_inspect.md", tmp_path).splitlines()
    assert lines[0] == "success 0.0" and lines[-1] == "finished"
