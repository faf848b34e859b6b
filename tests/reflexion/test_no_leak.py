"""No name, id or answer of a training or test variation gets into a memory, whatever the models write."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

import fhir_gym
from fhir_gym import worlds
from fhir_gym.reflexion import InstanceData, MemoryTrainingConfig, train_memory
from fhir_gym.reflexion.leak_filter import GENERIC, NEVER_NAMES, ORDINARY
from fhir_gym.tasks import get_pack, task_set
from tests.reflexion.conftest import Study

PACK = "FHIRAgent/Appointment-v0"


def facts(keys: tuple[str, ...], numbers: tuple[int, ...]) -> dict[str, set[str]]:
    """Return names, ids and answers of variations, collected independently of the filter."""
    found: dict[str, set[str]] = {"names": set(), "ids": set(), "answers": set()}
    with worlds.load(get_pack(PACK).world) as world:
        for key in keys:
            task = task_set(PACK)[key]
            for number in numbers:
                variation = task.variation(number, world)
                text = json.dumps(list(variation.setup), ensure_ascii=False)
                found["ids"] |= {resource["id"] for resource in variation.setup}
                found["names"] |= {*re.findall(r'"family": "([^"]+)"', text)}
                found["names"] |= {
                    name for given in re.findall(r'"given": \[([^\]]+)\]', text) for name in quoted(given)
                }
                found["ids"] |= {
                    value for value in task.prompt_values(variation.params, world).values() if digits(value)
                }
        for rollout in fhir_gym.run(PACK, "gold", tasks=keys, variations=numbers, world=world):
            assert rollout.verdict is not None and rollout.verdict.success
            found["answers"] |= {str(answer) for answer in rollout.verdict.answer or ()}
    return found


def quoted(text: str) -> Iterator[str]:
    yield from re.findall(r'"([^"]+)"', text)


def digits(text: str) -> bool:
    return sum(letter.isdigit() for letter in text) > 2 and " " not in text


def is_word(name: str) -> bool:
    return {name.casefold()} <= ORDINARY | GENERIC | NEVER_NAMES or len(name) < 4


def smuggled(text: str, extra: list[str]) -> list[str]:
    """Return lessons that contain what a model has read, in several disguises."""
    ids = re.findall(r"\b[A-Z]{1,4}\d{6,8}\b|\b\d{5,7}\b", text)[:40]
    names = re.findall(r'"(?:family|given)":\[?"([^"]+)"', text)[:40]
    prompt = text.partition("Run of the agent")[0]
    values = [fact for several in zip_longest(extra, names, ids) for fact in several if fact]
    lessons = [prompt[:900], text[-900:]]
    lessons += [f"The right record is {value} in this case." for value in values]
    lessons += [f"Always use {value.upper()} for such requests." for value in values]
    lessons += [f"Always use {value.lower()} for such requests." for value in values]
    lessons += [f"Remember {' '.join(value)} for such requests." for value in values]
    lessons += [f"Remember {'-'.join(value)} for such requests." for value in values]
    lessons += [f"Remember x/{value}/y for such requests." for value in values]
    return lessons


@pytest.mark.slow
@pytest.mark.parametrize("guarded", [True, False])
def test_a_hostile_model_smuggles_nothing(
    study: Study, config: MemoryTrainingConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """Without guarded variations, names are known only from the training episodes themselves."""
    keys = ("02a", "03", "04a", "09a", "14a", "15b")
    tested = facts(keys, (1000,)) if guarded else {}
    trained = facts(keys, (0, 1))
    extra = sorted(tested["ids"] | tested["names"]) if guarded else []
    if not guarded:
        monkeypatch.setattr("fhir_gym.reflexion.training.guarded_data", lambda *_: InstanceData())
    asked = 0

    def reflector(request: Any) -> str:
        nonlocal asked
        asked += 1
        lessons = smuggled(request["messages"][1]["content"], extra[asked % 50 :: 50])
        start = asked * 5 % len(lessons)
        chosen = [*lessons[:2], *(lessons * 2)[start : start + 7]]
        micro = [{"resource_type": "Patient", "operation": "search", "lesson": lesson} for lesson in chosen[:6]]
        return json.dumps({"micro": micro, "macro": chosen[6:]})

    study.reflector = reflector
    changes = {"tasks": keys, "guard": "1000", "similarity": 2.0, "concurrency": 1}
    path = tmp_path / "memory.jsonl"
    memory = train_memory(config.model_copy(update=changes), path)
    counts = memory.header.training["counts"]
    assert counts["written"] > 10 and counts["placeholders"] > 30
    assert counts.get("dropped: test data", 0) > 3 or not guarded
    for found in filter(None, (tested, trained)):
        assert_absent(found, path.read_text("utf-8"))


def assert_absent(found: dict[str, set[str]], text: str) -> None:
    header, _, body = text.partition("\n")
    spelled = re.sub(r"[^\w<>]+", "", body).casefold()
    words = {word.casefold() for word in re.findall(r"[^\W\d_]+(?:['-][^\W\d_]+)*", body)}
    for id in found["ids"] | {answer for answer in found["answers"] if len(answer) > 2}:
        assert id.casefold() not in body.casefold(), id
        assert id not in header
        assert re.sub(r"\W", "", id).casefold() not in spelled or len(id) < 5, id
    for name in found["names"]:
        assert is_word(name) or name.casefold() not in words, name
        assert is_word(name) or len(name) < 7 or name.casefold() not in body.casefold(), name
