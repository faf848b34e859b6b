"""How much memory a training run of a language model needs, estimated from its config and the model's shape."""

from __future__ import annotations

from typing import Any

from fhir_gym.agents.transformer import find_weights, loading
from fhir_gym.training.grpo.config import GrpoConfig
from fhir_gym.training.token_tree import MOST_NODES
from fhir_gym.training.tuner import ModelConfig, training_package

_FLOAT = 4
"""Bytes of a float32 number: logits, adapters, gradients and the optimizer's averages have it in every run."""


def memory_estimate(config: ModelConfig) -> dict[str, float]:
    """Estimate what a run keeps in memory, in bytes by purpose; only the config of the model is read.

    The estimate leaves out the libraries themselves, memory that the allocator cannot reuse, and vLLM, which takes the
    share of the GPU that ``trl.vllm_gpu_memory_utilization`` says.

    Args:
        config: The settings.

    Returns:
        ``weights``, ``adapters`` (with ``lora_rank``), ``gradients and optimizer``, ``sampling`` (a merged copy of the
        weights, if the recipe makes one, and the keys and values of the episodes that run concurrently), and ``update``
        (activations and logits of one forward and backward pass).

    Raises:
        FhirGymError: The config of the model cannot be loaded.
        MissingExtraError: torch or transformers is not installed.
    """
    network, shape = _empty_network(config)
    linear = training_package("torch").nn.Linear
    parameters = sum(parameter.numel() for parameter in network.parameters())
    adapted = [
        module
        for module in network.modules()
        if isinstance(module, linear) and module is not network.get_output_embeddings()
    ]
    adapters = config.lora_rank * sum(module.in_features + module.out_features for module in adapted)
    number = 2 if config.lora_rank and config.dtype == "bfloat16" else _FLOAT
    heads, layers = shape.num_attention_heads, shape.num_hidden_layers
    head = getattr(shape, "head_dim", None) or shape.hidden_size // heads
    kept = 2 * layers * (getattr(shape, "num_key_value_heads", None) or heads) * head * number
    own_update = not isinstance(config, GrpoConfig) or config.shape == "groups"
    with_vllm = isinstance(config, GrpoConfig) and bool(config.trl.get("use_vllm"))
    sampling = 0 if with_vllm else config.concurrency * config.max_tokens * kept
    return {
        "weights": parameters * number,
        **({"adapters": adapters * _FLOAT} if adapters else {}),
        "gradients and optimizer": (adapters or parameters) * 3 * _FLOAT,
        "sampling": sampling + own_update * parameters * number,
        "update": _update(config, shape, number),
    }


def _update(config: ModelConfig, shape: Any, number: int) -> float:
    """Return the bytes of the activations and logits of one forward and backward pass."""
    tokens = config.max_tokens
    attention = checkpointing = 0
    if isinstance(config, GrpoConfig) and config.shape == "groups":
        tokens = max(tokens, MOST_NODES)
        attention = shape.num_attention_heads * tokens * _FLOAT  # a tree's mask makes torch keep the attention weights
    elif isinstance(config, GrpoConfig):
        tokens *= config.micro_batch
        checkpointing = bool(config.trl.get("gradient_checkpointing"))
    layers, hidden = shape.num_hidden_layers, shape.hidden_size
    # What a layer keeps for the backward pass: its input, norms, queries, keys, values, adapters' inputs, and the MLP.
    layer = (12 * hidden + 4 * shape.intermediate_size) * number + attention
    kept = layers * hidden * number + layer if checkpointing else layers * layer
    logits = shape.vocab_size * _FLOAT * 2
    return float(tokens * (kept + logits))


def _empty_network(config: ModelConfig) -> tuple[Any, Any]:
    """Return the model without memory for its weights, and its text config."""
    torch, transformers = training_package("torch"), training_package("transformers")
    name, files = find_weights(config.model, config.gguf_file)
    with loading(name, transformers):
        model_config = transformers.AutoConfig.from_pretrained(name, **files)
        with torch.device("meta"):
            network = transformers.AutoModelForCausalLM.from_config(model_config)
    return network, model_config.get_text_config()
