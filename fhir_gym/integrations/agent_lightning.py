"""An agent for Agent Lightning. Needs the extra ``agent-lightning``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from fhir_gym.errors import FhirGymError, MissingExtraError

try:
    import agentlightning as agl
except ImportError as error:
    raise MissingExtraError("the integration needs: pip install 'fhir-gym[agent-lightning]'") from error

from fhir_gym.tasks import DEFAULT_SPLIT
from fhir_gym.trainer_api import aplay

__all__ = ["FHIRAgent"]


class FHIRAgent(agl.LitAgent[Mapping[str, Any]]):
    """Plays the episode that a row of `fhir_gym.rows` names, against the ``LLM`` among the resources.

    An exception, such as a failure of the FHIR server, makes the attempt ``failed`` and emits no reward.

    Args:
        settings: Settings of `fhir_gym.aplay`. Training admits only training variations, validation all.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self._settings = settings

    @override
    async def training_rollout_async(
        self, task: Mapping[str, Any], resources: agl.NamedResources, rollout: agl.Rollout
    ) -> float:
        return await self._play(task, resources, rollout, {"split": DEFAULT_SPLIT})

    @override
    async def validation_rollout_async(
        self, task: Mapping[str, Any], resources: agl.NamedResources, rollout: agl.Rollout
    ) -> float:
        return await self._play(task, resources, rollout, {})

    async def _play(
        self, row: Mapping[str, Any], resources: agl.NamedResources, rollout: agl.Rollout, split: Mapping[str, str]
    ) -> float:
        llm = next((value for value in resources.values() if isinstance(value, agl.LLM)), None)
        if llm is None:
            raise FhirGymError(f"the resources need an LLM, not only {', '.join(resources) or 'nothing'}")
        assert isinstance(rollout, agl.AttemptedRollout)  # every runner of Agent Lightning passes one
        url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        chosen = {**llm.sampling_parameters, **split, **self._settings}
        played = await aplay(row, model=llm.model, base_url=url, api_key=llm.api_key, **chosen)
        assert played.reward is not None  # a rollout of `aplay` has a reward
        return played.reward
