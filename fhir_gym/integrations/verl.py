"""An agent loop for verl. Needs the extra ``verl``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from typing_extensions import override

from fhir_gym.errors import missing_extra, pip_install

with missing_extra(f"the integration with verl needs: {pip_install('verl')}"):
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

from fhir_gym.episode import Step
from fhir_gym.tasks import DEFAULT_SPLIT
from fhir_gym.text_episode import TextEpisode, episode_metrics

__all__ = ["FHIRAgentLoop"]


class FHIRAgentLoop(AgentLoopBase):
    """Plays the episode that the columns of a dataset name, token by token, and returns the reward.

    A failure of the FHIR server raises, so the step of the trainer fails and is no reward of 0.

    Args:
        arguments: What verl passes to `AgentLoopBase`.
        settings: Fields of `EpisodeConfig`; the default split is ``train``.
    """

    def __init__(self, *arguments: Any, settings: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._settings = {"split": DEFAULT_SPLIT, **(settings or {})}

    @override
    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        with await asyncio.to_thread(TextEpisode, row, self._settings) as episode:
            self._messages = await asyncio.to_thread(episode.start)
            self._ids = await self.ct_build_initial_tokens(self._messages)
            self._mask: list[int] = []
            self._logprobs: list[float] | None = None
            request_id, turns = uuid4().hex, 0
            step: Step | None = None
            while step is None or not step.done:
                step, turns = await self._turn(episode, request_id, sampling_params), turns + 2
        start, limit = len(self._ids) - len(self._mask), self.rollout_config.response_length
        return AgentLoopOutput(
            prompt_ids=self._ids[:start],
            response_ids=self._ids[start:][:limit],
            response_mask=self._mask[:limit],
            response_logprobs=self._logprobs[:limit] if self._logprobs else None,
            reward_score=step.reward,
            num_turns=turns,
            metrics={},
            extra_fields={"turn_scores": [], "tool_rewards": [], "reward_extra_info": episode_metrics(step)},
        )

    async def _turn(self, episode: TextEpisode, request_id: str, sampling_params: dict[str, Any]) -> Step:
        """Let the model reply, perform the action, and append both if there is room for the next reply."""
        output = await self.server_manager.generate(
            request_id=request_id, prompt_ids=self._ids, sampling_params=sampling_params
        )
        logprobs = output.log_probs or None
        before: list[float] | None = [] if self._logprobs is None and logprobs else self._logprobs
        merged, self._mask, self._logprobs = await self.ct_merge_assistant_token(
            self._ids, output.token_ids, self._mask, before, assistant_logprobs=logprobs
        )
        self._ids = merged.token_ids
        text = self.tokenizer.decode(output.token_ids, skip_special_tokens=True)
        step = await asyncio.to_thread(episode.step, text)
        if step.done:
            return step
        answered = [*self._messages, {"role": "assistant", "content": text}]
        self._messages = [*answered, {"role": "user", "content": step.observation}]
        merged, mask, logprobs = await self.ct_merge_context_msg(
            answered, self._messages, self._ids, self._mask, self._logprobs
        )
        if len(mask) >= self.rollout_config.response_length:
            return await asyncio.to_thread(episode.truncate, "context_limit")
        self._ids, self._mask, self._logprobs = merged.token_ids, mask, logprobs
        return step
