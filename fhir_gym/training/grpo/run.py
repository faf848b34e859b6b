"""What a run of GRPO counts, logs and evaluates, whatever updates the weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fhir_gym.agents import Transformer
from fhir_gym.agents.chat_messages import ChatProtocol
from fhir_gym.errors import InfraError
from fhir_gym.training.diagnostics import TrainingEpisode, batch_metrics
from fhir_gym.training.evaluation import Evaluation, Outcome
from fhir_gym.training.grpo.config import GrpoConfig
from fhir_gym.training.policy_rollouts import Progress, evaluate, evaluation_names
from fhir_gym.training.run_folder import RunFolder

_STATE = "grpo.json"
"""File of a checkpoint with the counters of the run."""
_FAILED_BATCHES = 3
"""Number of consecutive batches without a graded episode after which training stops."""


class GrpoRun:
    """A run of GRPO in its folder."""

    def __init__(self, config: GrpoConfig, folder: RunFolder, progress: Progress) -> None:
        self._config, self._folder, self._progress = config, folder, progress
        self._curriculum = config.make_curriculum()
        self._episodes: list[TrainingEpisode] = []
        self._failed_batches = 0
        self._tokens = 0
        self._sampled: list[tuple[str, str, int, bool]] = []
        self._protocol: ChatProtocol = "tools" if config.shape == "environment_factory" else config.protocol

    def _store(self, folder: Path, **state: Any) -> None:
        """Write the counters, and further data for JSON, into the folder of a checkpoint."""
        (folder / _STATE).write_text(json.dumps(state | {"tokens": self._tokens, "sampled": self._sampled}), "utf-8")

    def _restore(self, folder: Path) -> dict[str, Any]:
        """Restore the counters; return what else `_store` wrote."""
        state: dict[str, Any] = json.loads((folder / _STATE).read_text("utf-8"))
        self._tokens = state["tokens"]
        self._sampled = [(env_id, task, variation, won) for env_id, task, variation, won in state["sampled"]]
        return state

    def _count(self, episodes: Sequence[TrainingEpisode]) -> bool:
        """Count the episodes of a batch; return whether at least one has a reward.

        Raises:
            InfraError: Several batches in a row had no graded episode.
        """
        for episode in episodes:
            if episode.graded:
                self._curriculum.record(episode.task, bool(episode.success))
                self._sampled.append((*episode.task, episode.variation, bool(episode.success)))
        if any(episode.graded for episode in episodes):
            self._failed_batches = 0
            return True
        self._failed_batches += 1
        if self._failed_batches >= _FAILED_BATCHES:
            error = next((episode.error for episode in episodes if episode.error), "")
            raise InfraError(f"no episode of the last {_FAILED_BATCHES} batches has a reward: {error}")
        return False

    def _log(self, step: int, groups: Sequence[Sequence[TrainingEpisode]], update: Mapping[str, float]) -> None:
        """Log the metrics of a step's episodes and of its update."""
        metrics = batch_metrics(groups)
        self._tokens += sum(episode.tokens_written or 0 for group in groups for episode in group)
        self._folder.log(step, {**metrics, **update, "tokens": self._tokens})
        shown = f"reward {metrics['reward']:.3f}, success {metrics['success']:.2f}" if "reward" in metrics else "failed"
        self._progress(step, self._config.steps, shown)

    def _is_evaluated(self, step: int) -> bool:
        """Whether the model is evaluated after a step: at intervals and at the end."""
        every = self._config.evaluate_every
        return step >= self._config.steps or bool(every and step % every == 0)

    def _evaluate(self, step: int, model: Transformer) -> None:
        config = self._config
        for name in evaluation_names(config, step, config.steps):
            evaluate(
                config,
                self._folder,
                model,
                step,
                name=name,
                protocol=self._protocol,
                progress=lambda text: self._progress(step, config.steps, text),
            )

    def _log_sampled(self, step: int) -> None:
        """Log the training episodes since the last evaluation; the report shows their pass@k and reliability."""
        if self._sampled:
            sampled = Evaluation.from_outcomes(Outcome(*outcome) for outcome in self._sampled)
            self._folder.log_evaluation(step, sampled, "train")
        self._sampled.clear()
