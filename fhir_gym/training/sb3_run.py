"""The training loop with Stable-Baselines3; this module needs stable-baselines3 and sb3-contrib."""

from __future__ import annotations

import gc
import json
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv
from typing_extensions import override

from fhir_gym.errors import TrainingError
from fhir_gym.training.curriculum import Curriculum, EpisodeChoice
from fhir_gym.training.evaluation import Evaluation
from fhir_gym.training.menu import Templates
from fhir_gym.training.menu.env import menu_ceiling, random_over_menu
from fhir_gym.training.menu.policy import MenuPolicy, MenuQPolicy, UnmaskedMenuPolicy
from fhir_gym.training.policy_rollouts import Progress
from fhir_gym.training.report import write_report
from fhir_gym.training.run_folder import Checkpoint, RunFolder
from fhir_gym.training.sb3 import Policy, Sb3Config, evaluate, given_templates, gold_templates, mirrored_choices

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


_EVALUATED_AT_ONCE = 16
_ALLOCATIONS = 20_000
"""Number of new objects after which Python's garbage collector runs; its default is 700."""
_REPLAY = 20_000
"""Number of steps in DQN's replay buffer; one step needs 14 kB of memory."""
_ALGORITHMS: dict[str, Any] = {"maskable_ppo": MaskablePPO, "ppo": PPO, "dqn": DQN}
_POLICIES: dict[str, Any] = {"maskable_ppo": MenuPolicy, "ppo": UnmaskedMenuPolicy, "dqn": MenuQPolicy}


def run(config: Sb3Config, out: Path, progress: Progress) -> None:
    """See `fhir_gym.training.sb3.train_sb3`."""
    torch.set_num_threads(config.threads)
    with _rare_collections(), RunFolder(out, recipe="sb3", config=config) as folder:
        templates = _templates(config, folder)
        checkpoint = folder.latest_checkpoint()
        tester = _Tester(config, folder, templates, progress)
        if checkpoint is None:
            tester.test_references()
        vec = _make_vec_env(config, templates, checkpoint)
        try:
            model = _make_model(config, vec, checkpoint)
            if checkpoint is None and config.evaluate_every:
                tester.test(model)
            recorder = _Recorder(config, folder, tester, progress)
            remaining = config.steps - model.num_timesteps
            if remaining > 0:
                model.learn(remaining, callback=recorder, reset_num_timesteps=False)
                recorder.finish()
            if "mirrored" not in folder.record().evaluation_names():
                tester.test_everything(model)
                _save(model, folder)
        finally:
            vec.close()
            tester.close()
    write_report([out])


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Let the garbage collector run rarely: 10 % more steps per second, because episodes make few cycles."""
    before = gc.get_threshold()
    gc.set_threshold(_ALLOCATIONS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _templates(config: Sb3Config, folder: RunFolder) -> Templates:
    """Return the run's templates; the first start of a run learns or copies them."""
    path = folder.path / "templates.json"
    if not path.exists():
        (given_templates(config) if config.templates else gold_templates(config)).save(path)
    return Templates.load(path)


class _Tester:
    """Evaluates policies on the test variations and logs the results."""

    def __init__(self, config: Sb3Config, folder: RunFolder, templates: Templates, progress: Progress) -> None:
        self._config, self._folder, self._progress = config, folder, progress
        self._templates = templates
        self._envs = [config.make_env(templates) for _ in range(_EVALUATED_AT_ONCE)]
        self._names = config.train_tasks()

    def test_references(self) -> None:
        """Log the success of random choices, and the share of episodes whose menu contains a solution."""
        self._progress(0, self._config.steps, "random choices and ceiling on the test variations")
        config, numbers = self._config, self._config.test_variations
        ceiling = menu_ceiling(self._templates, self._names, numbers, distractors=config.distractors)
        self._log(0, ceiling, "ceiling")
        self._log(0, random_over_menu(self._envs[0], numbers, config.seed), "random")

    def test(self, model: Any) -> None:
        """Log the success on the test variations."""
        self._test(model, self._config.test_choices(self._names), "test")

    def test_everything(self, model: Any) -> None:
        """Log the final success on held-out tasks, a held-out phrasing and mirrored variations."""
        config = self._config
        if held_out := config.held_out_tasks():
            self._test(model, config.test_choices(held_out), "held_out")
        if config.held_out_phrasing is not None:
            self._test(model, config.test_choices(self._names, config.held_out_phrasing), "phrasing")
        self._test(model, mirrored_choices(config.test_choices(self._names)), "mirrored")

    def _test(self, model: Any, choices: list[EpisodeChoice], name: str) -> None:
        self._progress(model.num_timesteps, self._config.steps, f"evaluation: {name}")
        self._log(model.num_timesteps, evaluate(_greedy(model), self._envs, choices), name)

    def _log(self, step: int, evaluation: Evaluation, name: str) -> None:
        self._folder.log_evaluation(step, evaluation, name)
        self._progress(step, self._config.steps, f"{name} {evaluation.success:.1%}")

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            env.close()


def _greedy(model: Any) -> Policy:
    """Return the policy that takes the most likely place."""

    def choose(observations: dict[str, Any], masks: Any) -> Any:
        settings = {"action_masks": masks} if isinstance(model, MaskablePPO) else {}
        return model.predict(observations, deterministic=True, **settings)[0]

    return choose


class _Recorder(BaseCallback):
    """Logs training episodes, evaluates and saves checkpoints between updates."""

    def __init__(self, config: Sb3Config, folder: RunFolder, tester: _Tester, progress: Progress) -> None:
        super().__init__()
        self._config, self._folder, self._tester, self._progress = config, folder, tester, progress
        self._episodes: list[dict[str, float]] = []
        self._logged: int | None = None

    @override
    def _on_training_start(self) -> None:
        self._logged = self.num_timesteps

    @override
    def _on_step(self) -> bool:
        for info, done in zip(self.locals["infos"], self.locals["dones"], strict=True):
            if done:
                self._episodes.append(
                    {
                        "success": float(info["success"]),
                        "reward": float(info["episode"]["r"]),
                        "steps": float(info["step"]),
                        "truncated": float(info["TimeLimit.truncated"]),
                        "invalid_actions": float(info["invalid_actions"]),
                    }
                )
        return True

    @override
    def _on_rollout_start(self) -> None:
        # Here the update of the previous rollout is complete.
        if hasattr(self.model, "ent_coef"):
            done = self.num_timesteps / self._config.steps
            self.model.ent_coef = self._config.entropy * (1 - 0.9 * min(1.0, done))
        if self.num_timesteps > (self._logged or 0):
            self._record()

    def finish(self) -> None:
        """Log, evaluate and save the end of the training."""
        self._record(last=True)

    def _record(self, *, last: bool = False) -> None:
        config, before, now = self._config, self._logged or 0, self.num_timesteps
        self._logged = now
        names = self._episodes[0] if self._episodes else ()
        means = {name: float(np.mean([episode[name] for episode in self._episodes])) for name in names}
        losses = {
            name.removeprefix("train/"): float(value)
            for name, value in self.logger.name_to_value.items()
            if name.startswith("train/") and name != "train/n_updates"
        }
        self._folder.log(now, {"episodes": len(self._episodes), **means, **losses})
        self._episodes = []
        self._progress(now, config.steps, f"success {means['success']:.0%}" if means else "")
        if last or (config.evaluate_every and now // config.evaluate_every > before // config.evaluate_every):
            self._tester.test(self.model)
        if last or now // config.checkpoint_every > before // config.checkpoint_every:
            _save(self.model, self._folder)


def _save(model: Any, folder: RunFolder) -> None:
    """Save a checkpoint: the model, the curricula and the random states."""
    curricula = {id(curriculum): curriculum for curriculum in model.get_env().get_attr("curriculum")}
    states = [curriculum.state_dict() for curriculum in curricula.values()]
    folder.save_checkpoint(model.num_timesteps, lambda path: save_checkpoint(path, model, states))


def _make_vec_env(config: Sb3Config, templates: Templates, checkpoint: Checkpoint | None) -> VecEnv:
    """Return the training environments. Those of one process share a curriculum."""
    curricula = [config.make_curriculum(number) for number in range(config.environments if config.processes else 1)]
    if checkpoint is not None:
        for curriculum, state in zip(curricula, load_curricula(checkpoint.path), strict=True):
            curriculum.load_state_dict(state)
    makers = [
        partial(_make_env, config, templates, curricula[number % len(curricula)])
        for number in range(config.environments)
    ]
    return SubprocVecEnv(makers) if config.processes else DummyVecEnv(makers)


def _make_env(config: Sb3Config, templates: Templates, curriculum: Curriculum) -> Monitor:
    return Monitor(config.make_env(templates, curriculum))


def _make_model(config: Sb3Config, vec: VecEnv, checkpoint: Checkpoint | None) -> Any:
    settings: dict[str, Any] = {
        "learning_rate": LinearSchedule(config.learning_rate, config.learning_rate / 10, 1.0),
        "batch_size": config.batch_size,
        "gamma": config.discount,
        "policy_kwargs": {"width": config.width},
    }
    if config.algorithm == "dqn":
        settings |= {"buffer_size": _REPLAY, "learning_starts": 1_000, "train_freq": 4, "target_update_interval": 500}
    else:
        settings |= {"n_steps": config.rollout_steps, "n_epochs": config.epochs, "ent_coef": config.entropy}
    algorithm, policy = _ALGORITHMS[config.algorithm], _POLICIES[config.algorithm]
    model = algorithm(policy, vec, seed=config.seed, device="cpu", **settings)
    if checkpoint is not None:
        load_checkpoint(checkpoint.path, model)
    model.set_logger(Logger(None, []))
    return model
