"""Checkpoints of Stable-Baselines3 without pickles, because a run folder may come from somebody else."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3 import DQN

from fhir_gym.errors import TrainingError

MODEL_FILE = "model.zip"
_STATE_FILE, _REPLAY_FILE = "sb3.json", "replay.npz"
_COUNTERS = ("num_timesteps", "_n_updates", "_n_calls", "_episode_num", "exploration_rate")
_REPLAY_ARRAYS = ("actions", "rewards", "dones", "timeouts")


def save_checkpoint(path: Path, model: Any, curricula: Sequence[dict[str, Any]]) -> None:
    """Save a model, the states of its curricula and the random states into a folder."""
    model.save(path / MODEL_FILE)
    if isinstance(model, DQN):
        _save_replay(path / _REPLAY_FILE, model.replay_buffer)
    kind, keys, *position = np.random.get_state()
    state = {
        "counters": {name: getattr(model, name) for name in _COUNTERS if hasattr(model, name)},
        "curricula": curricula,
        "numpy": [kind, np.asarray(keys).tolist(), *position],
        "torch": torch.get_rng_state().tolist(),
    }
    (path / _STATE_FILE).write_text(json.dumps(state), "utf-8")


def load_curricula(path: Path) -> list[dict[str, Any]]:
    """Return the states of the curricula in a checkpoint."""
    return list(_state(path)["curricula"])


def load_checkpoint(path: Path, model: Any) -> None:
    """Continue from a checkpoint with a new model of the same configuration.

    Of Stable-Baselines3's file, only the tensors are read: the rest is pickled, and could run any code.

    Raises:
        TrainingError: The checkpoint is unusable.
    """
    state = _state(path)
    try:
        model.set_parameters(path / MODEL_FILE, device="cpu")
        for name, value in state["counters"].items():
            if name not in _COUNTERS:
                raise ValueError(f"unknown counter {name}")
            setattr(model, name, value)
        if isinstance(model, DQN):
            _load_replay(path / _REPLAY_FILE, model.replay_buffer)
        kind, keys, *position = state["numpy"]
        np.random.set_state((kind, np.array(keys, dtype=np.uint32), *position))
        torch.set_rng_state(torch.tensor(state["torch"], dtype=torch.uint8))
    except (KeyError, TypeError, ValueError, RuntimeError, OSError) as error:
        raise TrainingError(f"the checkpoint {path} is unusable: {error}") from error


def _state(path: Path) -> dict[str, Any]:
    try:
        state = json.loads((path / _STATE_FILE).read_text("utf-8"))
        if not isinstance(state, dict) or not state.keys() >= {"counters", "curricula", "numpy", "torch"}:
            raise ValueError("parts are missing")
    except (OSError, ValueError) as error:
        raise TrainingError(f"the checkpoint {path} is unusable: {error}") from error
    return state


def _arrays(buffer: Any) -> Iterator[tuple[str, Any]]:
    yield from ((name, getattr(buffer, name)) for name in _REPLAY_ARRAYS)
    for kind in ("observations", "next_observations"):
        yield from ((f"{kind}.{name}", array) for name, array in getattr(buffer, kind).items())


def _save_replay(path: Path, buffer: Any) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for name, array in (*_arrays(buffer), ("position", np.array([buffer.pos, buffer.full]))):
            with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def _load_replay(path: Path, buffer: Any) -> None:
    with np.load(path, allow_pickle=False) as file:
        for name, array in _arrays(buffer):
            array[:] = file[name]
        position, full = file["position"]
    buffer.pos, buffer.full = int(position), bool(full)
