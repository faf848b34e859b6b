"""An agent for AReaL's rollout workflow. It needs the extra ``llm``, and AReaL only in the trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fhir_gym.tasks import DEFAULT_SPLIT
from fhir_gym.trainer_api import aplay

__all__ = ["FHIRWorkflow"]


class FHIRWorkflow:
    """Plays the episode that a row of `fhir_gym.rows` names, against AReaL's proxy of the model.

    AReaL rejects a trajectory whose `run` raises, so a failed server is no reward of 0.

    Args:
        settings: Settings of `fhir_gym.aplay`; the default split is ``train``. Pass ``split="test"`` to the workflow of
            the evaluation.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = {"model": "default", "split": DEFAULT_SPLIT, **settings}

    async def run(self, data: Mapping[str, Any], **proxy: Any) -> float:
        """Return the reward of one episode.

        Args:
            data: The row.
            proxy: What AReaL provides: ``base_url`` and ``api_key`` of its proxy, otherwise in ``OPENAI_BASE_URL`` and
                ``OPENAI_API_KEY``.

        Raises:
            InfraError: The FHIR server or the endpoint failed.
        """
        address = {name: proxy.get(name) for name in ("base_url", "api_key")}
        played = await aplay(data, **address, **self._settings)
        assert played.reward is not None  # a rollout of `aplay` has a reward
        return played.reward
