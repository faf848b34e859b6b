"""One episode by text, for frameworks that call an environment step by step."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Self
from weakref import finalize

from fhir_gym.agents import Completion, Message, Reply
from fhir_gym.agents.completions import parse_completion
from fhir_gym.agents.prompts import system_prompt
from fhir_gym.episode import Episode, Step, Truncation
from fhir_gym.trainer_api import read_row, shared_world

__all__ = ["TextEpisode", "episode_metrics"]


class TextEpisode:
    """The episode that a row of `fhir_gym.rows` names, played by the texts of a model.

    A reply is one action, read as `ChatAgent` reads it. Concurrent episodes share their world and start states.

    Args:
        row: The row; its other columns are not used.
        settings: Fields of `EpisodeConfig`. A trainer's adapter sets the split to ``train`` unless its user names one.

    Raises:
        ArgumentError: The variation does not belong to the split.
        InfraError: The FHIR server failed; `start`, `step` and `truncate` raise it too.
        FhirGymError: The row or a setting is invalid.
    """

    def __init__(self, row: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        config, spec = read_row(row, settings)
        with ExitStack() as stack:
            config = replace(config, world=stack.enter_context(shared_world(config)))
            self._episode = stack.enter_context(Episode(config, task=spec.task, variation=spec.variation))
            self._close = finalize(self, stack.pop_all().close)  # some frameworks only drop an unfinished episode

    def start(self) -> list[Message]:
        """Start the episode; return the messages before the model's first reply."""
        return [
            {"role": "system", "content": system_prompt("text")},
            {"role": "user", "content": self._episode.start()},
        ]

    def step(self, text: str) -> Step:
        """Perform the action of a reply."""
        reply = parse_completion(Completion(content=text), "text")[0]
        assert isinstance(reply, Reply)  # without tool calls, there are no look-ups
        return self._episode.step(reply.action)

    def truncate(self, stop_reason: Truncation = "unfinished") -> Step:
        """End and grade the episode because the model does not go on."""
        return self._episode.truncate(stop_reason)

    def close(self) -> None:
        """Close the episode. Further calls do nothing."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def episode_metrics(step: Step) -> dict[str, float]:
    """Return the metrics of the last step of an episode."""
    info = step.info
    metrics = {"success": info["success"], "steps": info["step"], "invalid_actions": info["invalid_actions"]}
    return {name: float(value) for name, value in {**metrics, "truncated": step.truncated}.items()}
