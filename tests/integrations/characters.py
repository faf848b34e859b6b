"""A tokenizer whose tokens are characters, and a scripted engine that reads and writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.integrations.contract import Policy

EOS = "\x03"
_MESSAGE = re.compile(f"\x02(system|user|assistant)\n(.*?){EOS}\n?", re.DOTALL)


class CharacterTokenizer:
    """The part of a Hugging Face tokenizer that trainers use, without a vocabulary.

    A message is ``\\x02role\\ncontent\\x03\\n``, as in the templates of Qwen.
    """

    eos_token, eos_token_id = EOS, ord(EOS)
    pad_token_id = 0

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [*map(ord, text)]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        text = "".join(map(chr, ids))
        return text.replace(EOS, "") if skip_special_tokens else text

    def apply_chat_template(
        self,
        messages: Iterable[Mapping[str, Any]],
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        return_dict: bool = True,
        **_: Any,
    ) -> Any:
        text = "".join(f"\x02{message['role']}\n{message['content']}{EOS}\n" for message in messages)
        text += "\x02assistant\n" if add_generation_prompt else ""
        ids = self.encode(text)
        return text if not tokenize else {"input_ids": ids} if return_dict else ids


def read_messages(ids: Sequence[int]) -> list[dict[str, str]]:
    """The messages of a prompt."""
    text = "".join(map(chr, ids))
    assert text.endswith("\x02assistant\n"), "a prompt must end where the model's turn begins"
    return [{"role": role, "content": content} for role, content in _MESSAGE.findall(text)]


def reply_to(policy: Policy, ids: Sequence[int]) -> str:
    """The text that a policy writes after a prompt, without the end of the turn."""
    return str(policy({"messages": read_messages(ids)}))
