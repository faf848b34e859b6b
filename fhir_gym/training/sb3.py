"""Reinforcement learning with Stable-Baselines3 on menus of actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

import fhir_gym
from fhir_gym.errors import TrainingError, missing_extra, pip_install
from fhir_gym.tasks import find_task, task_set
from fhir_gym.training.changed_variations import mirrored_pack
from fhir_gym.training.config import TaskName, TrainingConfig
from fhir_gym.training.curriculum import Curriculum, CurriculumRule, EpisodeChoice, other_phrasings
from fhir_gym.training.evaluation import Evaluation, Outcome
from fhir_gym.training.menu import MenuEnv, Templates, learn_templates
from fhir_gym.training.policy_rollouts import Progress, no_progress
from fhir_gym.types import Phrasing

Algorithm = Literal["maskable_ppo", "ppo", "dqn"]
Policy = Callable[[dict[str, Any], Any], Any]
"""Chooses places: gets the observations of several environments and their masks, each stacked."""

_PACKS = ("FHIRAgent/Appointment-v0", "FHIRAgent/GeneticTesting-v0")


class Sb3Config(TrainingConfig):
    """Settings of `train_sb3`; a training step is one action in one environment.

    Attributes:
        algorithm: ``"maskable_ppo"``, ``"ppo"`` or ``"dqn"``. The last two choose among all places of the menu, and an
            empty place does nothing.
        steps: Number of training steps.
        environments: Number of environments that run side by side.
        processes: Whether each environment runs in a process of its own.
        templates: Path of a template file, learnt without held-out tasks and phrasings; empty to learn templates from
            reference solutions.
        template_variations: Training variations of each task; templates are learnt from their reference solutions.
        distractors: Number of wrong fillings to add for each template.
        paced: Whether training episodes have fewer distractors while their task seldom succeeds.
        prepared: Number of start states to keep in memory (about 100 kB each).
        curriculum: How training episodes are drawn; see `Curriculum`.
        held_out_phrasing: Index of a phrasing, ``brief`` or ``paraphrase``, that is never trained on and is evaluated
            separately; None to train on all prompts. The evaluation ``test`` keeps the phrasing that each variation has
            drawn, so it has episodes with a held-out index too.
        rollout_steps: Number of steps of each environment between updates (PPO).
        batch_size: Number of steps in a minibatch.
        epochs: Number of passes over the collected steps (PPO).
        learning_rate: Learning rate at the start; it falls linearly to a tenth.
        entropy: Weight of the entropy bonus at the start (PPO); it falls linearly to a tenth.
        discount: Discount factor.
        width: Number of hidden units.
    """

    env_ids: tuple[str, ...] = Field(default=_PACKS, min_length=1)
    reward: Literal["sparse", "dense"] = "dense"
    evaluate_every: int = Field(default=50_000, ge=0)
    checkpoint_every: int = Field(default=20_000, ge=1)
    algorithm: Algorithm = "maskable_ppo"
    steps: int = Field(default=600_000, ge=1)
    environments: int = Field(default=16, ge=1)
    processes: bool = False
    templates: str = ""
    template_variations: str = "0-39"
    distractors: int = Field(default=0, ge=0)
    paced: bool = True
    prepared: int = Field(default=20_000, ge=0)
    curriculum: CurriculumRule = "failure"
    held_out_phrasing: Annotated[int, Field(ge=0)] | Literal["brief", "paraphrase"] | None = None
    rollout_steps: int = Field(default=128, ge=1)
    batch_size: int = Field(default=512, ge=2)
    epochs: int = Field(default=4, ge=1)
    learning_rate: float = Field(default=1e-3, gt=0)
    entropy: float = Field(default=0.05, ge=0)
    discount: float = Field(default=0.98, gt=0, le=1)
    width: int = Field(default=96, ge=1)

    def make_curriculum(self, number: int = 0) -> Curriculum:
        """Return the curriculum of the training episodes; `number` distinguishes those of several processes."""
        names = self.train_tasks()
        phrasings = None if self.held_out_phrasing is None else other_phrasings(names, self.held_out_phrasing)
        seed = self.seed * 1_000 + number
        return Curriculum(names, self.train_variations, phrasings=phrasings, rule=self.curriculum, seed=seed)

    def make_env(self, templates: Templates, curriculum: Curriculum | None = None) -> MenuEnv:
        """Return an environment; without a curriculum, for evaluation."""
        return MenuEnv(
            templates,
            self.train_tasks(),
            curriculum=curriculum,
            reward=self.reward,
            max_steps=self.max_steps,
            distractors=self.distractors,
            paced=self.paced,
            prepared=self.prepared,
            split="test" if curriculum is None else "train",
        )

    def test_choices(self, names: Iterable[TaskName], phrasing: Phrasing | None = None) -> list[EpisodeChoice]:
        """Return the test episodes of tasks; with a phrasing, those of the tasks that have it."""
        return [
            EpisodeChoice(*name, number, phrasing)
            for name in names
            if phrasing is None or find_task(task_set(name.env_id), name.task).has_phrasing(phrasing)
            for number in self.test_variations
        ]


def train_sb3(config: Sb3Config, out: str | Path, *, progress: Progress = no_progress) -> None:
    """Train a policy on menus of actions, and evaluate it on the test variations at intervals.

    A folder with an unfinished run of the same config resumes from its last checkpoint. The folder gets the templates,
    ``metrics.jsonl``, checkpoints and a report. Beside the policy, the report has the success of random choices from
    the same menu (``random``) and the share of test episodes whose menu contains a solution (``ceiling``); at the end
    also held-out tasks (``held_out``), a held-out phrasing (``phrasing``) and mirrored variations (``mirrored``).

    Args:
        config: The settings.
        out: The folder of the run.
        progress: Called with the number of steps done, their total and a text.

    Raises:
        MissingExtraError: Stable-Baselines3 is not installed.
        TrainingError: The folder belongs to another run, or a setting is wrong.
    """
    with missing_extra(f"training with Stable-Baselines3 needs: {pip_install('sb3')}"):
        module = import_module("fhir_gym.training.sb3_run")
    module.run(config, Path(out), progress)


def gold_templates(config: Sb3Config) -> Templates:
    """Learn templates from the reference solutions of training episodes; held-out tasks and phrasings are left out."""
    names = config.train_tasks()
    rollouts = [
        rollout
        for env_id in dict.fromkeys(name.env_id for name in names)
        for rollout in fhir_gym.run(
            env_id,
            "gold",
            tasks=[name.task for name in names if name.env_id == env_id],
            variations=config.template_variations,
            split="train",
        )
        if rollout.task.phrasing != config.held_out_phrasing
    ]
    return learn_templates(rollouts)


def given_templates(config: Sb3Config) -> Templates:
    """Read the config's template file.

    Raises:
        TrainingError: The file is unusable, or its templates were learnt from a held-out task or phrasing.
    """
    templates, held_out = Templates.load(config.templates), config.held_out_tasks()
    for source in templates.sources:
        if (source.env_id, source.task) in held_out or source.phrasing == config.held_out_phrasing:
            raise TrainingError(
                f"{config.templates} was learnt from task {source.task} of {source.env_id} in phrasing "
                f"{source.phrasing}, but the config holds out this task or phrasing; use templates without it"
            )
    return templates


def evaluate(policy: Policy, envs: Sequence[MenuEnv], choices: Sequence[EpisodeChoice]) -> Evaluation:
    """Evaluate a policy on episodes; the environments run side by side.

    Args:
        policy: The policy.
        envs: Environments without a curriculum.
        choices: The episodes.
    """
    waiting = iter(choices)
    outcomes: list[Outcome] = []
    running: list[tuple[MenuEnv, EpisodeChoice, Any]] = []
    free = [*envs]
    while True:
        while free and (choice := next(waiting, None)) is not None:
            env = free.pop()
            options = {"env_id": choice.env_id, "task": choice.task, "variation": choice.variation}
            phrasing = {} if choice.phrasing is None else {"phrasing": choice.phrasing}
            running.append((env, choice, env.reset(options=options | phrasing)[0]))
        if not running:
            return Evaluation.from_outcomes(outcomes)
        stacked = {key: np.stack([seen[key] for *_, seen in running]) for key in running[0][2]}
        places = policy(stacked, np.stack([env.action_masks() for env, *_ in running]))
        still = []
        for (env, choice, _), place in zip(running, places, strict=True):
            seen, reward, terminated, truncated, info = env.step(place)
            if not (terminated or truncated):
                still.append((env, choice, seen))
                continue
            free.append(env)
            metrics = {"steps": float(info["step"]), "reward": float(reward), "truncated": float(truncated)}
            metrics["invalid_actions"] = float(info["invalid_actions"])
            outcomes.append(Outcome(*choice[:3], bool(info["success"]), metrics))
        running = still


def mirrored_choices(choices: Iterable[EpisodeChoice]) -> list[EpisodeChoice]:
    """Return the same episodes with mirrored variations; see `mirrored_pack`."""
    return [choice._replace(env_id=mirrored_pack(choice.env_id)) for choice in choices]
