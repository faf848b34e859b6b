"""The action, the observation and the state that the OpenEnv server and its clients exchange."""

from __future__ import annotations

from typing import Annotated, Any

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from openenv.core.env_server.types import Action, Observation, State
from pydantic import BeforeValidator, Field
from typing_extensions import override

from fhir_gym.printable import encodable
from fhir_gym.types import Phrasing

ENV_NAME = "fhir_gym"
"""Name of the environment in the paths of OpenEnv's Task API."""


def _without_surrogates(text: object) -> object:
    """Escape lone surrogates: JSON texts may contain them, but no answer to the client could repeat them."""
    return encodable(text) if isinstance(text, str) else text


class FHIRAction(Action):
    """One action of an agent.

    Attributes:
        text: The action, such as ``GET /Patient?_count=1`` or ``FINISH([])``; see `fhir_gym.envs.FHIREnv`.
    """

    text: Annotated[str, BeforeValidator(_without_surrogates)] = Field(
        description="One action, such as 'GET /Patient?_count=1', or FINISH([...]) with the answer"
    )


class FHIRObservation(Observation):
    """What the agent reads next.

    The inherited ``reward`` is None after a reset, then 0 until the last step; ``done`` marks the last step. The
    inherited ``metadata`` has ``env_id``, ``terminated``, ``truncated`` and the fields of `fhir_gym.episode.Step.info`.
    After the last step, ``metadata["verdict"]["explanation"]`` says why the episode was a success or a failure.

    Attributes:
        text: The prompt and the action format, or the server's response.
    """

    text: str = Field(description="The task's prompt and the action format, or the FHIR server's response")


class FHIRState(State):
    """The running episode; empty before the first reset. It contains nothing that helps an agent.

    Attributes:
        env_id: Env id of the pack.
        task: Key of the task.
        variation: Number of the variation.
        phrasing: Index of the prompt's wording, ``brief`` or ``paraphrase``.
    """

    env_id: str | None = None
    task: str | None = None
    variation: int | None = None
    phrasing: Phrasing | None = None


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
