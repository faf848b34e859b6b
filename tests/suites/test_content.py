"""The hash of a suite covers everything that changes results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fhir_gym.errors import ArgumentError, TaskError, UnknownNameError
from fhir_gym.fhir import World
from fhir_gym.suites import Suite, SuiteEpisode, open_suite
from fhir_gym.tasks import get_task
from fhir_gym.tasks.core import registry
from fhir_gym.tasks.core.variation import variation_cache
from tests.suites.conftest import APPOINTMENT


def hash_of(suite: Suite) -> str:
    variation_cache.clear()
    with open_suite(suite) as content:
        return content.hash


def test_equal_content_gives_equal_hashes(tiny: Suite, hospital: World) -> None:
    assert (
        hash_of(tiny) == hash_of(replace(tiny, name="other-v7", about="else")) == hash_of(replace(tiny, world=hospital))
    )


def test_the_list_changes_the_hash(tiny: Suite) -> None:
    first = tiny.episodes[0]
    other = [
        replace(tiny, episodes=tiny.episodes[:-1]),
        replace(tiny, episodes=tiny.episodes[::-1]),
        replace(tiny, episodes=(first._replace(variation=1005), *tiny.episodes[1:])),
        replace(tiny, episodes=(first._replace(phrasing="brief"), *tiny.episodes[1:])),
        replace(tiny, grading="evidence"),
    ]
    assert len({hash_of(tiny), *map(hash_of, other)}) == 6


@pytest.mark.parametrize("part", ["prompts", "sample", "setup"])
def test_the_content_of_a_task_changes_the_hash(tiny: Suite, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, kind = hash_of(tiny), type(get_task(APPOINTMENT, "02a"))
    original: Any = getattr(kind, part)
    changed: dict[str, Any] = {
        "prompts": tuple(f"{text} Please." for text in kind.prompts),
        "sample": lambda self, rng, world: original(self, rng, world) if rng.random() else None,
        "setup": lambda self, p, world: original(self, p, world)[:-1],
    }
    monkeypatch.setattr(kind, part, changed[part])
    assert hash_of(tiny) != before


def test_the_world_and_the_step_limit_change_the_hash(
    tiny: Suite, hospital: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = hash_of(tiny)
    pack = registry._registered[APPOINTMENT]
    monkeypatch.setattr(pack, "pack", replace(pack.pack, max_steps=14))
    assert hash_of(tiny) != before
    monkeypatch.undo()
    manifest = hospital.manifest.model_copy(update={"content_hash": "0" * 64})
    monkeypatch.setattr(hospital, "manifest", manifest)
    assert hash_of(replace(tiny, world=hospital)) != before


def test_plans_have_the_suites_episodes_and_phrasings(tiny: Suite) -> None:
    with open_suite(tiny) as content:
        plans = content.plans(repeats=2, seed=3)
        assert [len(plan.episodes) for plan in plans] == [8, 4]
        found = {
            SuiteEpisode(
                plan.config.env_id, episode.task, episode.variation, plan.phrasings[episode.task, episode.variation]
            )
            for plan in plans
            for episode in plan.episodes
        }
        assert found == set(tiny.episodes)
        assert {plan.seed for plan in plans} == {3} and all(plan.named for plan in plans)
        assert content.worlds[plans[0].config.env_id] is content.worlds[plans[1].config.env_id], "opened once"


def test_what_a_suite_cannot_have(tiny: Suite) -> None:
    with pytest.raises(UnknownNameError, match="unknown task '99'"), open_suite(with_first(tiny, task="99")):
        pass
    with pytest.raises(UnknownNameError, match="environment"), open_suite(with_first(tiny, env_id="No/Pack-v0")):
        pass
    with (
        pytest.raises(ArgumentError, match=r"phrasings 0 to \d+.*, but not 99"),
        open_suite(with_first(tiny, phrasing=99)),
    ):
        pass
    lab = with_first(tiny, env_id="FHIRAgent/ActionReasoning-v0")
    with pytest.raises(TaskError), open_suite(replace(lab, world="empty")):
        pass
    with pytest.raises(UnknownNameError, match="nowhere"), open_suite(replace(tiny, world="nowhere")):
        pass


def with_first(suite: Suite, **changes: Any) -> Suite:
    return replace(suite, episodes=(suite.episodes[0]._replace(**changes), *suite.episodes[1:]))
