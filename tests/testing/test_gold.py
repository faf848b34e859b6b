"""Reference solutions played over chat succeed, and their records become correct datasets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")

from fhir_gym.actions import GRAMMAR
from fhir_gym.agents import ChatAgent
from fhir_gym.errors import FhirGymError
from fhir_gym.fhir import World
from fhir_gym.rollouts import Rollout, run, write_dataset
from fhir_gym.rollouts.dataset import Format, load
from fhir_gym.tasks import get_task, pack_ids, task_keys
from fhir_gym.testing import ChatServer, GoldOverChat

OwnWorld = Callable[[str], World]


def solved(own_world: OwnWorld, protocol: Any, numbers: range, every: int = 1) -> Iterator[Rollout]:
    for env_id in pack_ids():
        world = own_world(env_id)
        # The policy follows the whole conversation for each reply, which takes too long for live tasks.
        keys = [key for key in task_keys(env_id) if not get_task(env_id, key).is_live][::every]
        jobs = [(env_id, key, number) for key in keys for number in numbers]
        with ChatServer(GoldOverChat(world, jobs)) as server:
            agent = ChatAgent("scripted", base_url=server.base_url, protocol=protocol)
            yield from run(env_id, agent, tasks=keys, variations=numbers, concurrency=16, world=world)


def check(rollouts: list[Rollout], protocol: str, folder: Path) -> None:
    lost = [(r.env_id, r.task.key, r.task.variation, r.stop_reason, r.error) for r in rollouts if not r.success]
    assert not lost
    assert not [turn.error for rollout in rollouts for turn in rollout.turns if turn.error]
    formats: tuple[Format, ...] = ("messages", "tools")
    for format in formats:
        path = folder / f"{protocol}-{format}.jsonl"
        report = write_dataset(rollouts, path, format)
        assert report.rollouts == len(rollouts) - report.left_out["duplicate"] and set(report.left_out) <= {"duplicate"}
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        for row in rows:
            check_row(row, format)
        if find_spec("datasets"):
            assert [dict(row) for row in load(path, format)] == rows


def check_row(row: dict[str, Any], format: str) -> None:
    roles = [message["role"] for message in row["messages"]]
    assert roles[:2] == ["system", "user"] and roles[-1] == "assistant"
    assert set(roles[2::2]) == {"assistant"} and len(set(roles[3::2])) <= 1
    if format == "messages":
        assert all(isinstance(m["content"], str) and m["content"] for m in row["messages"])
        return
    assert row["tools"] == GRAMMAR.tools()
    for message in row["messages"]:
        assert None not in message.values() or message["content"] is None
        for call in message.get("tool_calls", []):
            arguments = call["function"]["arguments"]
            assert isinstance(arguments, dict) and None not in arguments.values()


@pytest.mark.parametrize("protocol", ["text", "tools"])
def test_gold_over_chat_solves_every_twelfth_task(own_world: OwnWorld, tmp_path: Path, protocol: str) -> None:
    check(list(solved(own_world, protocol, range(1), every=12)), protocol, tmp_path)


@pytest.mark.parametrize("protocol", ["text", "tools"])
@pytest.mark.parametrize(
    ("numbers", "every"),
    [pytest.param(range(1, 2), 4, marks=pytest.mark.slow), pytest.param(range(3), 1, marks=pytest.mark.exhaustive)],
    ids=["every fourth task", "every task"],
)
def test_gold_over_chat_solves_variations(
    own_world: OwnWorld, tmp_path: Path, protocol: str, numbers: range, every: int
) -> None:
    check(list(solved(own_world, protocol, numbers, every)), protocol, tmp_path)


def test_unannounced_tasks_are_refused(hospital: World) -> None:
    gold = GoldOverChat(hospital, [("FHIRAgent/Appointment-v0", "01", 0)])
    with pytest.raises(FhirGymError, match="no announced task has this prompt"):
        gold({"messages": [{"role": "user", "content": "Do something else."}]})
