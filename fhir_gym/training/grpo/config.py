"""The settings of GRPO."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import override

from fhir_gym.agents.chat_messages import ChatProtocol
from fhir_gym.training.curriculum import Curriculum, CurriculumRule, other_phrasings
from fhir_gym.training.tuner import ModelConfig


class GrpoConfig(ModelConfig):
    """Settings of GRPO.

    A step is one update of the weights, on `batch_size` new episodes. `max_tokens` is the agent's context window, in
    training and in evaluations: an observation is shortened to half of what is left, and an episode that does not fit
    is truncated and graded. With ``environment_factory``, it limits the episode in training only.

    Attributes:
        shape: How TRL runs the episodes. ``rollout_func``: as `LocalAgent` does, by text or tools.
            ``environment_factory``: TRL runs the tool calls itself; needs a chat template that TRL can parse.
            ``groups``: without TRL; our own update computes common tokens of a group once, skips groups without
            variance and draws others, for small models on CPUs.
        protocol: ``text`` or ``tools``, for ``rollout_func`` and ``groups``.
        steps: Number of steps.
        group_size: Number of episodes of a group, which are compared with each other.
        batch_size: Number of episodes in a step, a multiple of `group_size`.
        micro_batch: Number of episodes in one forward and backward pass; a divisor of `batch_size`. ``groups`` computes
            a group in one pass, a large one in parts.
        refills: How often ``groups`` plays others in place of the groups whose members all earned the same.
        temperature: Sampling temperature in training.
        beta: Weight of the KL divergence from the start model; 0 for none. In ``groups`` it needs `lora_rank`, and
            groups that fail as a whole are then drawn to the start model too.
        curriculum: How tasks are drawn; see `Curriculum`.
        held_out_phrasing: As in all recipes; without `phrasing`, training draws from all other wordings.
        evaluate_start: Whether to evaluate the model before training, as a reference.
        trl: For TRL's shapes, further arguments of `trl.GRPOConfig`, such as ``loss_type``.
    """

    draws_phrasings: ClassVar[bool] = True

    shape: Literal["rollout_func", "environment_factory", "groups"] = "rollout_func"
    protocol: ChatProtocol = "text"
    steps: int = Field(default=100, ge=1)
    group_size: int = Field(default=8, ge=2)
    batch_size: int = Field(default=16, ge=2)
    micro_batch: int = Field(default=4, ge=1)
    refills: int = Field(default=1, ge=0)
    learning_rate: float = Field(default=5e-6, gt=0)
    warmup: int = Field(default=0, ge=0)
    temperature: float = Field(default=1.0, gt=0)
    beta: float = Field(default=0.0, ge=0)
    curriculum: CurriculumRule = "success"
    evaluate_start: bool = True
    checkpoint_every: int = Field(default=20, ge=1)
    trl: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        """Refuse sizes that do not divide each other, and arguments of TRL that the recipe sets."""
        if self.batch_size % self.group_size:
            raise ValueError(f"batch_size {self.batch_size} must be a multiple of group_size {self.group_size}")
        if self.batch_size % self.micro_batch:
            raise ValueError(f"batch_size {self.batch_size} must be a multiple of micro_batch {self.micro_batch}")
        if self.shape == "groups" and self.trl:
            raise ValueError("shape 'groups' has no trl")
        if self.shape == "groups" and self.beta and not self.lora_rank:
            raise ValueError("beta needs lora_rank with shape 'groups': the start model is the model without adapters")
        taken = sorted(self.trl.keys() & trl_arguments(self, Path(), cpu=True).keys())
        if taken:
            raise ValueError(f"trl must not contain {taken[0]!r}: the recipe sets it")
        return self

    @property
    @override
    def context_tokens(self) -> int | None:
        return None if self.shape == "environment_factory" else self.max_tokens

    def make_curriculum(self) -> Curriculum:
        """Return the curriculum that draws the training episodes."""
        tasks, held_out = self.train_tasks(), self.held_out_phrasing
        return Curriculum(
            tasks,
            self.train_variations,
            phrasings=None if held_out is None or self.phrasing is not None else other_phrasings(tasks, held_out),
            held_out=self.held_out_tasks(),
            rule=self.curriculum,
            seed=self.seed,
        )


def trl_arguments(config: GrpoConfig, output: Path, *, cpu: bool) -> dict[str, Any]:
    """Return the arguments of `trl.GRPOConfig` that the recipe sets."""
    return {
        "output_dir": str(output),
        "max_steps": config.steps,
        "num_generations": config.group_size,
        "per_device_train_batch_size": config.micro_batch,
        "gradient_accumulation_steps": config.batch_size // config.micro_batch,
        "steps_per_generation": config.batch_size // config.micro_batch,
        "num_iterations": 1,  # the recipe counts the episodes of each step
        "max_completion_length": config.max_tokens,
        "max_tool_calling_iterations": config.max_steps or 30,
        "temperature": config.temperature,
        "beta": config.beta,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": "cosine",
        "warmup_steps": config.warmup,
        "seed": config.seed,
        "shuffle_dataset": False,
        "bf16": config.dtype == "bfloat16",
        "use_cpu": cpu,
        "save_strategy": "steps",
        "save_steps": config.checkpoint_every,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
    }
