"""Train a language model with TRL's own GRPOTrainer, which lets the model call the FHIR tools of an episode.

By default, a tiny model with random weights trains for one step, which shows the mechanics in under a minute. Take a
model that can call tools, larger groups and more steps:

    python examples/trl_tools.py --model Qwen/Qwen3-0.6B --steps 100 --group-size 8 --tokens 4000
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def tiny_model() -> tuple[Any, Any]:
    """Return a random model that writes bytes, and its tokenizer with a chat template for tools."""
    import tokenizers
    import transformers
    import trl

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = {byte: number for number, byte in enumerate([*special, *tokenizers.pre_tokenizers.ByteLevel.alphabet()])}
    bytes_only = tokenizers.Tokenizer(tokenizers.models.BPE(alphabet, []))
    bytes_only.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bytes_only, eos_token=special[2], pad_token=special[0], additional_special_tokens=special
    )
    tokenizer.chat_template = Path(trl.__file__).with_name("chat_templates").joinpath("qwen3.jinja").read_text("utf-8")
    config = transformers.LlamaConfig(
        vocab_size=len(alphabet),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=65_536,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return transformers.LlamaForCausalLM(config), tokenizer


def main() -> None:
    """Train; TRL prints its metrics and those of the episodes."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", help="name or folder of a model; by default a tiny random one")
    options.add_argument("--tasks", default="01,02a", help="task keys, separated by commas")
    options.add_argument("--steps", type=int, default=1, help="number of training steps")
    options.add_argument("--group-size", type=int, default=2, help="number of episodes of a task in a step")
    options.add_argument("--tokens", type=int, default=64, help="maximum number of tokens after the prompt")
    chosen = options.parse_args()
    if find_spec("trl") is None:
        print("This example needs TRL: pip install '.[local,train]'")
        return
    import torch
    import trl

    from fhir_gym.integrations.trl import FHIRToolEnv, OpenConfigs, log_episodes, training_rows

    warnings.simplefilter("ignore")  # TRL calls environments experimental
    model, tokenizer = (chosen.model, None) if chosen.model else tiny_model()
    with OpenConfigs(reward="dense", max_steps=8) as configs, tempfile.TemporaryDirectory() as folder:
        trainer = trl.GRPOTrainer(
            model,
            args=trl.GRPOConfig(
                folder,
                max_steps=chosen.steps,
                num_generations=chosen.group_size,
                per_device_train_batch_size=chosen.group_size,
                max_completion_length=chosen.tokens,
                max_tool_calling_iterations=8,
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                bf16=torch.cuda.is_available(),
            ),
            train_dataset=training_rows("FHIRAgent/Appointment-v0", chosen.tasks.split(","), variations=range(200)),
            processing_class=tokenizer,
            environment_factory=partial(FHIRToolEnv, configs, observation_chars=2_000),
            reward_funcs=[log_episodes],
        )
        trainer.train()


if __name__ == "__main__":
    main()
