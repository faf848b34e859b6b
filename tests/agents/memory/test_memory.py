"""Memories, their files, and retrieval."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fhir_gym.agents.memory import (
    MEMORY_VERSION,
    OPERATIONS,
    HashedEmbedder,
    Memory,
    Provenance,
    Reflection,
    find_operation,
)
from fhir_gym.errors import FhirGymError, MemoryFileError

SOURCE = Provenance(env_id="E/A-v0", task="01", variation=0, phrasing=0, trial=1, success=False)


def micro(text: str, resource_type: str = "Patient", operation: str = "search", support: int = 1) -> Reflection:
    data = {"text": text, "resource_type": resource_type, "operation": operation, "support": support}
    return Reflection.model_validate({"kind": "micro", "source": SOURCE, **data})


def macro(situation: str, text: str = "Plan first.", support: int = 1) -> Reflection:
    return Reflection(kind="macro", text=text, situation=situation, source=SOURCE, support=support)


texts = st.text(min_size=1, max_size=60)
reflections = st.lists(
    st.one_of(
        st.builds(micro, texts, st.sampled_from(["Patient", "Slot"]), st.sampled_from(OPERATIONS), st.integers(1, 9)),
        st.builds(macro, texts, texts, st.integers(1, 9)),
    ),
    max_size=8,
)


@settings(max_examples=12)
@given(reflections)
def test_a_saved_memory_is_read_back_equal(tmp_path_factory: pytest.TempPathFactory, given: list[Reflection]) -> None:
    path = tmp_path_factory.mktemp("memory") / "memory.jsonl"
    memory = Memory(given, models={"agent": "m"}, specification="h", training={"episodes": 3})
    memory.save(path)
    again = Memory.load(path)
    assert (again.header, again.reflections, again.hash) == (memory.header, memory.reflections, memory.hash)
    assert len(path.read_text("utf-8").splitlines()) == 1 + len(given)


@settings(max_examples=25)
@given(reflections, st.sampled_from(["Patient", "Slot", "Task"]), st.sampled_from(OPERATIONS), st.integers(0, 9))
def test_micro_retrieval_is_exact(given: list[Reflection], resource_type: str, operation: str, k: int) -> None:
    found = Memory(given).micro(resource_type, operation, k)
    all_of_pair = [
        reflection
        for reflection in given
        if (reflection.resource_type, reflection.operation) == (resource_type, operation)
    ]
    assert len(found) == min(k, len(all_of_pair))
    assert all(reflection in all_of_pair for reflection in found)
    assert [reflection.support for reflection in found] == sorted(
        (reflection.support for reflection in all_of_pair), reverse=True
    )[:k]


@settings(max_examples=25)
@given(reflections, texts, st.integers(0, 9))
def test_macro_retrieval_orders_by_similarity(given: list[Reflection], task: str, k: int) -> None:
    found = Memory(given).macro(task, k)
    macros = [reflection for reflection in given if reflection.kind == "macro"]
    assert len(found) == min(k, len(macros))
    scores = [score for _, score in found]
    assert scores == sorted(scores, reverse=True)
    assert all(-1.000001 <= score <= 1.000001 for score in scores)
    embed = HashedEmbedder().embed
    rest = [reflection for reflection in macros if reflection not in [other for other, _ in found]]
    query = embed([task])[0]
    for reflection in rest:  # nothing that was left out is more similar
        assert not scores or float(embed([str(reflection.situation)])[0] @ query) <= scores[-1] + 1e-5


def test_the_most_similar_situation_comes_first() -> None:
    memory = Memory([macro("Enter a surgery plan for <name>."), macro("Cancel the next appointment of <name>.")])
    (first, score), (_, other) = memory.macro("Please cancel the next appointment of Mei Lee.")
    assert first.situation == "Cancel the next appointment of <name>."
    assert score > other


def test_support_breaks_ties() -> None:
    memory = Memory([macro("Same task.", "a"), macro("Same task.", "b", support=3)])
    assert [reflection.text for reflection, _ in memory.macro("same task", 2)] == ["b", "a"]


@pytest.mark.parametrize("name", ["search", "Search", "searchResources", " search "])
def test_operations_have_synonyms(name: str) -> None:
    assert Memory([micro("Use family.")]).micro("Patient", name)


def test_an_unknown_operation_finds_nothing() -> None:
    assert find_operation("merge") is None
    assert Memory([micro("Use family.")]).micro("Patient", "merge") == []


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(FhirGymError, match="k must be"):
        Memory().micro("Patient", "search", -1)


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "micro", "text": "a", "resource_type": "Patient"},
        {"kind": "micro", "text": "a", "resource_type": "Patient", "operation": "search", "situation": "s"},
        {"kind": "macro", "text": "a"},
        {"kind": "macro", "text": "a", "situation": "s", "operation": "search"},
        {"kind": "macro", "text": "", "situation": "s"},
    ],
)
def test_a_reflection_has_the_fields_of_its_kind(fields: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        Reflection.model_validate(fields)


def test_vectors_have_length_one_and_do_not_change() -> None:
    vectors = HashedEmbedder(64).embed(["Find the patient", "find THE patient!", "", "\ud800"])
    assert np.allclose(np.linalg.norm(vectors, axis=1), [1, 1, 0, 0])
    assert np.array_equal(vectors[0], vectors[1])
    assert np.flatnonzero(vectors[0]).tolist() == [2, 7, 24, 51, 53]


class TestFiles:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "memory.jsonl"
        Memory([micro("One."), macro("Two.")]).save(path)
        return path

    def change(self, path: Path, **header: object) -> None:
        first, *rest = path.read_text("utf-8").splitlines(keepends=True)
        path.write_text(json.dumps(json.loads(first) | header) + "\n" + "".join(rest), "utf-8")

    def error(self, path: Path) -> str:
        with pytest.raises(MemoryFileError) as caught:
            Memory.load(path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def test_another_version(self, path: Path) -> None:
        self.change(path, version=99)
        assert f"version 99; this fhir_gym reads version {MEMORY_VERSION}" in self.error(path)

    def test_a_corrupt_line(self, path: Path) -> None:
        path.write_text(path.read_text("utf-8").replace('"micro"', '"micro'), "utf-8")
        assert f"{path}:2: the line is not JSON" in self.error(path)

    def test_an_unknown_field(self, path: Path) -> None:
        path.write_text(path.read_text("utf-8").replace('"support"', '"suport"'), "utf-8")
        assert f"{path}:2: suport" in self.error(path)

    def test_a_missing_line(self, path: Path) -> None:
        path.write_text("".join(path.read_text("utf-8").splitlines(keepends=True)[:-1]), "utf-8")
        assert "it has 1 reflections, but its header says 2" in self.error(path)

    @pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"schema_version": 2}', b"\xff\xfe", b"[" * 9999])
    def test_another_file(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        assert str(path) in self.error(path)

    def test_a_missing_file(self, tmp_path: Path) -> None:
        assert "cannot be read: No such file" in self.error(tmp_path / "none.jsonl")

    def test_another_embedder(self, path: Path) -> None:
        with pytest.raises(MemoryFileError, match=r"was made with the embedder hashed \(1024 .* not with hashed \(64 "):
            Memory.load(path, HashedEmbedder(64))
        assert Memory.load(path, HashedEmbedder()).macro("Two.")[0][1] == 1.0

    def test_a_changed_embedder_is_found_when_it_is_needed(self, path: Path) -> None:
        self.change(path, embedder={"name": "hashed", "dimension": 1024, "hash": "older"})
        memory = Memory.load(path)
        assert memory.micro("Patient", "search")  # needs no embedder
        with pytest.raises(MemoryFileError, match="older"):
            memory.macro("Two.")

    @pytest.mark.parametrize("settings", [{"dimension": 10**12}, {"dimension": "9"}, {"size": 3}])
    def test_hostile_settings_of_an_embedder(self, path: Path, settings: dict[str, object]) -> None:
        self.change(path, embedder={"name": "hashed", "dimension": 9, "hash": "h", "settings": settings})
        with pytest.raises(FhirGymError):
            Memory.load(path).macro("Two.")

    def test_a_file_from_elsewhere_does_not_choose_an_endpoint(self, path: Path) -> None:
        settings = {"model": "m", "base_url": "http://attacker.example"}
        self.change(path, embedder={"name": "endpoint", "dimension": 9, "hash": "h", "settings": settings})
        with pytest.raises(MemoryFileError, match="settings"):
            Memory.load(path)

    def test_an_unwritable_folder(self, path: Path) -> None:
        with pytest.raises(MemoryFileError, match="cannot be written"):
            Memory().save(path / "below-a-file.jsonl")
