"""Each step of an upload refers only to earlier steps."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from fhir_gym.fhir import World
from fhir_gym.types import Resource
from fhir_gym.worlds.batches import batches
from fhir_gym.worlds.bundles import rewrite_references
from fhir_gym.worlds.uploading import UploadPlan
from tests.worlds.linked_world import linked_resources, write_world


def _targets(resource: Any) -> set[str]:
    found: list[str] = []

    def seen(target: str) -> str:
        found.append(target)
        return target

    rewrite_references(resource, seen)
    return set(found)


def _check(world: World) -> list[str]:
    """Check the order of a plan, and return the resources that it sends twice."""
    plan = UploadPlan(world)
    known: set[str] = set()
    complete: list[str] = []
    twice: list[str] = []
    for step in plan.steps:
        assert step.start == len(complete)
        for group in batches(world, step.rids):
            for _, record in group:
                sent = plan.without_cycles(record) if step.partial else record
                resource = json.loads(sent.body)
                assert f"{resource['resourceType']}/{resource['id']}" == record.url
                allowed = known | set(twice) if record.url in twice else known
                assert _targets(resource) <= allowed
        urls = [record.url for group in batches(world, step.rids) for _, record in group]
        if step.partial:
            twice += urls
        else:
            complete += urls
        known.update(urls)
    assert sorted(complete) == sorted(f"{r['resourceType']}/{r['id']}" for r in map(json.loads, world.resources()))
    return twice


def test_cycles_are_sent_twice_and_nothing_else(tmp_path: Path) -> None:
    with write_world(tmp_path / "w", linked_resources()) as world:
        assert sorted(_check(world)) == [f"Patient/{id}" for id in ("a", "b", "between", "c", "d", "self")]
        plan = UploadPlan(world)
        partial = next(step for step in plan.steps if step.partial)
        records = {record.id: record for group in batches(world, partial.rids) for _, record in group}
        left = {id: json.loads(plan.without_cycles(record).body)["link"][0] for id, record in records.items()}
    assert left["a"] == {"other": {"display": "Patient/b"}, "type": "seealso"}
    assert left["between"] == {"other": {"display": "A"}, "type": "seealso"}


@pytest.mark.parametrize("seed", range(5))
def test_random_references(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    resources: list[Resource] = []
    for at in range(60):
        links = [{"other": {"reference": f"Patient/p{rng.randrange(60)}"}} for _ in range(rng.choice((0, 0, 1, 2)))]
        resources.append({"resourceType": "Patient", "id": f"p{at}", **({"link": links} if links else {})})
    with write_world(tmp_path / "w", resources) as world:
        _check(world)


def test_a_text_that_looks_like_a_reference_is_none(tmp_path: Path) -> None:
    text = '"reference":"Patient/b"'
    people: list[Resource] = [
        {"resourceType": "Patient", "id": "a", "name": [{"text": text}]},
        {"resourceType": "Patient", "id": "b", "link": [{"other": {"reference": "Patient/a/_history/1"}}]},
    ]
    with write_world(tmp_path / "w", people) as world:
        assert [step.rids.tolist() for step in UploadPlan(world).steps] == [[1], [2]]


def test_an_empty_world(empty_world: World) -> None:
    assert UploadPlan(empty_world).steps == []
