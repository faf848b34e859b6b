"""Sample from a language model without reading the same tokens twice.

Each prompt of an episode starts with the previous prompt and its reply, and repeats of an episode have the same first
prompt. The attention keys and values of recent sequences are kept, so that the model reads only new tokens. The
weights must not change in between.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from typing import Any

_GROUPED = "fhir_gym_grouped"
"""Name of the attention function that this module registers with transformers."""
_MAX_BYTES = 1 << 30
"""Maximum size of the kept keys and values."""

_Kept = list[tuple[Any, ...]]
"""Keys and values of each layer for one sequence of tokens."""


def can_reuse(model: Any) -> bool:
    """Whether all layers of a transformers model have ordinary attention, so that keys and values can be kept."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None) or ["full_attention"]
    return set(kinds) == {"full_attention"} and not getattr(config, "sliding_window", None)


@dataclass(slots=True)
class _Batch:
    """The sequences that are still being completed.

    Attributes:
        cache: Their keys and values.
        rows: The index of the prompt of each sequence.
    """

    cache: Any
    rows: list[int]

    def only(self, places: list[int]) -> _Batch:
        """Return the sequences at some places."""
        for layer in self.cache.layers:
            layer.whole = tuple(part[places] for part in layer.whole)
            layer.keys, layer.values = (part[:, :, : layer.filled] for part in layer.whole)
        return _Batch(self.cache, [self.rows[place] for place in places])


class PrefixReuse:
    """Samples from a model and keeps the keys and values of recent sequences.

    Args:
        model: A transformers model for which `can_reuse` is true. Its weights must not change any more. The
            constructor replaces its attention function by a faster implementation.
    """

    def __init__(self, model: Any) -> None:
        self._torch: Any = import_module("torch")
        self._cache_of: Any = import_module("transformers.cache_utils")
        self._model = model
        # the parameter's name since transformers 5.24, and its earlier name
        self._cache_name = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"
        self._kept: OrderedDict[tuple[int, ...], _Kept] = OrderedDict()
        self._bytes = 0
        _register_attention()
        model.set_attn_implementation(_GROUPED)

    def sample(
        self, prompts: Sequence[Sequence[int]], sampler: Any, ends: Sequence[int], max_tokens: int, stopped: Any
    ) -> list[list[int]]:
        """Complete prompts as one batch; each completion ends with an end token, or after `max_tokens`.

        Args:
            prompts: Token ids of each prompt.
            sampler: Function that turns the scores of the next tokens into scores whose maximum is the sampled token.
                Its attribute `rows` has the indices of the prompts that are not complete.
            ends: The end tokens.
            max_tokens: Maximum number of tokens of a completion.
            stopped: Function that is called after each token. When it returns True, sampling ends early.
        """
        torch, device = self._torch, self._model.device
        read = [self._read(tuple(ids)) for ids in prompts]
        for ids in prompts:  # the sequences that continue them are kept instead
            self._drop(tuple(ids))
        scores = torch.cat([scores for _, scores in read])
        lengths = [len(ids) for ids in prompts]
        longest = max(lengths)
        batch = _Batch(
            self._batch_cache([layers for layers, _ in read], lengths, max_tokens), list(range(len(prompts)))
        )
        mask = torch.zeros(len(prompts), longest + max_tokens, dtype=torch.long, device=device)
        for row, length in enumerate(lengths):
            mask[row, longest - length :] = 1
        written: list[list[int]] = [[] for _ in prompts]
        for count in range(max_tokens):
            sampler.rows = batch.rows
            chosen = sampler(None, scores).argmax(dim=-1)
            for row, id in zip(batch.rows, chosen.tolist(), strict=True):
                if not (written[row] and written[row][-1] in ends):
                    written[row].append(id)
            active = [at for at, row in enumerate(batch.rows) if written[row][-1] not in ends]
            if not active or stopped() or count + 1 == max_tokens:
                break
            if 2 * len(active) <= len(batch.rows):
                self._keep_rows(batch, prompts, written, set(range(len(batch.rows))) - set(active), longest)
                chosen = chosen[active]
                batch = batch.only(active)
            output = self._model(
                input_ids=chosen[:, None],
                attention_mask=mask[batch.rows, : longest + count + 1],
                position_ids=torch.tensor([[lengths[row] + count] for row in batch.rows], device=device),
                use_cache=True,
                **{self._cache_name: batch.cache},
            )
            scores = output.logits[:, -1]
        self._keep_rows(batch, prompts, written, range(len(batch.rows)), longest)
        return written

    def _keep_rows(
        self,
        batch: _Batch,
        prompts: Sequence[Sequence[int]],
        written: Sequence[Sequence[int]],
        places: Iterable[int],
        longest: int,
    ) -> None:
        """Keep the sequences at some places of a batch. The last token of each was written, but not read."""
        for place in places:
            row = batch.rows[place]
            start, total = longest - len(prompts[row]), longest + len(written[row]) - 1
            layers = [
                tuple(part[place : place + 1, :, start:total].clone() for part in (layer.keys, layer.values))
                for layer in batch.cache.layers
            ]
            self._keep((*prompts[row], *written[row][:-1]), layers)

    def _read(self, ids: tuple[int, ...]) -> tuple[_Kept, Any]:
        """Return the keys and values of a prompt, and the scores of the next token."""
        torch = self._torch
        start, kept_layers = self._longest_start(ids)
        cache = self._cache_of.DynamicCache(config=self._model.config)
        if kept_layers is not None:
            for number, (keys, values) in enumerate(kept_layers):
                cache.update(keys[:, :, :start], values[:, :, :start], number)
        new = torch.tensor([ids[start:]], device=self._model.device)
        output = self._model(input_ids=new, use_cache=True, logits_to_keep=1, **{self._cache_name: cache})
        layers = [(layer.keys, layer.values) for layer in cache.layers]
        self._keep(ids, layers)
        return layers, output.logits[:, -1]

    def _longest_start(self, ids: tuple[int, ...]) -> tuple[int, _Kept | None]:
        """Return the length of the longest start that a kept sequence shares with the prompt, and that sequence.

        At least the last token of the prompt must be read, so it is never part of the start.
        """
        best, longest = 0, None
        for prefix, layers in self._kept.items():
            limit = min(len(prefix), len(ids) - 1)
            if limit <= best or prefix[:best] != ids[:best]:
                continue
            same = limit if prefix[:limit] == ids[:limit] else _common(prefix, ids, limit)
            if same > best:
                best, longest = same, layers
        return best, longest

    def _keep(self, ids: tuple[int, ...], layers: _Kept) -> None:
        """Keep a sequence, and drop the oldest ones if there are too many."""
        self._drop(ids)
        self._kept[ids] = layers
        self._bytes += _size(layers)
        while self._bytes > _MAX_BYTES and len(self._kept) > 1:
            self._drop(next(iter(self._kept)))

    def _drop(self, ids: tuple[int, ...]) -> None:
        layers = self._kept.pop(ids, None)
        self._bytes -= _size(layers) if layers else 0

    def _batch_cache(self, kept: Sequence[_Kept], lengths: Sequence[int], room: int) -> Any:
        """Return a cache with one row per sequence, padded on the left, with room for more tokens."""
        layers = [_layer(self._torch, self._cache_of, every, lengths, room) for every in zip(*kept, strict=True)]
        cache = self._cache_of.DynamicCache()
        cache.layers = layers
        return cache


def _layer(torch: Any, cache_of: Any, rows: Sequence[tuple[Any, ...]], lengths: Sequence[int], room: int) -> Any:
    """Return a layer of a cache that writes new keys and values into memory that is already there."""

    def update(self: Any, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        first, last = self.filled, self.filled + key_states.shape[-2]
        self.whole[0][:, :, first:last], self.whole[1][:, :, first:last] = key_states, value_states
        self.filled = last
        self.keys, self.values = (part[:, :, :last] for part in self.whole)
        return self.keys, self.values

    longest = max(lengths)
    sample = rows[0][0]
    shape = (len(rows), sample.shape[1], longest + room, sample.shape[3])
    layer = type("Layer", (cache_of.DynamicLayer,), {"update": update})()
    layer.whole = tuple(torch.zeros(shape, dtype=sample.dtype, device=sample.device) for _ in range(2))
    for row, (pair, length) in enumerate(zip(rows, lengths, strict=True)):
        for part, states in zip(layer.whole, pair, strict=True):
            part[row, :, longest - length : longest] = states[0]
    layer.filled = longest
    layer.keys, layer.values = (part[:, :, :longest] for part in layer.whole)
    layer.dtype, layer.device, layer.is_initialized = sample.dtype, sample.device, True
    return layer


def _common(tokens: tuple[int, ...], other: tuple[int, ...], limit: int) -> int:
    return next((at for at in range(limit) if tokens[at] != other[at]), limit)


def _size(layers: _Kept) -> int:
    return sum(part.numel() * part.element_size() for parts in layers for part in parts)


def _register_attention() -> None:
    """Register an attention function that, for one new token, does not copy the keys and values of grouped heads."""
    torch = import_module("torch")
    sdpa = import_module("transformers.integrations.sdpa_attention").sdpa_attention_forward
    functions = import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    masks = import_module("transformers.masking_utils").ALL_MASK_ATTENTION_FUNCTIONS

    def grouped(
        module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float | None = None, **options: Any
    ) -> tuple[Any, None]:
        batch, heads, new, size = query.shape
        if new > 1:
            result: tuple[Any, None] = sdpa(module, query, key, value, attention_mask, scaling=scaling, **options)
            return result
        groups = key.shape[1]
        scores = query.reshape(batch, groups, heads // groups, size) @ key.transpose(-1, -2)
        scores = scores.float() * (size**-0.5 if scaling is None else scaling)
        if attention_mask is not None:
            scores = scores.masked_fill(~attention_mask, float("-inf"))
        return (torch.softmax(scores, dim=-1).to(value.dtype) @ value).reshape(batch, 1, heads, size), None

    functions.register(_GROUPED, grouped)
    masks.register(_GROUPED, masks["sdpa"])
