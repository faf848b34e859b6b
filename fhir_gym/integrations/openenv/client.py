"""The typed client of the OpenEnv server."""

from __future__ import annotations

from typing import Any

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from typing_extensions import override

from fhir_gym.integrations.openenv.models import FHIRAction, FHIRObservation, FHIRState


class FHIREnvClient(EnvClient[FHIRAction, FHIRObservation, FHIRState]):
    """A client with one session on an OpenEnv server of fhir_gym; see OpenEnv's `EnvClient` for its methods.

    A failure of the server, such as a FHIR server that is down, raises ``RuntimeError``: the episode has no reward.
    """

    @override
    def _step_payload(self, action: FHIRAction) -> dict[str, Any]:
        payload: dict[str, Any] = action.model_dump()
        return payload

    @override
    def _parse_result(self, payload: dict[str, Any]) -> StepResult[FHIRObservation]:
        reward, done = payload["reward"], payload["done"]
        observation = FHIRObservation.model_validate({**payload["observation"], "reward": reward, "done": done})
        return StepResult(observation, reward=reward, done=done, metadata=observation.metadata)

    @override
    def _parse_state(self, payload: dict[str, Any]) -> FHIRState:
        state: FHIRState = FHIRState.model_validate(payload)
        return state
