"""Each paraphrase of a task says what the task's prompts say; training and testing never share a wording."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import copy
from difflib import SequenceMatcher
from hashlib import blake2b
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from fhir_gym import read_rollouts, run, write_rollouts
from fhir_gym.errors import ArgumentError, TaskError
from fhir_gym.fhir import World
from fhir_gym.rollouts.timeline import replay
from fhir_gym.tasks import experiment_packs, get_experiment, get_task, task_keys
from fhir_gym.tasks.core.paraphrases import read_paraphrases
from tests.tasks.packs.test_brief_prompts import placeholders

CLINIC, GENETICS = experiment_packs()
TASKS = [(env_id, key) for env_id in (CLINIC, GENETICS) for key in task_keys(env_id)]
REDUNDANT = {"11d": {"doctor"}, "12c": {"days"}, "13a": {"doctor"}, "13b": {"doctor"}}
"""Placeholders that repeat others; so does ``patient`` in tasks that name the patient by name and date of birth."""
SIMILAR = 0.75
"""Similarity from which two wordings are no paraphrases; the words in the same order are compared."""

NONE_YET = r"similar|alike|not.* (yet|on file)|no(body)? .*(record|on file)|no(t| longer)? .*in our records"
NONE_YET += r"|already there|new to|same name"
START = r"(at or after|(not|no|cannot) .*(before|earlier than)|from|all that start before) \{(moment|start)\}"
START += r"|\{moment\} is the earliest|\{start\} or later"
NEXT_WEEKDAY = (r"next \{weekday\}", r"\{hour\}:00")
CANCEL = (r"cancel|call off", r"slot", r"free|available|release|others? can have")
FACTS: Mapping[str, tuple[str, ...]] = {
    "01": ("patient", NONE_YET),
    "02": ("exactly|precisely|in all three|all three|merely|differ", "patient"),
    "03": ("condition", "medical history", "SNOMED CT", "clinical status"),
    "04": ("first|oldest|earliest|before all", "medical history", "if|any|none|no history|empty|nothing"),
    "05": ("confirmed", "plan", "SNOMED CT"),
    "06": (
        r"the next \{days\} days",
        "surgery plan|plan is it|operation is planned",
        r"\bif\b|is there|does|is an|whether|check",
    ),
    "07": ("subscri", "polic", NONE_YET, r"(from|first day).*\{start\}.*(to|last day).*\{end\}"),
    "08": ("in force", "beneficiary|(of this|the) patient", "coverage"),
    "09a": ("related", NONE_YET),
    "09b": (r"\bnew\b", r"\bactive\b", "account"),
    "09c": ("guarantor", "another|further|more|also|too|add"),
    "09d": ("active", "account", r"only|if|otherwise|first|there is none"),
    "10": ("active account", "guarantor"),
    "11a": (
        "any provider|any of its providers|whichever provider|whoever the provider|provider does not matter",
        START,
    ),
    "11b": (r"\{gender\}", r"in \{city\}", r"speak|among their languages", "earliest|first", START),
    "11c": ("available", "how many|number|count", START),
    "11d": ("available", "first|earliest", START),
    "12a": ("available", "how many|number|count", r"\{start\}.*\{end\}", "until|between|and before"),
    "12b": ("available", r"\b(all|every|everything)\b", r"\{day\}"),
    "12c": (
        "available",
        r"about \{wait\} days",
        r"\{start\}.*\{end\}",
        r"before:? \{end\}|exclu|not (included|count)|earlier than",
    ),
    "12d": (
        "available",
        r"before \{hour\}:00",
        r"\{weekday\}",
        r"start(s|ing)? on \{first\}|first of which is",
        "how many|number|count",
    ),
    "13": (*NEXT_WEEKDAY, "patient", "booked|booking"),
    "14": (*NEXT_WEEKDAY, r"Dr\. \{doctor\}"),
    "15a": (*CANCEL, "next appointment"),
    "15b": (*CANCEL, "next (appointment|one)", r"(with|has with) Dr\. \{doctor\}"),
    "15c": (*CANCEL, "next Monday", "appointment"),
    "16a": ("waitlist", "earlier|sooner", r"first day", "window"),
    "16b": (
        "waitlist",
        "free",
        "period",
        r"entry|existing appointment|the appointment that is there|waitlist appointment|the one on",
    ),
    "16c": ("waitlist", "cancel"),
    "17a": ("next Monday", r"\{hour\}:00", "appointment"),
    "17b": (*NEXT_WEEKDAY, "propose", "declined", "another|different|other|else", "free"),
    "20": ("order", r"status( of the order is|:)? \{", "request"),
    "21a": (r"\b(all|every|each)\b", "diagnostic reports?", "attach|supporting information", "order"),
    "21b": ("relevant genetic", "only|no other|any others|other reports out", "attach|add", "order"),
    "21c": ("family history", "attach|supporting information", "first|onset|began", "order"),
    "22": ("family history", "first|onset|began|beginning"),
}
"""For each task, patterns of the conditions that its prompts state besides the values."""


def facts(key: str) -> tuple[str, ...]:
    return FACTS[key] if key in FACTS else FACTS[key[:-1]]


@pytest.mark.parametrize(("env_id", "key"), TASKS)
def test_every_paraphrase_states_the_facts_of_the_prompts(env_id: str, key: str) -> None:
    task = get_task(env_id, key)
    names = set.union(*map(placeholders, task.prompts))
    redundant = REDUNDANT.get(key, set()) | (
        {"patient"} if {"given", "birth_date"} <= names and "id" not in names else set()
    )
    assert len(task.paraphrases.train) == len(task.paraphrases.test) == 4
    for text in (*task.paraphrases.train, *task.paraphrases.test):
        assert placeholders(text) <= names <= placeholders(text) | redundant, text
        assert text[-1] in ".?:}" or "\n- " in text, text
        missing = [fact for fact in facts(key) if not re.search(fact, text, re.IGNORECASE | re.DOTALL)]
        assert not missing, text
    for fact in facts(key):
        assert any(re.search(fact, prompt, re.IGNORECASE | re.DOTALL) for prompt in task.prompts), fact


@pytest.mark.parametrize(("env_id", "key"), TASKS)
def test_wordings_of_a_task_differ(env_id: str, key: str) -> None:
    task = get_task(env_id, key)
    for text, later in combinations(task.wordings, 2):
        similarity = SequenceMatcher(None, text.casefold().split(), later.casefold().split()).ratio()
        assert later in task.prompts or similarity < SIMILAR, (text, later)


@pytest.mark.parametrize(("env_id", "key"), TASKS)
def test_every_paraphrase_renders_with_all_values(env_id: str, key: str, hospital: World) -> None:
    task = get_task(env_id, key)
    for k in (0, 7, 1000, 1005):
        original = task.variation(k, hospital, 0)
        values = task.prompt_values(original.params, hospital)
        prompts = " ".join(task.variation(k, hospital, number).prompt for number in range(len(task.prompts)))
        hidden = {resource["id"] for resource in original.setup if resource["id"] not in prompts}
        texts = set()
        for number in range(len(task.prompts), len(task.wordings)):
            variation = task.variation(k, hospital, number)
            start, request, instructions = variation.prompt.split("\n\n")
            assert f"{start}\n\n" == original.prompt[: len(start) + 2] and instructions == task.answer_instructions
            assert all(values[name] in request for name in placeholders(task.wordings[number]))
            assert not set("{}") & set(request)
            assert not [id for id in hidden if id in request]
            assert (variation.params, variation.setup) == (original.params, original.setup)
            texts.add(request)
        assert len(texts) == 8


@pytest.mark.parametrize(("env_id", "key"), TASKS)
def test_training_and_testing_use_different_paraphrases(env_id: str, key: str, hospital: World) -> None:
    task = get_task(env_id, key)
    first = len(task.prompts)
    learnt, tested = ([task.wording_of(k, "paraphrase") for k in numbers] for numbers in (range(4), range(1000, 1004)))
    assert sorted([*learnt, *tested]) == list(range(first, first + 8))
    assert sorted(learnt) == list(range(first, first + 4))
    assert [task.wording_of(k, "paraphrase") for k in (4, 1007)] == [learnt[0], tested[3]]
    assert task.variation(1, hospital, "paraphrase") == task.variation(1, hospital, learnt[1])
    assert all(task.draw_variation(k, hospital).phrasing < first for k in (0, 1, 2, 1000))


def test_a_changed_paraphrase_needs_new_versions() -> None:
    """After a change, raise the pack's version, and give the experiments with paraphrases new names."""
    numbers = (*range(4), *range(1000, 1004))
    tasks = [get_task(*name) for name in TASKS]
    content = [(task.key, [task.wordings[int(task.wording_of(k, "paraphrase"))] for k in numbers]) for task in tasks]
    assert blake2b(repr(content).encode(), digest_size=8).hexdigest() == "0fa194096358d29b"


def test_a_run_records_the_wording_resumes_and_replays(hospital: World, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    settings: dict[str, Any] = {"tasks": ("02a", "14a"), "variations": [3, 1002], "world": hospital}
    write_rollouts(path, run(CLINIC, "gold", phrasing="paraphrase", **settings))
    rollouts = list(read_rollouts(path))
    assert [rollout.success for rollout in rollouts] == [True] * 4
    for rollout in rollouts:
        task = get_task(CLINIC, rollout.task.key)
        assert rollout.task.phrasing == task.wording_of(rollout.task.variation, "paraphrase")
        assert replay(rollout, hospital).verdict == rollout.verdict
    assert not list(run(CLINIC, "gold", phrasing="paraphrase", resume=path, **settings))
    assert len(list(run(CLINIC, "gold", phrasing=0, resume=path, **settings))) == 4


def test_a_changed_copy_of_a_pack_uses_the_same_wordings() -> None:
    """Packs of mirrored variations are such copies."""
    original = get_task(CLINIC, "01")
    mirrored = copy(original)
    mirrored.pack = "FHIRAgent/AppointmentMirrored-v0"
    assert all(mirrored.wording_of(k, "paraphrase") == original.wording_of(k, "paraphrase") for k in range(990, 1010))


def test_a_task_without_paraphrases_refuses_the_phrasing(hospital: World) -> None:
    with pytest.raises(ArgumentError, match=r"task 01 has phrasings 0 to \d, 'brief', but not 'paraphrase'"):
        next(get_experiment("experiment-3-v2").test.episodes(["FHIRAgent/MedAgentBench-v0"]))


@pytest.mark.parametrize(
    "content",
    ["[", '["01"]\ntrain = ["{given}"]', '["01"]\ntrain = [1]\ntest = ["a"]', '["01"]\ntrain = []\ntest = []', None],
)
def test_an_unusable_file_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "paraphrases.toml"
    if content is not None:
        path.write_text(content, "utf-8")
    with pytest.raises(TaskError, match=r"^the paraphrases in .*paraphrases\.toml cannot be read: ") as caught:
        read_paraphrases(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("env_id", [CLINIC, GENETICS])
def test_the_file_of_a_pack_has_its_tasks(env_id: str) -> None:
    path = get_task(env_id, task_keys(env_id)[0]).paraphrase_file
    assert path is not None and sorted(read_paraphrases(path)) == sorted(task_keys(env_id))
