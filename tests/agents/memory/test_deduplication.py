"""Reflections that say the same are merged."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fhir_gym.agents.memory import Deduplicator, Reflection

WORDS = st.lists(st.sampled_from(["search", "the", "patient", "slot", "by", "id", "first"]), min_size=1, max_size=5)


def tip(text: str, resource_type: str = "Patient", support: int = 1) -> Reflection:
    return Reflection(kind="micro", text=text, resource_type=resource_type, operation="search", support=support)


TIPS = st.lists(st.builds(tip, WORDS.map(" ".join), st.sampled_from(["Patient", "Slot"])), max_size=8)


@settings(max_examples=20)
@given(TIPS)
def test_nothing_is_lost_and_the_order_is_kept(given: list[Reflection]) -> None:
    kept = Deduplicator().merge(given)
    assert sum(reflection.support for reflection in kept) == len(given)
    plain = [reflection.model_copy(update={"support": 1}) for reflection in kept]
    positions = [given.index(reflection) for reflection in plain]
    assert positions == sorted(positions)


@settings(max_examples=20)
@given(TIPS)
def test_merging_twice_changes_nothing(given: list[Reflection]) -> None:
    once = Deduplicator().merge(given)
    assert Deduplicator().merge(once) == once


@settings(max_examples=20)
@given(TIPS)
def test_only_equal_texts_are_merged_without_a_threshold(given: list[Reflection]) -> None:
    kept = Deduplicator(threshold=2.0).merge(given)
    assert len(kept) == len({(reflection.resource_type, reflection.text) for reflection in given})


def test_case_and_punctuation_do_not_matter() -> None:
    kept = Deduplicator(threshold=2.0).merge([tip("Search by family, given!"), tip("search by FAMILY given")])
    assert [(reflection.text, reflection.support) for reflection in kept] == [("Search by family, given!", 2)]


def test_nearly_equal_texts_are_merged() -> None:
    long = "Search the slots of the schedule by status and start, and sort them by start before you choose one of them"
    assert len(Deduplicator().merge([tip(long), tip(f"{long} now")])) == 1
    assert len(Deduplicator().merge([tip(long), tip("Read the patient first.")])) == 2


def test_other_pairs_and_other_tasks_stay_apart() -> None:
    assert len(Deduplicator().merge([tip("Same text."), tip("Same text.", "Slot")])) == 2
    macros = [Reflection(kind="macro", text="Same text.", situation=task) for task in ("Task one.", "Task two.")]
    assert len(Deduplicator().merge(macros)) == 2
