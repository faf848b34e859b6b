"""Sampling that computes the common start of prompts once: for the turns and the repeats of an episode.

Each episode asks the model several times, and each prompt starts with the previous one and its answer. Their keys and
values are kept, so that the model reads only what is new. This needs weights that do not change.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

_GROUPED = "fhir_gym_grouped"
"""Name of the attention function that this module registers with transformers."""
_MAX_BYTES = 1 << 30
"""Maximum size of the kept keys and values."""

Sampler = Callable[[Any, Any], Any]
"""Turn the scores of the next tokens into scores whose maximum is the sampled token."""
_Kept = list[tuple[Any, Any]]
"""Keys and values of each layer for one sequence of tokens."""


def can_reuse(model: Any) -> bool:
    """Whether all layers of a transformers model have ordinary attention, so that keys and values can be kept."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None) or ["full_attention"]
    return set(kinds) == {"full_attention"} and not getattr(config, "sliding_window", None)


class PrefixReuse:
    """Samples from a model with constant weights and keeps the keys and values of recent sequences.

    Args:
        model: A transformers model for which `can_reuse` is true. Its attention function is replaced.
    """

    def __init__(self, model: Any) -> None:
        self._torch: Any = import_module("torch")
        self._cache_of: Any = import_module("transformers.cache_utils")
        self._model = model
        self._kept: OrderedDict[tuple[int, ...], _Kept] = OrderedDict()
        self._bytes = 0
        _register_attention()
        model.set_attn_implementation(_GROUPED)

    def sample(
        self, prompts: Sequence[Sequence[int]], sampler: Sampler, ends: Sequence[int], max_tokens: int, stopped: Any
    ) -> list[list[int]]:
        """Complete prompts as one batch; each completion ends with an end token, or after `max_tokens`."""
        torch, device = self._torch, self._model.device
        read = [self._read(tuple(ids)) for ids in prompts]
        kept, scores = [one for one, _ in read], torch.cat([scores for _, scores in read])
        lengths = [len(ids) for ids in prompts]
        longest = max(lengths)
        cache = self._batch_cache(kept, lengths, max_tokens)
        mask = torch.zeros(len(prompts), longest + max_tokens, dtype=torch.long, device=device)
        for row, length in enumerate(lengths):
            mask[row, longest - length :] = 1
        positions = torch.tensor(lengths, device=device)[:, None]
        end_ids = torch.tensor(list(ends), device=device)
        written: list[Any] = []
        ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)
        for count in range(max_tokens):
            chosen = sampler(None, scores).argmax(dim=-1)
            written.append(chosen)
            ended |= torch.isin(chosen, end_ids)
            if bool(ended.all()) or stopped() or count + 1 == max_tokens:
                break
            output = self._model(
                input_ids=chosen[:, None],
                attention_mask=mask[:, : longest + count + 1],
                position_ids=positions + count,
                past_key_values=cache,
                use_cache=True,
            )
            scores = output.logits[:, -1]
        completions = [self._until_end(ids, ends) for ids in torch.stack(written, dim=1).tolist()]
        for ids in prompts:  # the sequences that continue them are kept instead
            self._drop(tuple(ids))
        for row, (ids, completion) in enumerate(zip(prompts, completions, strict=True)):
            # The last token was written, but not read.
            total, start = longest + len(completion) - 1, longest - lengths[row]
            layers = [
                (layer.keys[row : row + 1, :, start:total].clone(), layer.values[row : row + 1, :, start:total].clone())
                for layer in cache.layers
            ]
            self._keep((*ids, *completion[:-1]), layers)
        return completions

    def _read(self, ids: tuple[int, ...]) -> tuple[_Kept, Any]:
        """Return the keys and values of a prompt, and the scores of the next token."""
        torch = self._torch
        start, known = self._longest_start(ids)
        cache = self._cache_of.DynamicCache(config=self._model.config)
        if known is not None:
            for number, (keys, values) in enumerate(known):
                cache.update(keys[:, :, :start], values[:, :, :start], number)
        new = torch.tensor([ids[start:]], device=self._model.device)
        output = self._model(input_ids=new, past_key_values=cache, use_cache=True, logits_to_keep=1)
        layers = [(layer.keys, layer.values) for layer in cache.layers]
        self._keep(ids, layers)
        return layers, output.logits[:, -1]

    def _longest_start(self, ids: tuple[int, ...]) -> tuple[int, _Kept | None]:
        """Return the kept sequence with the longest common start, and the length of that; one token is always read."""
        best, found = 0, None
        for known, layers in self._kept.items():
            limit = min(len(known), len(ids) - 1)
            if limit <= best or known[:best] != ids[:best]:
                continue
            same = limit if known[:limit] == ids[:limit] else _common(known, ids, limit)
            if same > best:
                best, found = same, layers
        return best, found

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

    def _until_end(self, ids: list[int], ends: Sequence[int]) -> list[int]:
        length = next((at + 1 for at, id in enumerate(ids) if id in ends), len(ids))
        return ids[:length]


def _layer(torch: Any, cache_of: Any, rows: Sequence[tuple[Any, Any]], lengths: Sequence[int], room: int) -> Any:
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


def _common(one: tuple[int, ...], other: tuple[int, ...], limit: int) -> int:
    return next((at for at in range(limit) if one[at] != other[at]), limit)


def _size(layers: _Kept) -> int:
    return sum(part.numel() * part.element_size() for pair in layers for part in pair)


def _register_attention() -> None:
    """Register an attention function that reads the keys and values of grouped heads once for one new token."""
    torch = import_module("torch")
    sdpa = import_module("transformers.integrations.sdpa_attention").sdpa_attention_forward
    functions = import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    masks = import_module("transformers.masking_utils").ALL_MASK_ATTENTION_FUNCTIONS

    def grouped(
        module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float | None = None, **given: Any
    ) -> tuple[Any, None]:
        batch, heads, new, size = query.shape
        if new > 1:
            result: tuple[Any, None] = sdpa(module, query, key, value, attention_mask, scaling=scaling, **given)
            return result
        groups = key.shape[1]
        scores = query.reshape(batch, groups, heads // groups, size) @ key.transpose(-1, -2)
        scores = scores.float() * (size**-0.5 if scaling is None else scaling)
        if attention_mask is not None:
            scores = scores.masked_fill(~attention_mask, float("-inf"))
        return (torch.softmax(scores, dim=-1).to(value.dtype) @ value).reshape(batch, 1, heads, size), None

    functions.register(_GROUPED, grouped)
    masks.register(_GROUPED, masks["sdpa"])
