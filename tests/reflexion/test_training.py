"""Training a memory against a scripted chat server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fhir_gym.agents import IdleAgent, Usage
from fhir_gym.agents.memory import Memory
from fhir_gym.errors import ArgumentError, EndpointError, FhirGymError, InfraError, TrainingBudgetError, TrainingError
from fhir_gym.reflexion import MemoryTrainingConfig, train_memory, training_usage
from fhir_gym.reflexion.reviewing import LESSONS_HEADING
from fhir_gym.rollouts import Budget, BudgetTracker, Prices
from fhir_gym.testing import ChatServer, ScriptedReply
from fhir_gym.testing.servers import Fault
from tests.reflexion.conftest import LESSONS, Study, role

PACK = "FHIRAgent/Appointment-v0"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "memory.jsonl"


def roles(server: ChatServer) -> dict[str, int]:
    found = {"agent": 0, "evaluator": 0, "reflector": 0}
    for request in server.requests:
        found[role(request)] += 1
    return found


def test_failures_are_tried_again_with_lessons(server: ChatServer, config: MemoryTrainingConfig, out: Path) -> None:
    memory = train_memory(config.model_copy(update={"variations": "0"}), out)
    # Task 03 fails in both trials; task 04b succeeds in the first one.
    counts = memory.header.training["counts"]
    assert counts == {"placeholders": 0, "runs": 3, "successes": 1, "written": 9}
    assert roles(server) == {"agent": 2 * 2 + 3, "evaluator": 3, "reflector": 3}
    kinds = [
        (reflection.kind, reflection.resource_type, reflection.operation, reflection.support)
        for reflection in memory.reflections
    ]
    assert kinds == [
        ("micro", "Condition", "create", 3),
        ("micro", "Patient", "search", 3),
        ("macro", None, None, 2),
        ("macro", None, None, 1),
    ]
    assert memory.reflections[2].source and memory.reflections[2].source.model_dump() == {
        "env_id": PACK,
        "task": "03",
        "variation": 0,
        "phrasing": 0,
        "trial": 1,
        "success": False,
    }
    assert Memory.load(out).text() == memory.text() == out.read_text("utf-8")


@pytest.mark.slow
def test_the_second_trial_reads_only_its_own_lessons(
    study: Study, server: ChatServer, config: MemoryTrainingConfig, out: Path
) -> None:
    def reflector(request: Any) -> str:
        text = request["messages"][1]["content"]
        which = "enter the diagnosis" if "Condition" in text.partition("Run of the agent")[0] else "search"
        return json.dumps({"macro": [{"lesson": f"Remember to {which}, please."}]})

    study.reflector = reflector
    train_memory(config.model_copy(update={"tasks": ("03", "05")}), out)
    prompts = [request["messages"][1]["content"] for request in server.requests if role(request) == "agent"]
    lessons = [prompt.partition(LESSONS_HEADING)[2] for prompt in prompts if LESSONS_HEADING in prompt]
    assert len(lessons) == 4 * 3  # four episodes with three requests
    assert all(lesson.count("Remember") == 1 for lesson in lessons)


@pytest.mark.slow
def test_any_concurrency_gives_the_same_bytes(config: MemoryTrainingConfig, out: Path, tmp_path: Path) -> None:
    train_memory(config, out)
    other = tmp_path / "other.jsonl"
    train_memory(config.model_copy(update={"concurrency": 1}), other)
    assert out.read_bytes() == other.read_bytes()


@pytest.mark.slow
def test_a_finished_training_sends_no_request(server: ChatServer, config: MemoryTrainingConfig, out: Path) -> None:
    memory = train_memory(config, out)
    before = len(server.requests)
    again = train_memory(config.model_copy(update={"concurrency": 2, "tokens": 1}), out)
    assert again.text() == memory.text()
    assert len(server.requests) == before


@pytest.mark.slow
def test_other_settings_are_refused(config: MemoryTrainingConfig, out: Path) -> None:
    train_memory(config, out)
    for change in ({"trials": 1}, {"tasks": ("03",)}, {"specification": True}):
        with pytest.raises(TrainingError, match="other settings"):
            train_memory(config.model_copy(update=change), out)


@pytest.mark.slow
def test_a_failed_endpoint_loses_nothing(
    study: Study, server: ChatServer, config: MemoryTrainingConfig, out: Path
) -> None:
    undisturbed = train_memory(config, out.with_name("undisturbed.jsonl"))
    wanted, server.requests[:] = len(server.requests), []
    plan: tuple[Fault | None, ...] = (*[None] * 9, "500", *[None] * 4, "500", "500", "500")
    faults = list(plan)
    server._faults = lambda number: faults.pop(0) if faults else None
    for _ in range(6):
        try:
            memory = train_memory(config.model_copy(update={"concurrency": 1}), out)
            break
        except (InfraError, EndpointError) as error:
            assert "\n" not in str(error)
    assert memory.text() == undisturbed.text()
    assert len(server.requests) - server.faulted == wanted


@pytest.mark.slow
def test_a_budget_stops_and_the_training_continues(server: ChatServer, config: MemoryTrainingConfig, out: Path) -> None:
    small = config.model_copy(update={"tokens": 4_000, "concurrency": 1})
    with pytest.raises(TrainingBudgetError, match="nothing is lost"):
        train_memory(small, out)
    spent = sum(usage.total for usage in training_usage(out).values())
    assert 4_000 <= spent < 8_000
    assert not out.exists()
    train_memory(config, out)
    usage = training_usage(out)
    assert sum(tokens_used.total for tokens_used in usage.values()) == sum(map(tokens, server.requests))
    assert all(usage[name] != Usage() for name in ("agent", "evaluator", "reflector"))


def tokens(request: Any) -> int:
    """Return the tokens that the server reports for a request; its replies depend only on the request."""
    reply = Study()(request)
    body: Any = (ScriptedReply(reply) if isinstance(reply, str) else reply).body(request, 0)
    return int(body["usage"]["total_tokens"])


@pytest.mark.slow
def test_a_larger_budget_can_stop_the_training(server: ChatServer, config: MemoryTrainingConfig, out: Path) -> None:
    alone = config.model_copy(update={"concurrency": 1})
    prices = {"agent": Prices(1.0, 1.0), "reflector": Prices(100.0, 100.0)}  # the evaluator costs nothing
    budget = BudgetTracker(Budget(cost=0.05, prices=Prices()))
    with pytest.raises(TrainingBudgetError):
        train_memory(alone, out, budget=budget, prices=prices)
    assert roles(server) == {"agent": 8, "evaluator": 1, "reflector": 1}  # 4 episodes, then the first review
    assert budget.exhausted and budget.usage.total == sum(map(tokens, server.requests))
    train_memory(alone, out, budget=BudgetTracker(Budget(tokens=10**6)))
    usage = training_usage(out).values()
    assert sum(usage.total for usage in usage) == sum(map(tokens, server.requests))


@pytest.mark.parametrize("variations", ["1000", "0-1,1003"])
def test_test_variations_are_refused(config: MemoryTrainingConfig, out: Path, variations: str) -> None:
    with pytest.raises(ValueError, match="test variations are never trained on"):
        MemoryTrainingConfig.model_validate(config.model_dump() | {"variations": variations})
    with pytest.raises(ArgumentError, match="test variations are never trained on"):
        train_memory(config, out, episodes=[(PACK, "03", 0, 0), (PACK, "03", 1000, 0)])
    assert not out.exists()


@pytest.mark.parametrize(
    ("episodes", "message"),
    [
        ([], "no training episodes"),
        ([(PACK, "99", 0, 0)], "unknown task"),
        ([(PACK, "03", 0, 0), (PACK, "03", 0, 1)], "two phrasings"),
        ([("FHIRAgent/None-v0", "03", 0, 0)], "FHIRAgent/None-v0"),
    ],
)
def test_bad_episodes_are_refused(config: MemoryTrainingConfig, out: Path, episodes: Any, message: str) -> None:
    with pytest.raises(FhirGymError, match=message):
        train_memory(config, out, episodes=episodes)


@pytest.mark.slow
def test_any_agent_can_play(server: ChatServer, config: MemoryTrainingConfig, out: Path) -> None:
    memory = train_memory(config, out, agent=IdleAgent(), episodes=[(PACK, "03", 0, 2)])
    # Both trials are equal, and an equal request is paid for once.
    assert roles(server) == {"agent": 0, "evaluator": 1, "reflector": 1}
    assert [reflection.source.phrasing for reflection in memory.reflections if reflection.source] == [2, 2, 2]


@pytest.mark.slow
def test_the_reflector_may_look_up_the_specification(
    study: Study, server: ChatServer, config: MemoryTrainingConfig, out: Path
) -> None:
    def reflector(request: Any) -> ScriptedReply | str:
        done = sum(message["role"] == "tool" for message in request["messages"])
        if done < 2:
            return ScriptedReply(calls=[("getSearchParams", {"resourceType": ["Slot", "Slots"][done]})])
        return json.dumps(LESSONS)

    study.reflector = reflector
    update = {"specification": True, "tasks": ("04b",), "variations": "0"}
    memory = train_memory(config.model_copy(update=update), out)
    asked = [request for request in server.requests if role(request) == "reflector"]
    names = [tool["function"]["name"] for tool in asked[0]["tools"]]
    assert names == ["listResources", "getStructureDefinition", "getSearchParams", "getDataTypeDefinition"]
    first, second = (message["content"] for message in asked[2]["messages"] if message["role"] == "tool")
    assert "schedule" in first and second.startswith("Error:")
    assert memory.header.specification and len(memory.reflections) == 3
    assert all("tools" not in request for request in server.requests if role(request) == "evaluator")


@pytest.mark.slow
def test_look_ups_are_bounded(study: Study, server: ChatServer, config: MemoryTrainingConfig, out: Path) -> None:
    study.reflector = lambda request: ScriptedReply(calls=[("listResources", {})] * 3)
    memory = train_memory(config.model_copy(update={"specification": True, "tasks": ("04b",)}), out)
    assert memory.reflections == ()
    assert memory.header.training["counts"]["unreadable reflections"] == 2
    assert roles(server)["reflector"] == 2 * 12


GARBAGE = ["", "no JSON", "{" * 500_000, '{"micro": 3}', '["micro"]', "{}", '{"micro": [' * 50, "null\x00", "<script>"]


@pytest.mark.slow
@pytest.mark.parametrize("text", GARBAGE)
def test_garbage_is_asked_for_again_and_counted(
    study: Study, server: ChatServer, config: MemoryTrainingConfig, out: Path, text: str
) -> None:
    study.evaluator = study.reflector = lambda request: text
    memory = train_memory(config.model_copy(update={"tasks": ("04b",), "variations": "0"}), out)
    counts = memory.header.training["counts"]
    assert (counts["unreadable critiques"], counts["unreadable reflections"]) == (1, 1)
    assert roles(server) == {"agent": 2, "evaluator": 3, "reflector": 3}
    assert len(json.dumps(server.requests[-1])) < 50_000
    assert memory.reflections == ()


def test_bad_entries_are_dropped_and_counted(study: Study, config: MemoryTrainingConfig, out: Path) -> None:
    micro = [
        {"resource_type": "Patient", "operation": "search", "lesson": "Search by family and given."},
        {"resource_type": "Patients", "operation": "search", "lesson": "a b c"},
        {"resource_type": "Patient", "operation": "merge", "lesson": "a b c"},
        {"resource_type": "Patient", "operation": "search", "lesson": 7},
        "text",
        None,
        {"resource_type": "Patient", "operation": "read", "lesson": "x" * 2_000},
        {"resource_type": "Patient", "operation": "read", "lesson": "\u0410\u0434\u0435yemi is a patient here"},
    ]
    macro = ["A lesson as a text.", {"lesson": "One more lesson here."}, {"lesson": " "}]
    macro += [{"lesson": f"Another lesson with the letter {letter}."} for letter in "xyz"]
    study.reflector = lambda request: f"Here you are:\n```json\n{json.dumps({'micro': micro, 'macro': macro})}\n```"
    update = {"tasks": ("04b",), "variations": "0", "similarity": 2.0, "guard": "1000"}
    memory = train_memory(config.model_copy(update=update), out)
    assert [reflection.text for reflection in memory.reflections] == [
        "Search by family and given.",
        "A lesson as a text.",
        "One more lesson here.",
        "Another lesson with the letter x.",
    ]
    dropped = {key: value for key, value in memory.header.training["counts"].items() if key.startswith("dropped")}
    assert dropped == {
        "dropped: another script": 1,
        "dropped: malformed": 4,
        "dropped: too long": 1,
        "dropped: too many lessons": 2,
        "dropped: unknown operation": 1,
        "dropped: unknown resource type": 1,
    }


@pytest.mark.slow
def test_a_run_that_is_too_long_for_a_model_is_counted(study: Study, config: MemoryTrainingConfig, out: Path) -> None:
    with ChatServer(study, context_tokens=300) as small:
        reflector = config.agent.model_copy(update={"base_url": small.base_url})
        update = {"reflector": reflector, "tasks": ("04b",)}
        memory = train_memory(config.model_copy(update=update), out)
    assert memory.header.training["counts"]["unreadable reflections"] == 2


@pytest.mark.slow
def test_a_damaged_journal_is_named(config: MemoryTrainingConfig, out: Path) -> None:
    train_memory(config, out)
    out.unlink()
    journal = out.with_name("memory.jsonl.training") / "replies.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([lines[0], b"garbage\n", *lines[1:]]))
    with pytest.raises(TrainingError, match=r"replies\.jsonl:2 is not a model's reply"):
        train_memory(config, out)


@pytest.mark.slow
def test_a_wrong_endpoint_is_one_clear_line(config: MemoryTrainingConfig, out: Path) -> None:
    wrong = config.agent.model_copy(update={"model": "none"})
    with pytest.raises(EndpointError, match="unknown model 'none'"):
        train_memory(config.model_copy(update={"evaluator": wrong}), out)


@pytest.mark.slow
def test_progress_counts_episodes_and_reviews(config: MemoryTrainingConfig, out: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    train_memory(config, out, progress=lambda done, total, text: seen.append((done, total, text.partition(":")[0])))
    assert [report for report in seen if report[2] == "trial 1"] == [(n, 4, "trial 1") for n in (1, 2, 3, 4)] * 2
    assert [report for report in seen if report[2] == "trial 2"] == [(n, 2, "trial 2") for n in (1, 2)] * 2
