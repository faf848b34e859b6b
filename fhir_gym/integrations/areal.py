"""An agent for AReaL's rollout workflow. Needs the extra ``areal``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fhir_gym.errors import missing_extra, pip_install

with missing_extra(f"the integration with AReaL needs: {pip_install('areal')}"):
    from areal.infra import workflow_context
    from areal.utils import stats_tracker

from fhir_gym.tasks import DEFAULT_SPLIT
from fhir_gym.trainer_api import aplay, rollout_metrics

__all__ = ["FHIRWorkflow"]


class FHIRWorkflow:
    """Plays the episode that a row of `fhir_gym.rows` names, against AReaL's proxy of the model.

    AReaL rejects a trajectory whose `run` raises, so a failed server is no reward of 0.

    Args:
        settings: Settings of `fhir_gym.aplay`. A rollout for training admits only training variations, one for
            evaluation all.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings

    async def run(self, data: Mapping[str, Any], **proxy: Any) -> float:
        """Return the reward of one episode, and record its metrics.

        Args:
            data: The row.
            proxy: What AReaL provides: ``base_url`` and ``api_key`` of its proxy, otherwise in ``OPENAI_BASE_URL`` and
                ``OPENAI_API_KEY``.

        Raises:
            InfraError: The FHIR server or the endpoint failed.
        """
        split = {} if workflow_context.get().is_eval else {"split": DEFAULT_SPLIT}
        address = {name: proxy.get(name) for name in ("base_url", "api_key")}
        played = await aplay(data, **{"model": "default", **split, **address, **self._settings})
        assert played.reward is not None  # a rollout of `aplay` has a reward
        stats_tracker.get(workflow_context.stat_scope()).scalar(**rollout_metrics(played))
        return played.reward
