"""An agent executor for OpenRLHF. Needs the extra ``openrlhf``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from fhir_gym.errors import missing_extra, pip_install

with missing_extra(f"the integration with OpenRLHF needs: {pip_install('openrlhf')}"):
    import torch
    from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

from fhir_gym.tasks import DEFAULT_SPLIT
from fhir_gym.text_episode import TextEpisode, episode_metrics

__all__ = ["FHIRAgentInstance", "make_executor"]
_REPLY = "(the reply of the model)"


class FHIRAgentInstance(AgentInstanceBase):
    """One episode. A failure of the FHIR server raises, so the rollout of the batch fails and is no reward of 0.

    Args:
        tokenizer: The tokenizer of the model, for its chat template.
        settings: Fields of `EpisodeConfig`; the default split is ``train``.
    """

    def __init__(self, tokenizer: Any, settings: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._settings = {"split": DEFAULT_SPLIT, **settings}

    @override
    async def reset(self, states: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        """Start the episode that the label names: a row of `fhir_gym.rows`, also as JSON text."""
        label = states["label"]
        row = json.loads(label) if isinstance(label, str) else label
        self._episode = await asyncio.to_thread(TextEpisode, row, self._settings)
        return {"observation": self._render(await asyncio.to_thread(self._episode.start))}

    @override
    async def step(self, state_dict: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        try:
            step = await asyncio.to_thread(self._episode.step, state_dict["action_text"])
        except BaseException:
            self._episode.close()
            raise
        if step.done:
            self._episode.close()
        reward = torch.tensor([step.reward])
        return {
            "rewards": reward,
            "scores": reward,
            "environment_feedback": "" if step.done else self._feedback(step.observation),
            "done": step.done,
            "sampling_params": state_dict.get("sampling_params"),
            "extra_logs": {name: torch.tensor([value]) for name, value in episode_metrics(step).items()}
            if step.done
            else {},
        }

    def _feedback(self, observation: str) -> str:
        """Return the text of the chat template between two replies. The model has written the end of its turn."""
        turns = [{"role": role, "content": text} for role, text in (("assistant", _REPLY), ("user", observation))]
        text = self._render([{"role": "user", "content": ""}, *turns]).partition(_REPLY)[2]
        return text.removeprefix(self._tokenizer.eos_token)

    def _render(self, messages: Any) -> str:
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def make_executor(tokenizer: Any, **settings: Any) -> type[MultiTurnAgentExecutor]:
    """Return the class ``AgentExecutor`` of a file for ``--train.agent_func_path``; see `FHIRAgentInstance`."""

    class Instance(FHIRAgentInstance):
        def __init__(self) -> None:
            super().__init__(tokenizer, settings)

    class AgentExecutor(MultiTurnAgentExecutor):
        def __init__(self) -> None:
            super().__init__(Instance)

    return AgentExecutor
