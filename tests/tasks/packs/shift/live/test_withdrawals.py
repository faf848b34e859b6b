"""Records of a withdrawn request must stay untouched."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from fhir_gym.actions import Finish, Put
from fhir_gym.fhir import World
from fhir_gym.soundness.policy_runner import Policy, PolicyRun, PolicyRunner, script
from fhir_gym.tasks.packs.shift.live.plan import LiveParams
from fhir_gym.types import Resource
from tests.tasks.packs.shift.live.playing import shift_of

VARIATIONS = range(40)
WANTED = 2


def withdrawn(runner: PolicyRunner, gold: PolicyRun, kind: str, *, by_message: bool) -> Iterator[tuple[str, str]]:
    """Yield the checks of the requests of a kind that were withdrawn, and what the requests are about.

    Args:
        runner: The runner.
        gold: The reference episode.
        kind: Key of the kind.
        by_message: Whether a message withdrew them; if not, their Tasks were cancelled.
    """
    assert isinstance(runner.variation.params, LiveParams)
    checks = [check for check in gold.verdict.checks if check.name.startswith("request ")]
    for request, check in zip(runner.variation.params.requests, checks, strict=True):
        if request.kind == kind and check.expected == "withdrawn" and (check.actual != "withdrawn") is by_message:
            yield check.name, request.request.target


def changed_and_put_back(runner: PolicyRunner, gold: PolicyRun, record: Resource) -> PolicyRun:
    """Play the reference solution, and change and restore a record before the end."""
    url = f"/{record['resourceType']}/{record['id']}"
    also = Put(url, record | {"language": "fr"}), Put(url, record)
    (run,) = runner.run(Policy("changed and changed back", url, script([*gold.actions[:-1], *also, Finish([])])))
    return run


@pytest.mark.slow
@pytest.mark.parametrize("by_message", [False, True])
@pytest.mark.parametrize("kind", ["S1", "S2", "S3"])
def test_who_changes_a_record_of_a_withdrawn_request_and_puts_it_back_fails(
    hospital: World, monkeypatch: pytest.MonkeyPatch, kind: str, by_message: bool
) -> None:
    tried = 0
    for number in VARIATIONS:
        if tried == WANTED:
            break
        with (
            shift_of(("Q1", kind), hospital, monkeypatch, "withdrawals", number, minutes=60, events=3) as episode,
            PolicyRunner(episode.task, episode.variation, hospital) as runner,
        ):
            gold = runner.gold()
            assert gold.verdict.success
            for check, target in withdrawn(runner, gold, kind, by_message=by_message):
                records = [resource for resource in runner.variation.setup if f'"{target}"' in json.dumps(resource)]
                runs = [changed_and_put_back(runner, gold, record) for record in records]
                assert not any(run.verdict.success for run in runs)
                # The others are records that no request is about.
                assert any(failed.name == check for run in runs for failed in run.verdict.failed)
                tried += 1
    assert tried >= WANTED
