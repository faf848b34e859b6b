"""An environment for SkyRL's generator. Needs the extra ``skyrl``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from fhir_gym.errors import missing_extra, pip_install

with missing_extra(f"the integration with SkyRL needs: {pip_install('skyrl')}"):
    import skyrl_gym
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput, ConversationType

from fhir_gym.text_episode import TextEpisode, episode_metrics

__all__ = ["FHIRTextEnv", "register"]


class FHIRTextEnv(BaseTextEnv):
    """One episode. A failure of the FHIR server raises, so the step of the trainer fails and is no reward of 0.

    Args:
        env_config: Settings of SkyRL's own environments; not used.
        extras: The columns of the dataset: a row of `fhir_gym.rows`, and SkyRL's ``max_turns``, which is the step limit
            if `settings` have none.
        settings: Fields of `EpisodeConfig`; the default split is ``train``.
    """

    def __init__(self, env_config: Any = None, extras: Mapping[str, Any] | None = None, **settings: Any) -> None:
        super().__init__()
        row = dict(extras or {})
        limit = {"max_steps": row["max_turns"]} if "max_turns" in row else {}
        self._episode = TextEpisode(row, {"split": "train", **limit, **settings})
        self._metrics: dict[str, float] = {}

    @override
    def init(self, prompt: ConversationType) -> tuple[ConversationType, dict[str, Any]]:
        """Return the start of the conversation, in place of the prompt of the dataset."""
        return self._episode.start(), {}

    @override
    def step(self, action: str) -> BaseTextEnvStepOutput:
        step = self._episode.step(action)
        self._metrics = episode_metrics(step) if step.done else {}
        messages = [] if step.done else [{"role": "user", "content": step.observation}]
        return BaseTextEnvStepOutput(
            observations=messages, reward=step.reward, done=step.done, metadata=dict(self._metrics)
        )

    @override
    def get_metrics(self) -> dict[str, Any]:
        return self._metrics

    @override
    def close(self) -> None:
        self._episode.close()


def register(name: str = "fhir", **settings: Any) -> None:
    """Register the environment under a name, the value of the column ``env_class``.

    Args:
        name: The name. Register another name with ``split="test"`` for the dataset of evaluations.
        settings: See `FHIRTextEnv`.
    """
    skyrl_gym.register(name, entry_point=FHIRTextEnv, kwargs=settings)
