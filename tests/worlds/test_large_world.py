"""The large world of the benchmarks, tested at a small size."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from fhir.resources.R4B import get_fhir_model_class

from benchmarks.large_world import generate, large_world
from fhir_gym.fhir import World
from fhir_gym.worlds.cache import VARIABLE


def test_exactly_as_many_as_asked_for() -> None:
    resources = list(generate(0, observations=1_003, patients=10))
    counts = Counter(resource["resourceType"] for resource in resources)
    assert counts == {"Patient": 10, "Observation": 1_003}
    for resource in resources:
        get_fhir_model_class(resource["resourceType"]).model_validate(resource)
    shares = Counter(r["subject"]["reference"] for r in resources if r["resourceType"] == "Observation")
    assert set(shares.values()) == {100, 101}
    times = [r["effectiveDateTime"] for r in resources if r["resourceType"] == "Observation"]
    assert min(times) >= "2018-11-13T10:15" and max(times) <= "2023-11-13T10:15"
    assert any(later < earlier for earlier, later in pairwise(times)), "not in the order of time"
    assert resources == list(generate(0, observations=1_003, patients=10))


def test_built_once_into_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    told: list[tuple[int, int]] = []
    path = large_world(200, 4, progress=lambda done, total: told.append((done, total)))
    assert told[0] == (0, 204) and told[-1] == (204, 204)
    with World.open(path) as world:
        assert world.manifest.counts == {"Observation": 200, "Patient": 4}
    before = path.stat().st_mtime_ns
    assert large_world(200, 4) == path
    assert path.stat().st_mtime_ns == before
