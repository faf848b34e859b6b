"""Roll out a language model on the tasks of a training config."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from fhir_gym import worlds
from fhir_gym.agents import LocalAgent
from fhir_gym.agents.chat_messages import ChatProtocol
from fhir_gym.agents.transformer import Transformer
from fhir_gym.errors import InfraError
from fhir_gym.rollouts import EpisodeSpec, Rollout, RunPlan, plan, read_rollouts, run_plan, write_rollouts
from fhir_gym.tasks import get_pack
from fhir_gym.training.changed_variations import blind_pack, mirrored_pack
from fhir_gym.training.config import TaskName
from fhir_gym.training.evaluation import Evaluation
from fhir_gym.training.run_folder import RunFolder
from fhir_gym.training.tuner import ModelConfig
from fhir_gym.types import Phrasing

Progress = Callable[[int, int, str], None]
"""Show the progress of a recipe: steps done, all steps, a short text."""

_CHANGED_PACKS = {"mirrored": mirrored_pack, "blind": blind_pack}
"""The evaluations on changed variations, and how their packs are made."""
_SHOWN = {
    "test": "test variations",
    "held_out": "held-out tasks",
    "phrasing": "held-out wording",
    "mirrored": "mirrored variations",
    "blind": "prompts of other variations",
}


def no_progress(done: int, total: int, text: str) -> None:
    """Show nothing."""


def make_agent(config: ModelConfig, model: Transformer, temperature: float = 0.0, **settings: Any) -> LocalAgent:
    """Return the agent that acts with a model in training.

    Args:
        config: The settings.
        model: The model.
        temperature: Sampling temperature; 0 for greedy decoding.
        settings: Further settings of `LocalAgent`.
    """
    return LocalAgent(
        model,
        system=config.system,
        action_format=config.action_format,
        temperature=temperature,
        max_new_tokens=config.max_new_tokens,
        batch_size=config.concurrency,
        context_tokens=config.context_tokens,
        observation_chars=config.observation_chars,
        **settings,
    )


def roll_out(
    config: ModelConfig,
    agent: LocalAgent,
    episodes: Iterable[tuple[TaskName, EpisodeSpec]],
    path: Path,
    *,
    seed: int,
    phrasing: Phrasing | None = None,
    on_rollout: Callable[[int], None] = lambda done: None,
) -> list[Rollout]:
    """Perform episodes and return their rollouts in the order of the episodes.

    Finished rollouts are in a file, so that a killed run does not repeat them. Episodes without a verdict are returned
    too.

    Args:
        config: The settings.
        agent: The agent.
        episodes: The episodes with their tasks.
        path: The rollout file.
        seed: Seed of the run.
        phrasing: The wording of the prompts; None for that of the config.
        on_rollout: Called after each episode with the number of episodes done.
    """
    by_pack: dict[str, list[EpisodeSpec]] = {}
    for name, spec in episodes:
        by_pack.setdefault(name.env_id, []).append(spec)
    rollouts: list[Rollout] = []
    for env_id, specs in by_pack.items():
        with worlds.load(get_pack(env_id).world) as world:
            settings = config.settings(phrasing) | {"world": world}
            episodes_plan = plan(env_id, tasks=specs[0].task, variations=0, **settings)
            chosen = RunPlan(episodes_plan.config, tuple(specs), seed)
            running = run_plan(chosen, agent, concurrency=config.concurrency, resume=path)
            for number, _ in enumerate(_written(running, path), start=1):
                on_rollout(len(rollouts) + number)
            rollouts += _in_order(path, env_id, specs)
    return rollouts


def _written(running: Iterable[Rollout], path: Path) -> Iterable[Rollout]:
    for rollout in running:
        write_rollouts(path, [rollout])
        yield rollout


def _in_order(path: Path, env_id: str, specs: Sequence[EpisodeSpec]) -> list[Rollout]:
    by_episode: dict[EpisodeSpec, Rollout] = {}
    for rollout in read_rollouts(path):
        if rollout.env_id == env_id:
            spec = EpisodeSpec(rollout.task.key, rollout.task.variation, rollout.repeat)
            if spec not in by_episode or not by_episode[spec].graded:
                by_episode[spec] = rollout
    return [by_episode[spec] for spec in specs if spec in by_episode]


def evaluation_names(config: ModelConfig, step: int, last: int) -> list[str]:
    """Return the names of the evaluations after a step.

    What is held out is evaluated at the start and at the end, changed variations at the end.
    """
    names = ["test"]
    if step in (0, last):
        names += ["held_out"] if config.held_out_tasks() else []
        names += ["phrasing"] if config.held_out_phrasing is not None else []
    if step == last and config.audit:
        names += list(_CHANGED_PACKS)
    return names


def require_graded(rollouts: Sequence[Rollout]) -> None:
    """Raise the first failure if no rollout has a verdict.

    Raises:
        InfraError: No rollout has a verdict.
    """
    if not any(rollout.graded for rollout in rollouts):
        error = next((rollout.error for rollout in rollouts if rollout.error), "")
        raise InfraError(f"no episode has a verdict: {error}")


def evaluate(
    config: ModelConfig,
    folder: RunFolder,
    model: Transformer,
    step: int,
    *,
    name: str = "test",
    protocol: ChatProtocol = "text",
    progress: Callable[[str], None] = lambda text: None,
) -> Evaluation:
    """Evaluate a model by greedy decoding on the test variations and log the result.

    Args:
        config: The settings.
        folder: The run folder.
        model: The model.
        step: Number of training steps done.
        name: ``"test"`` for the training tasks, ``"held_out"`` for the held-out tasks, ``"phrasing"`` for the training
            tasks in the held-out wording, ``"mirrored"`` and ``"blind"`` for their changed variations.
        protocol: ``text`` or ``tools``.
        progress: Called with a short text after each episode.

    Raises:
        InfraError: No episode has a verdict.
    """
    tasks = config.held_out_tasks() if name == "held_out" else config.train_tasks()
    if name in _CHANGED_PACKS:
        tasks = [task._replace(env_id=_CHANGED_PACKS[name](task.env_id)) for task in tasks]
    episodes = [(task, EpisodeSpec(task.task, k, 0)) for task in tasks for k in config.test_variations]
    # The fingerprint tells apart the same step of two trainings: before a kill and after it.
    path = folder.path / "rollouts" / f"{name}-{step:06d}-{model.fingerprint()}.jsonl"
    rollouts = roll_out(
        config,
        make_agent(config, model, protocol=protocol),
        episodes,
        path,
        seed=0,
        phrasing=config.held_out_phrasing if name == "phrasing" else None,
        on_rollout=lambda done: progress(f"{_SHOWN[name]}: {done} of {len(episodes)}"),
    )
    require_graded(rollouts)
    evaluation = Evaluation.from_rollouts(rollouts)
    folder.log_evaluation(step, evaluation, name)
    return evaluation
