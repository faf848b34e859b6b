"""A module for RLlib that scores each place of the menu against the state. It needs torch and RLlib."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.torch import TorchRLModule
from torch import Tensor, nn
from typing_extensions import override

from fhir_gym.training.menu.features import CANDIDATE_FEATURES, STATE_FEATURES

_WIDTH = 96


class MenuModule(TorchRLModule, ValueFunctionAPI):
    """Adds up one vector for each active feature. Empty places of the menu are never chosen."""

    @override
    def setup(self) -> None:
        self.state = nn.EmbeddingBag(STATE_FEATURES, _WIDTH, mode="sum", padding_idx=0)
        self.place = nn.EmbeddingBag(CANDIDATE_FEATURES, _WIDTH, mode="sum", padding_idx=0)
        for bag in (self.state, self.place):
            nn.init.normal_(bag.weight, std=0.05)
        self.score = nn.Sequential(nn.ReLU(), nn.Linear(_WIDTH, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, 1))
        self.value = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, 1))

    @override
    def _forward(self, batch: dict[str, Any], **_: Any) -> dict[str, Tensor]:
        seen = batch[Columns.OBS]
        rows = seen["candidates"].long()
        number, places, size = rows.shape
        candidates = self.place(rows.reshape(number * places, size)).reshape(number, places, _WIDTH)
        scores = self.score(candidates + self.state(seen["state"].long())[:, None]).squeeze(-1)
        empty = rows[:, :, 0] == 0
        empty[:, 0] &= ~empty.all(1)  # the menu after the last action is empty
        return {Columns.ACTION_DIST_INPUTS: scores.masked_fill(empty, torch.finfo(scores.dtype).min)}

    @override
    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> Tensor:
        values: Tensor = self.value(self.state(batch[Columns.OBS]["state"].long())).squeeze(-1)
        return values
