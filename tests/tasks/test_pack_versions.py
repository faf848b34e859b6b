"""A pack's version changes with its tasks, prompts and checks, and only with these."""

from __future__ import annotations

import pytest

from fhir_gym import Episode
from fhir_gym.rollouts.record import TaskRecord
from fhir_gym.tasks import get_pack, pack_ids
from scripts.record_pack_versions import content_hash, recorded


def test_every_pack_is_on_record() -> None:
    assert recorded().keys() == {*pack_ids()}


@pytest.mark.slow
@pytest.mark.parametrize("env_id", pack_ids())
def test_the_content_of_a_version_never_changes(env_id: str) -> None:
    """If this fails after a wanted change, raise `version` of the pack and run scripts/record_pack_versions.py."""
    assert recorded()[env_id] == {"version": get_pack(env_id).version, "hash": content_hash(env_id)}


def test_records_name_the_version() -> None:
    with Episode("FHIRAgent/Appointment-v0", task="01", variation=0) as episode:
        record = TaskRecord.of(episode.variation, episode.task)
    assert record.pack_version == get_pack("FHIRAgent/Appointment-v0").version
