"""Requests to the evaluator and the reflector."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import fhir_gym
from fhir_gym.reflexion import MemoryTrainingConfig
from fhir_gym.reflexion.reviewing import Reviewer
from fhir_gym.reflexion.training_folder import ROLES, ReplyJournal
from fhir_gym.rollouts import BudgetTracker
from fhir_gym.testing import ChatServer
from tests.reflexion.conftest import Study


@pytest.mark.parametrize("delay", [0.0, 0.05])
def test_an_equal_request_is_sent_once(
    study: Study, config: MemoryTrainingConfig, tmp_path: Path, delay: float
) -> None:
    """Whether the first request is over or still running."""
    (rollout,) = fhir_gym.run("FHIRAgent/Appointment-v0", "idle", tasks="03", variations=0)
    with ChatServer(study, delay=delay) as server:
        agent = config.agent.model_copy(update={"base_url": server.base_url})
        settings = config.model_copy(update={"agent": agent})
        journal = ReplyJournal(tmp_path / "replies.jsonl")
        budgets = dict.fromkeys(ROLES, BudgetTracker())
        reviewer = Reviewer(settings, journal, budgets)
        reviews = asyncio.run(reviewer.review_all([rollout] * 3))
        again = Reviewer(settings, ReplyJournal(tmp_path / "replies.jsonl"), budgets)
        assert asyncio.run(again.review_all([rollout])) == reviews[:1]
        assert len(server.requests) == 2
    assert reviews[0] == reviews[1] == reviews[2]
    assert reviews[0].critique and reviews[0].lessons and len(reviews[0].lessons.lessons) == 3
    assert len((tmp_path / "replies.jsonl").read_text("utf-8").splitlines()) == 2
