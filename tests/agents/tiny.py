"""Build a language model with a few thousand random weights; no download is necessary."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

CHAT = (
    "{% if tools %}<|im_start|>tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_TOOLS = CHAT[CHAT.index("{% for message") :].replace(
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}", ""
)
FORGETFUL = CHAT.replace(
    "{{ message.content }}",
    "{% if message.role != 'assistant' or loop.last %}{{ message.content }}{% else %}(said){% endif %}",
)
"""A chat template that keeps only the last answer, like templates that drop earlier reasoning."""


def save(folder: Path, chat_template: str | None = CHAT) -> str:
    """Write the model and its tokenizer to a folder, and return the path of the folder."""
    torch, transformers, tokenizers = (import_module(name) for name in ("torch", "transformers", "tokenizers"))
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    bytes_only = tokenizers.Tokenizer(tokenizers.models.BPE())
    bytes_only.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    bytes_only.train_from_iterator(["GET /Patient HTTP FINISH resourceType"] * 4, trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bytes_only, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=chat_template
    )
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=1_048_576,
        initializer_range=0.5,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    tokenizer.save_pretrained(folder)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)
