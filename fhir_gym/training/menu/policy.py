"""Policies for Stable-Baselines3 that score each place of the menu against the state.

This module needs torch and sb3-contrib.
"""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.policies import MaskableMultiInputActorCriticPolicy
from stable_baselines3.common.policies import BasePolicy, MultiInputActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from torch import Tensor, nn
from typing_extensions import override

from fhir_gym.training.menu.features import CANDIDATE_FEATURES, STATE_FEATURES

_INITIAL_SPREAD = 0.05
"""Standard deviation of the initial weights of features."""


class _FeatureSums(nn.Module):
    """Adds up the weights of the active features of each row; the number 0 fills rows and adds nothing."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.weights = nn.EmbeddingBag(features, width, mode="sum", padding_idx=0)
        nn.init.normal_(self.weights.weight, std=_INITIAL_SPREAD)
        self.bias = nn.Parameter(torch.zeros(width))

    @override
    def forward(self, rows: Tensor) -> Tensor:
        sums: Tensor = self.weights(rows.long())
        return sums + self.bias


class MenuExtractor(BaseFeaturesExtractor):
    """Turns an observation into one score for each place, followed by the inputs of the value.

    The score of a place depends on the state and on the place's own row, so that equal rows have equal scores at all
    places. Only the scores of filled places are computed.

    Args:
        observation_space: The space of a `MenuEnv`.
        width: Number of hidden units.
    """

    def __init__(self, observation_space: spaces.Dict, width: int = 96) -> None:
        places = (observation_space["candidates"].shape or (0,))[0]
        super().__init__(observation_space, places + 2 * width)
        self.places, self.width = places, width
        self.state = _FeatureSums(STATE_FEATURES, 3 * width)
        self.place = _FeatureSums(CANDIDATE_FEATURES, 2 * width)
        self.mixed = nn.Linear(width, width)
        self.score = nn.Linear(width, 1)

    @override
    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        width, rows = self.width, observations["candidates"]
        filled = rows[:, :, 0] > 0
        batch = filled.nonzero(as_tuple=True)[0]
        states = self.state(observations["state"])
        places = self.place(rows[filled])
        chosen = states[batch]
        added = torch.relu(places[:, :width] + chosen[:, :width])
        gated = places[:, width:] * torch.tanh(chosen[:, width : 2 * width])
        hidden = torch.relu(self.mixed(added) + gated)
        scores = hidden.new_zeros(filled.shape)
        scores[filled] = self.score(hidden).squeeze(-1)
        pooled = hidden.new_zeros(len(rows), width).index_add(0, batch, hidden)
        pooled = pooled / filled.sum(1, keepdim=True).clamp(min=1)
        return torch.cat([scores, torch.relu(states[:, 2 * width :]), pooled], 1)


class _Heads(nn.Module):
    """Splits the extracted features into the scores of the places and the inputs of the value."""

    def __init__(self, places: int, value_size: int) -> None:
        super().__init__()
        self.places = places
        self.latent_dim_pi, self.latent_dim_vf = places, value_size
        self.value = nn.Sequential(nn.Linear(value_size, value_size), nn.ReLU())

    @override
    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.forward_actor(features), self.forward_critic(features)

    def forward_actor(self, features: Tensor) -> Tensor:
        return features[:, : self.places]

    def forward_critic(self, features: Tensor) -> Tensor:
        value: Tensor = self.value(features[:, self.places :])
        return value


class _ScoresArePolicy(BasePolicy):
    """Makes the scores of a `MenuExtractor` the logits of an actor-critic policy of Stable-Baselines3."""

    def __init__(self, *args: Any, width: int = 96, **kwargs: Any) -> None:
        kwargs |= {"features_extractor_class": MenuExtractor, "features_extractor_kwargs": {"width": width}}
        super().__init__(*args, **kwargs)

    def _build_mlp_extractor(self) -> None:
        extractor = self.features_extractor
        self.mlp_extractor: Any = _Heads(extractor.places, 2 * extractor.width)

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        self.action_net: Any = nn.Identity()  # the scores are the logits
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def extract_features(self, obs: dict[str, Tensor], features_extractor: Any = None) -> Tensor:
        features: Tensor = (features_extractor or self.features_extractor)(obs)  # it converts filled places only
        return features

    def predict_values(self, obs: dict[str, Tensor]) -> Tensor:
        """Return the values of states; 0 after an episode, when no place is filled.

        Stable-Baselines3 adds this value to the last reward of a truncated episode. The episode is graded then, so
        nothing is missing.
        """
        values: Tensor = super().predict_values(obs)
        return values * (obs["candidates"][:, :, 0] > 0).any(1, keepdim=True)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters()
        width = self.features_extractor.width
        return {name: value for name, value in data.items() if "extractor" not in name} | {"width": width}


class MenuPolicy(_ScoresArePolicy, MaskableMultiInputActorCriticPolicy):
    """A policy for `MaskablePPO` on a `MenuEnv`; see `MenuExtractor`.

    Args:
        args: As for `MaskableMultiInputActorCriticPolicy`.
        width: Number of hidden units.
        kwargs: As for `MaskableMultiInputActorCriticPolicy`.
    """


class UnmaskedMenuPolicy(_ScoresArePolicy, MultiInputActorCriticPolicy):
    """The same for `PPO`, which must learn to avoid empty places; all of them have the same score."""


class _PlaceValues(QNetwork):
    """The value of each place.

    An empty place has the value -1, less than any return, so that the best place is a filled one. After an episode no
    place is filled, and all values are 0; Stable-Baselines3 adds this value to the reward of a truncated episode.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.q_net: Any = nn.Identity()

    @override
    def forward(self, obs: Any) -> Tensor:
        values: Tensor = self.features_extractor(obs)[:, : self.features_extractor.places]
        filled = obs["candidates"][:, :, 0] > 0
        return torch.where(filled, values, -filled.any(1, keepdim=True).float())


class MenuQPolicy(DQNPolicy):
    """The same for `DQN`: the scores are the values of the places."""

    def __init__(self, *args: Any, width: int = 96, **kwargs: Any) -> None:
        kwargs |= {"features_extractor_class": MenuExtractor, "features_extractor_kwargs": {"width": width}}
        super().__init__(*args, **kwargs)

    @override
    def make_q_net(self) -> _PlaceValues:
        arguments = self._update_features_extractor(self.net_args, features_extractor=None)
        values: _PlaceValues = _PlaceValues(**arguments).to(self.device)
        return values
