"""Write rollouts as a Minari dataset."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from fhir_gym.errors import RecordError, missing_extra, pip_install
from fhir_gym.files import new_folder
from fhir_gym.printable import encodable
from fhir_gym.rollouts import ExportSummary, Rollout, Selection
from fhir_gym.rollouts.dataset import ONLY_TOOLS, converted, provenance
from fhir_gym.tasks import split_of

_DATASET_ID = re.compile(r"[-\w]+-v\d+", re.ASCII)


def write_minari(
    rollouts: Iterable[Rollout],
    folder: str | PathLike[str],
    *,
    selection: Selection | None = None,
    authors: Iterable[str] = (),
) -> ExportSummary:
    """Write rollouts of one environment as a new Minari dataset in the Arrow format.

    Observations and actions are texts. The infos hold the HTTP status of each observation, with 0 for the first one.
    The options of an episode are those of the environment's `reset`.

    Args:
        rollouts: The rollouts.
        folder: The folder; its name is the id of the dataset, such as ``appointment-gold-v0``.
        selection: Which rollouts to use.
        authors: Names of the people who made the dataset, for Minari's list of datasets.

    Returns:
        The counts of the export; a row is an action.

    Raises:
        MissingExtraError: Minari is not installed.
        RecordError: The folder cannot be written, is not empty or has an invalid name; the rollouts are of several
            environments, or no rollout is selected.
    """
    with missing_extra(f"a Minari dataset needs: {pip_install('minari')}"):
        storage_class: Any = import_module("minari.dataset.minari_storage").MinariStorage
        import_module("minari.dataset._storages.arrow_storage")  # needs more packages than Minari itself
    target, summary, names = Path(folder), ExportSummary(), set(authors)
    if not _DATASET_ID.fullmatch(target.name):
        raise RecordError(f"the folder of a Minari dataset needs a name such as appointment-gold-v0, not {target.name}")
    kept = [rollout for rollout, _ in converted(rollouts, _check, selection or Selection(), summary)]
    if not kept:
        raise RecordError("a Minari dataset needs at least one episode, and no rollout was selected")
    if len(env_ids := sorted({rollout.env_id for rollout in kept})) > 1:
        raise RecordError(f"a Minari dataset has one environment, and the rollouts are of {', '.join(env_ids)}")
    with new_folder(target, RecordError) as part:
        storage = storage_class.new(
            part / "data",
            observation_space=_space([text for rollout in kept for text in _observations(rollout)]),
            action_space=_space([text for rollout in kept for text in _actions(rollout)]),
            env_spec=_env_spec(kept),
            data_format="arrow",
        )
        storage.update_metadata(
            {
                "dataset_id": target.name,
                "minari_version": version("minari"),
                "algorithm_name": ", ".join(sorted({encodable(rollout.agent.name) for rollout in kept})),
                "description": f"Rollouts of {env_ids[0]}: agents act on a FHIR R4 server. Observations and actions "
                "are texts.",
                "requirements": [f"fhir-gym=={version('fhir-gym')}"],
                **({"author": names} if names else {}),
            }
        )
        storage.update_episodes(map(_buffer, kept))
        storage.update_episode_metadata(map(provenance, kept))
    summary.rows = sum(rollout.steps for rollout in kept)
    return summary


def _check(rollout: Rollout) -> bool | str:
    """Return True, or the reason why a rollout cannot be an episode of a Minari dataset."""
    if rollout.lookups:
        return ONLY_TOOLS
    return bool(rollout.turns) or "no action"


def _observations(rollout: Rollout) -> list[str]:
    return [encodable(text) for text in (rollout.first_observation, *(turn.observation for turn in rollout.turns))]


def _actions(rollout: Rollout) -> list[str]:
    return [encodable(turn.action) for turn in rollout.turns]


def _space(texts: Sequence[str]) -> gymnasium.spaces.Text:
    """Return the smallest space that contains the texts; readers need no fhir_gym for this space."""
    return gymnasium.spaces.Text(max(map(len, texts)), min_length=0, charset="".join(sorted(set().union(*texts))))


def _env_spec(rollouts: Sequence[Rollout]) -> Any:
    """Return the specification of the environment, with each rule that is the same in all episodes."""
    spec = gymnasium.registry.get(rollouts[0].env_id)
    if spec is not None:
        spec = copy.deepcopy(spec)
        attributes = {"reward": "reward_rule"} | {name: name for name in ("grading", "max_steps", "observations")}
        for argument, attribute in attributes.items():
            if len(values := {getattr(rollout, attribute) for rollout in rollouts}) == 1:
                spec.kwargs[argument] = values.pop()
        splits = {split_of(rollout.task.variation) for rollout in rollouts}
        spec.kwargs["split"] = splits.pop() if len(splits) == 1 else None
    return spec


def _buffer(rollout: Rollout) -> Any:
    last = np.arange(rollout.steps) == rollout.steps - 1
    return import_module("minari.data_collector.episode_buffer").EpisodeBuffer(
        seed=rollout.seed,
        options={"task": rollout.task.key, "variation": rollout.task.variation, "phrasing": rollout.task.phrasing},
        observations=_observations(rollout),
        actions=_actions(rollout),
        rewards=np.where(last, rollout.reward or 0.0, 0.0).tolist(),
        terminations=(last & (rollout.stop_reason == "finished")).tolist(),
        truncations=(last & (rollout.stop_reason != "finished")).tolist(),
        infos={"status": [0, *(turn.status for turn in rollout.turns)]},
    )
