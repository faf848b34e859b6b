"""A rollout function for ART (OpenPipe). Needs the extra ``art``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fhir_gym.errors import missing_extra, pip_install

with missing_extra(f"the integration with ART needs: {pip_install('art')}"):
    import art
    from openai.types.chat.chat_completion import Choice

from fhir_gym.actions import GRAMMAR
from fhir_gym.agents import ModelReply
from fhir_gym.rollouts import Rollout
from fhir_gym.tasks import DEFAULT_SPLIT
from fhir_gym.trainer_api import aplay, rollout_metrics

__all__ = ["rollout"]


async def rollout(model: art.Model[Any], row: Mapping[str, Any], **settings: Any) -> art.Trajectory:
    """Play one episode; ART leaves an exception out of the group (set `max_exceptions` of its gather functions).

    Args:
        model: The model of ART.
        row: A row of `fhir_gym.rows`.
        settings: Settings of `fhir_gym.aplay`; the default split is ``train``.

    Raises:
        InfraError: The FHIR server or the endpoint failed.
    """
    chosen = {"split": DEFAULT_SPLIT, "extra_body": {"logprobs": True}, **settings}
    played = await aplay(
        row,
        model=model.get_inference_name(),
        base_url=model.inference_base_url,
        api_key=model.inference_api_key,
        **chosen,
    )
    opening, offered = played.opening, chosen.get("protocol") == "tools"
    assert played.reward is not None and opening is not None  # a rollout of `aplay` has both
    return art.Trajectory(
        messages_and_choices=[*_messages_and_choices(played)],
        tools=[*GRAMMAR.tools(), *opening.tools] if offered else [*opening.tools] or None,
        reward=played.reward,
        metrics=rollout_metrics(played),
        metadata={key: row[key] for key in ("env_id", "task", "variation")} | {"stop_reason": played.stop_reason},
    )


def _messages_and_choices(played: Rollout) -> Iterator[Any]:
    """Yield the conversation, in which the model's own messages are choices with log-probabilities."""
    replies = iter(played.replies)
    for message in played.messages:
        yield _choice(next(replies)) if message["role"] == "assistant" else message


def _choice(reply: ModelReply) -> Choice:
    return Choice.model_validate(
        {
            "index": 0,
            "message": reply.message,
            "finish_reason": reply.finish_reason,
            "logprobs": reply.extra.get("logprobs"),
        }
    )
