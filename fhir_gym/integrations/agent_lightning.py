"""An agent for Agent Lightning 1.0, which runs it in a process of its own. Needs the extra ``llm``.

Rollouts name the class as ``agent_class`` and pass the row as ``env_map={"FHIR_GYM_ROW": "input"}``.
"""

from __future__ import annotations

import json
import os

import httpx

from fhir_gym.rollouts import Rollout
from fhir_gym.tasks import DEFAULT_SPLIT
from fhir_gym.trainer_api import aplay, rollout_metrics

__all__ = ["FHIRAgent"]


class FHIRAgent:
    """Plays the episode that a row of `fhir_gym.rows` names, and reports its reward.

    The row is in the environment variable ``FHIR_GYM_ROW``; settings of `fhir_gym.aplay` may be in
    ``FHIR_GYM_SETTINGS``, both as JSON. A rollout for training admits only training variations, one for validation all.
    After a failure of the FHIR server or the endpoint, the process fails without a reward, and so does the rollout.
    """

    async def run(self) -> None:
        """Play the episode."""
        url = os.environ["AGL_OPENAI_BASE_URL"]
        split = {} if "/mode/val/" in url else {"split": DEFAULT_SPLIT}
        proxy = {"model": "policy", "base_url": url, "api_key": os.environ.get("AGL_KEY") or "none"}
        settings = json.loads(os.environ.get("FHIR_GYM_SETTINGS", "{}"))
        played = await aplay(json.loads(os.environ["FHIR_GYM_ROW"]), **{**proxy, **split, **settings})
        await _report(played, proxy["api_key"])


async def _report(played: Rollout, key: str) -> None:
    assert played.verdict is not None  # a rollout of `aplay` has a verdict
    reward = {"value": played.reward, "source": "agent", "message": played.verdict.explanation}
    metrics = rollout_metrics(played) | {"stop_reason": played.stop_reason}
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}) as client:
        for name, data in (("fhir_gym", metrics), ("reward", reward)):
            event = {"event_type": name, "data": data}
            (await client.post(os.environ["AGL_EVENT_URL"], json=event)).raise_for_status()
