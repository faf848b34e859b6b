"""Fine-tunes a causal language model on examples, with or without LoRA."""

from __future__ import annotations

import copy
import ctypes
import gc
import math
import shutil
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fhir_gym.agents.transformer import Transformer, find_weights, loading
from fhir_gym.episode_config import EpisodeSettings
from fhir_gym.errors import missing_extra, pip_install
from fhir_gym.observations import Observations
from fhir_gym.training.config import TrainingConfig
from fhir_gym.training.examples import Example
from fhir_gym.training.token_tree import TokenTree
from fhir_gym.types import Phrasing

_INSTALL = pip_install("local,train")


class ModelConfig(TrainingConfig):
    """Settings of recipes that fine-tune a language model.

    Attributes:
        model: Folder or name of the model to start from, or ``package:NAME``; see `LocalAgent`.
        gguf_file: Name of the GGUF file with its weights, if any.
        device: ``cpu``, ``cuda`` …; None for the GPU if there is one, otherwise the CPU.
        dtype: Data type of the computation.
        system: System prompt that replaces the default; an empty text for no system prompt.
        action_format: Whether the prompt explains how to write actions.
        phrasing: Index of the prompt wording, ``brief`` or ``paraphrase``; None for the wording that each variation
            draws.
        held_out_phrasing: A wording that training never uses, in which the test variations are evaluated separately at
            the start and at the end; None for no such evaluation. It needs `phrasing`, except in GRPO.
        audit: Whether the last evaluation also plays mirrored variations (order, ids and times reversed) and blind ones
            (with another variation's prompt); see `fhir_gym.training.changed_variations`.
        observations: ``"http"`` or ``"compact"``; see `fhir_gym.observations`.
        lora_rank: Rank of the LoRA adapters; 0 to train all weights.
        learning_rate: Learning rate after the warm-up.
        warmup: Number of steps over which the learning rate rises; it then falls to zero along a cosine.
        batch_size: Number of examples in a step.
        max_tokens: Examples with more tokens are left out.
        max_new_tokens: Maximum number of tokens of a reply.
        observation_chars: Maximum number of characters of an observation, in training and in evaluations; None for no
            limit.
        concurrency: Number of episodes that run concurrently.
    """

    draws_phrasings: ClassVar[bool] = False
    """Whether the recipe itself draws only other wordings than the held-out one."""

    model: str
    gguf_file: str | None = None
    device: str | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    system: str | None = None
    action_format: bool = True
    phrasing: Annotated[int, Field(ge=0)] | Literal["brief", "paraphrase"] | None = None
    held_out_phrasing: Annotated[int, Field(ge=0)] | Literal["brief", "paraphrase"] | None = None
    audit: bool = False
    observations: Observations = "http"
    lora_rank: int = Field(default=0, ge=0)
    learning_rate: float = Field(default=1e-4, gt=0)
    warmup: int = Field(default=5, ge=0)
    batch_size: int = Field(default=8, ge=1)
    max_tokens: int = Field(default=2048, ge=1)
    max_new_tokens: int = Field(default=256, ge=1)
    observation_chars: int | None = Field(default=None, ge=1)
    concurrency: int = Field(default=8, ge=1)

    @model_validator(mode="after")
    def _check_phrasings(self) -> Self:
        """Refuse a held-out wording that training could use."""
        if self.held_out_phrasing is not None and (
            self.phrasing == self.held_out_phrasing or (self.phrasing is None and not self.draws_phrasings)
        ):
            raise ValueError("held_out_phrasing needs phrasing, the other wording that training uses")
        return self

    @property
    def context_tokens(self) -> int | None:
        """The context window of the agent that plays the episodes; None for that of the model."""
        return None

    def settings(self, phrasing: Phrasing | None = None) -> EpisodeSettings:
        """Return the settings of the episodes, in the wording of the config or in another one."""
        return {
            "reward": self.reward,
            "max_steps": self.max_steps,
            "phrasing": self.phrasing if phrasing is None else phrasing,
            "observations": self.observations,
        }


class Tuner:
    """A model in training: its weights, its optimizer and the number of steps done.

    Args:
        config: The settings.
        model: Folder of the model; None for the model of the config.
        steps: Number of steps of the whole training, for the learning rate.

    Raises:
        MissingExtraError: A package is missing.
        FhirGymError: The model cannot be loaded.
    """

    def __init__(self, config: ModelConfig, *, model: Path | None = None, steps: int) -> None:
        self._config, self.steps = config, steps
        torch = self._torch = training_package("torch")
        torch.set_num_threads(config.threads)
        torch.manual_seed(config.seed)
        # Trained weights need the precision of float32; with LoRA, only the adapters are trained.
        dtype = config.dtype if config.lora_rank else "float32"
        network, self.tokenizer = load_model(config, dtype, model)
        self._network = self._with_adapters(network) if config.lora_rank else network
        self.transformer = Transformer.around(network, self.tokenizer)
        weights = [parameter for parameter in self._network.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.AdamW(weights, lr=config.learning_rate, weight_decay=0.0)
        self.done = 0

    def step(self, batch: Sequence[Example]) -> float:
        """Train on a batch and return its mean loss per learnt token."""
        total = sum(len(example.learnt) for example in batch)
        # one example at a time, so that nothing is computed for padding
        return self._update(self._loss(example) / total for example in batch)[0]

    def policy_step(self, trees: Sequence[TokenTree], temperature: float, beta: float = 0.0) -> dict[str, float]:
        """Do one step of policy gradient on the episodes of several groups.

        The loss is the mean over the written tokens of minus the log-probability times the advantage, plus `beta` times
        Schulman's k3, an estimate of the divergence from the model without adapters. The episodes were sampled from the
        current weights, so no importance weights are needed.

        Args:
            trees: The groups.
            temperature: The temperature at which they were sampled.
            beta: Weight of the divergence; it needs adapters.

        Returns:
            ``loss``, ``grad_norm`` and ``learning_rate``; for adapters also ``kl``, the mean of k3 over the written
            tokens, or without `beta` over the learnt tokens of the first group.
        """
        total = sum(tree.written for tree in trees)
        values: dict[str, float] = {"learning_rate": self._learning_rate()}
        divergences: list[float] = []
        if not beta:
            # All episodes of a part of a group may have the mean reward; then the part teaches nothing.
            trees = [tree for tree in trees if tree.learnt()]
            if self._config.lora_rank:
                self._network.eval()
                with self._torch.no_grad():
                    policy = self._log_probabilities(trees[0], trees[0].learnt(), temperature)
                values["kl"] = float(self._divergence(trees[0], trees[0].learnt(), policy, temperature).mean())
        losses = (self._tree_loss(tree, temperature, beta, divergences) / total for tree in trees)
        values["loss"], values["grad_norm"] = self._update(losses)
        return values | ({"kl": sum(divergences) / total} if beta else {})

    def _update(self, losses: Iterable[Any]) -> tuple[float, float]:
        """Do one step of the optimizer; return the sum of the losses and the norm of the gradient."""
        release_memory()
        torch = self._torch
        torch.manual_seed(self._config.seed + self.done)  # dropout, if the model has any, is the same after a resume
        for group in self._optimizer.param_groups:
            group["lr"] = self._learning_rate()
        self._network.train()
        total = 0.0
        for loss in losses:
            loss.backward()
            total += float(loss.detach())
        norm = float(torch.nn.utils.clip_grad_norm_(self._network.parameters(), 1.0))
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.done += 1
        return total, norm

    def save(self, folder: Path) -> None:
        """Save trained weights, optimizer and step count to a folder."""
        weights = {name: tensor for name, tensor in self._network.state_dict().items() if name in self._trained}
        state = {"weights": weights, "optimizer": self._optimizer.state_dict(), "done": self.done}
        self._torch.save(state, folder / "tuner.pt")

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote."""
        state = self._torch.load(folder / "tuner.pt", map_location=self.transformer.device, weights_only=True)
        self._network.load_state_dict(state["weights"], strict=False)
        self._optimizer.load_state_dict(state["optimizer"])
        self.done = state["done"]

    def trained_model(self, name: str) -> Transformer:
        """Return a copy of the model with its adapters merged, for a `LocalAgent`.

        Args:
            name: Name of the model in records.
        """
        release_memory()
        network = copy.deepcopy(self._network)
        if self._config.lora_rank:
            network = network.merge_and_unload()
        network = network.to(getattr(self._torch, self._config.dtype)).eval()
        return Transformer.around(network, self.tokenizer, name=name, constant=True)

    def export(self, folder: Path) -> None:
        """Write model and tokenizer to a folder that `LocalAgent` can load; an existing folder is replaced."""
        save_model(self.trained_model("exported")._model, self.tokenizer, folder)

    @property
    def _trained(self) -> frozenset[str]:
        return frozenset(
            name for name, named_parameter in self._network.named_parameters() if named_parameter.requires_grad
        )

    def _with_adapters(self, network: Any) -> Any:
        peft = training_package("peft")
        rank = self._config.lora_rank
        lora = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
        return peft.get_peft_model(network, lora)

    def _loss(self, example: Example) -> Any:
        """Return the sum of the losses of the learnt tokens; logits are computed for these tokens only."""
        torch, device = self._torch, self.transformer.device
        ids = torch.tensor([example.ids], device=device)
        learnt = torch.tensor(example.learnt, device=device)
        logits = self._logits(input_ids=ids, logits_to_keep=learnt - 1)
        return torch.nn.functional.cross_entropy(logits, ids[0, learnt], reduction="sum")

    def _tree_loss(self, tree: TokenTree, temperature: float, beta: float, divergences: list[float]) -> Any:
        """Return the loss of a group; with `beta`, append the sum of its divergence from the start model."""
        torch, device = self._torch, self.transformer.device
        nodes = [node for node, writers in enumerate(tree.writers) if writers] if beta else tree.learnt()
        policy = self._log_probabilities(tree, nodes, temperature)
        loss = -(policy * torch.tensor([tree.weights[node] for node in nodes], device=device)).sum()
        if beta:
            writers = torch.tensor([tree.writers[node] for node in nodes], device=device)
            divergence = (self._divergence(tree, nodes, policy, temperature) * writers).sum()
            divergences.append(float(divergence.detach()))
            loss = loss + beta * divergence
        return loss

    def _divergence(self, tree: TokenTree, nodes: Sequence[int], policy: Any, temperature: float) -> Any:
        """Return k3 of each node, from the log-probabilities of the policy and those of the model without adapters."""
        with self._torch.no_grad(), self._network.disable_adapter():
            start = self._log_probabilities(tree, nodes, temperature)
        ratio = (start - policy).clamp(max=10.0)  # a token that the policy hardly ever writes must not dominate
        return ratio.exp() - ratio - 1

    def _log_probabilities(self, tree: TokenTree, nodes: Sequence[int], temperature: float) -> Any:
        """Return the log-probability of each of some nodes of a tree, given its ancestors."""
        torch, device = self._torch, self.transformer.device
        logits = self._logits(
            input_ids=torch.tensor([tree.ids], device=device),
            position_ids=torch.tensor([tree.depths()], device=device),
            attention_mask=torch.from_numpy(tree.visible()).to(device)[None, None],
            logits_to_keep=torch.tensor([tree.parents[node] for node in nodes], device=device),
        )
        tokens = torch.tensor([tree.ids[node] for node in nodes], device=device)
        return torch.log_softmax(logits / temperature, dim=-1).gather(-1, tokens[:, None])[:, 0]

    def _logits(self, **inputs: Any) -> Any:
        torch = self._torch
        mixed = self._config.dtype == "bfloat16"
        kind = torch.device(self.transformer.device).type
        with torch.autocast(kind, dtype=torch.bfloat16) if mixed else nullcontext():
            return self._network(use_cache=False, **inputs).logits[0].float()

    def _learning_rate(self) -> float:
        config = self._config
        if self.done < config.warmup:
            return config.learning_rate * (self.done + 1) / config.warmup
        share = (self.done - config.warmup) / max(1, self.steps - config.warmup)
        return config.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))


def load_model(config: ModelConfig, dtype: str, model: Path | None = None) -> tuple[Any, Any]:
    """Return a model and its tokenizer; the weights of a GGUF file are dequantized, so that they can be trained.

    Args:
        config: The settings.
        dtype: Data type of the weights.
        model: Folder of the model; None for the model of the config.
    """
    torch, transformers = training_package("torch"), training_package("transformers")
    name, files = find_weights(config.model, config.gguf_file) if model is None else (str(model), {})
    plain = {"quantization_config": transformers.GgufConfig(dequantize=True)} if files else {}
    with loading(name, transformers):
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, **files)
        load = transformers.AutoModelForCausalLM.from_pretrained
        network = load(name, dtype=getattr(torch, dtype), **files, **plain)
        return network.to(config.device or ("cuda" if torch.cuda.is_available() else "cpu")), tokenizer


def save_model(network: Any, tokenizer: Any, folder: Path) -> None:
    """Write model and tokenizer to a folder; an existing folder is replaced once the new one is complete."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    network.save_pretrained(part)
    tokenizer.save_pretrained(part)
    shutil.rmtree(folder, ignore_errors=True)
    part.replace(folder)


def training_package(name: str) -> Any:
    """Import a package of the extras; raise MissingExtraError if it is not installed."""
    with missing_extra(f"fine-tuning needs the package {name}: {_INSTALL}"):
        return import_module(name)


def release_memory() -> None:
    """Return the memory of earlier models and tensors to the operating system.

    A merged model has reference cycles, so it stays until a collection. glibc keeps freed memory that lies between
    allocated blocks; without a trim, training on a CPU grows to twice the memory.
    """
    gc.collect()
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
