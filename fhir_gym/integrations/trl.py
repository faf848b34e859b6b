"""The tools, the rollout function, the dataset and the log of episodes for GRPO with TRL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

from fhir_gym.trainer_api import rows, to_dataset
from fhir_gym.training.curriculum import EpisodeChoice
from fhir_gym.training.diagnostics import TrainingEpisode, batch_metrics
from fhir_gym.training.grpo import FHIRToolEnv, OpenConfigs, PolicyRollouts, RowShape, make_row
from fhir_gym.types import Phrasing

__all__ = ["FHIRToolEnv", "OpenConfigs", "PolicyRollouts", "log_episodes", "training_rows"]


def training_rows(
    env_id: str,
    tasks: str | Sequence[str] | None = None,
    *,
    variations: int | str | Iterable[int],
    phrasings: Iterable[Phrasing] | None = None,
    shape: RowShape = "environment_factory",
    system: str | None = None,
) -> Any:
    """Return a `datasets.Dataset` with one row for each task, variation and phrasing.

    TRL plays the episode of a row once for each member of a group. `EpisodeRows` of `fhir_gym.training.grpo` is the
    alternative that draws the episodes from a curriculum during the training.

    Args:
        env_id: The pack.
        tasks: Keys of the tasks; None for all.
        variations: Numbers of training variations, also as text such as ``"0-199"``.
        phrasings: Indexes of the prompt wordings, ``brief`` or ``paraphrase``; None for the wording that each variation
            has drawn.
        shape: ``environment_factory`` or ``rollout_func``.
        system: System prompt of ``environment_factory``, instead of the default.

    Raises:
        UnknownNameError: The pack, a task or the shape does not exist.
        FhirGymError: A number or the text of `variations` is invalid.
        TaskError: A task does not have one of the phrasings, or a variation is not a training variation.
        MissingExtraError: The package datasets is missing.
    """
    chosen = rows(env_id, tasks, variations=variations, phrasings=(None,) if phrasings is None else phrasings)
    choices = (EpisodeChoice(row["env_id"], row["task"], row["variation"], row["phrasing"]) for row in chosen)
    return to_dataset([make_row(choice, shape, system) for choice in choices])


def log_episodes(
    completions: Sequence[object],
    *,
    log_extra: Callable[[str, list[Any]], None],
    log_metric: Callable[[str, float], None],
    environments: Sequence[FHIRToolEnv] | None = None,
    episode: Sequence[TrainingEpisode] | None = None,
    **_: Any,
) -> list[None]:
    """Log the episodes of a batch; pass this function to `GRPOTrainer` as a reward function, which rewards nothing.

    TRL's table of completions gets the stop reason of each episode and the verdict's explanation, or the error of an
    infrastructure failure. The metrics are those of `batch_metrics`, with the prefix ``episode/``.

    Args:
        completions: The completions of the batch.
        log_extra: TRL's function that adds a column to the table.
        log_metric: TRL's function that logs a metric.
        environments: The environments of ``environment_factory``.
        episode: The episodes that `PolicyRollouts` has played.
    """
    if environments is not None:
        for env in environments:
            env.get_reward()  # ends an episode that the model has not finished; TRL asks for rewards in any order
        episode = [env.result for env in environments if env.result is not None]
    played = list(episode or ())
    log_extra("stop_reason", [training_episode.stop_reason for training_episode in played])
    log_extra("explanation", [training_episode.error or training_episode.explanation for training_episode in played])
    groups = [list(group) for _, group in groupby(played, key=lambda result: (result.task, result.variation))]
    for name, value in batch_metrics(groups).items():
        log_metric(f"episode/{name}", value)
    return [None] * len(completions)
