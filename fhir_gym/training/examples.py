"""Token sequences to train a language model on, made from rollouts."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fhir_gym.agents.chat_messages import Message
from fhir_gym.agents.context_window import shorten
from fhir_gym.agents.transformer import Transformer
from fhir_gym.episode_config import EpisodeConfig
from fhir_gym.errors import TrainingError
from fhir_gym.rollouts import Rollout, Selection, export


@dataclass(frozen=True, slots=True)
class Example:
    """One episode as tokens.

    Attributes:
        ids: Token ids of the whole conversation.
        learnt: Positions of the tokens that the agent wrote, which the loss covers.
    """

    ids: tuple[int, ...]
    learnt: tuple[int, ...]


def make_example(
    rollout: Rollout,
    model: Transformer,
    *,
    system: str | None = None,
    action_format: bool = True,
    observation_chars: int | None = None,
) -> Example:
    """Return the example of a rollout by any agent that acts by text.

    The tokens are those that a `LocalAgent` with this model would read and write in the same conversation.

    Args:
        rollout: The rollout.
        model: The model, for its tokenizer and chat template.
        system: System prompt that replaces the rollout's; an empty text for no system prompt.
        action_format: Whether the prompt explains how to write actions.
        observation_chars: Maximum number of characters of an observation; None for no limit. Observations that the
            rollout's agent read shortened stay as they are.

    Raises:
        TrainingError: The chat template changes earlier messages, or the rollout has lookups, dropped contents or no
            actions.
    """
    if rollout.lookups:
        raise TrainingError(
            f"the rollout of task {rollout.task.key}, variation {rollout.task.variation} has lookups, which are not "
            "actions as text: use rollouts of agents without tool sources"
        )
    if rollout.drops:
        raise TrainingError(
            f"in the rollout of task {rollout.task.key}, variation {rollout.task.variation}, the agent dropped "
            "contents from its context window, so its model never read the whole conversation: use rollouts of agents "
            "without context_policy='drop'"
        )
    every = Selection(success_only=False, valid_only=False)
    if observation_chars is not None:
        rollout = _shortened(rollout, observation_chars)
    (row,) = export([rollout], "messages", selection=every)
    messages: list[Message] = row["messages"]
    if system is not None:
        said = [message for message in messages if message["role"] != "system"]
        messages = ([{"role": "system", "content": system}] if system else []) + said
    if not action_format:
        explained = f"\n\n{rollout.action_format}"
        messages = [{**message, "content": str(message["content"]).removesuffix(explained)} for message in messages]
    ids: list[int] = []
    learnt: list[int] = []
    for text, is_answer in _segments(messages, model):
        added = model.encode(text)
        if is_answer:
            learnt += range(len(ids), len(ids) + len(added))
        ids += added
    if not learnt:
        raise TrainingError(
            f"the rollout of task {rollout.task.key}, variation {rollout.task.variation} has no actions"
        )
    return Example(tuple(ids), tuple(learnt))


def _shortened(rollout: Rollout, limit: int) -> Rollout:
    turns = [
        turn if turn.shown is not None else turn.model_copy(update={"shown": shorten(turn.observation, limit)})
        for turn in rollout.turns
    ]
    return rollout.model_copy(update={"turns": tuple(turns)})


def _segments(messages: Sequence[Message], model: Transformer) -> Iterator[tuple[str, bool]]:
    """Yield the rendered conversation in parts: what the model reads, and what it writes with the end of its turn."""
    whole = model.render(messages, tools=False, answer=False)
    ends = [text for id in model.ends if (text := model.decode([id]))]
    place = 0
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = model.render(messages[:number], tools=False)
        answer = str(message["content"])
        if not whole.startswith(prompt) or not whole.startswith(answer, len(prompt)):
            raise TrainingError("the chat template changes earlier messages; training needs one that only appends")
        close = len(prompt) + len(answer)
        end = next((text for text in ends if whole.startswith(text, close)), None)
        if end is None:
            raise TrainingError("the chat template does not end the model's turns with an end token of the model")
        yield whole[place : len(prompt)], False
        yield answer + end, True
        place = close + len(end)


def batches(examples: Sequence[Example], size: int, seed: int) -> Iterator[list[Example]]:
    """Yield endless batches: each epoch has all examples in a new random order."""
    order = random.Random(seed)
    waiting: list[Example] = []
    while examples:
        epoch = list(examples)
        order.shuffle(epoch)
        waiting += epoch
        while len(waiting) >= size:
            yield waiting[:size]
            waiting = waiting[size:]


def require_trainable(rollouts: Iterable[Rollout]) -> Iterator[Rollout]:
    """Pass rollouts on.

    Raises:
        ArgumentError: A rollout has a test variation.
        TrainingError: A rollout has a task of a task file.
    """
    for rollout in rollouts:
        EpisodeConfig(rollout.env_id, split="train").require_variations([rollout.task.variation])
        if rollout.task.split != "train":
            raise TrainingError(f"task {rollout.task.key} comes from a task file, whose tasks are only for tests")
        yield rollout
