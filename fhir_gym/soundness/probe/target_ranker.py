"""Learners that never see the prompt and predict the target record."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fhir_gym.soundness.probe.models import SEED, predict_probabilities
from fhir_gym.soundness.probe.table import Group, Table

_MOST_EXACT = 12
"""The rule "exactly this value" is tried for the whole numbers from 0 up to this number (exclusive)."""
_WAYS = ("highest", "lowest", *(f"exactly {number}" for number in range(_MOST_EXACT)))

Hits: TypeAlias = list[bool]
"""One value per scene: whether the target was predicted."""
Scores: TypeAlias = NDArray[np.float64]


def scores(train: Table, test: Table, *, within: bool = False) -> Scores:
    """Train on one table and score the candidates of another.

    Args:
        train: Training scenes with their targets.
        test: Test scenes with the same features.
        within: Whether to train only on the qualifying candidates.

    Returns:
        One score per row of `test`: the predicted probability that the row is the target.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    rows = train.qualifying_rows() if within else train.rows()
    return predict_probabilities(train.values[rows], train.labels()[rows], test.values)


def hits(test: Table, scored: Scores, *, among_all: bool = False) -> Hits:
    """Determine in which scenes the target has the highest score. A seeded random choice breaks ties.

    Args:
        test: The scenes.
        scored: One score per row.
        among_all: Whether to choose among all candidates, not only among the qualifying ones.
    """
    lot = np.random.default_rng(SEED)
    found = []
    for group in test.groups:
        own = scored[group.rows]
        asked = lot.permutation(np.arange(len(own)) if among_all else group.qualifying)
        found.append(bool(asked[np.argmax(own[asked])] == group.target))
    return found


def with_random_targets(table: Table, seed: int = SEED) -> Table:
    """Replace each scene's target with a random qualifying candidate."""
    lot = np.random.default_rng(seed)
    return table.part([replace(group, target=int(lot.choice(group.qualifying))) for group in table.groups])


def rule_hits(train: Table, test: Table) -> Hits:
    """Choose the single feature that predicts the training targets best; determine in which scenes it finds the target.

    This learner is simpler than `scores` and overfits less, so it needs fewer scenes to find small leaks. It selects
    among the candidates of each scene by themselves: several scenes may have the same rows and other candidates. A
    seeded random choice breaks ties.

    Args:
        train: Training scenes with their targets.
        test: Test scenes with the same features.
    """
    lot = np.random.default_rng(SEED)
    way, feature = _best(train, 1)[0][:2] if train.names else (0, None)
    found = []
    for group in test.groups:
        asked = lot.permutation(group.qualifying)
        values = test.values[group.rows][asked]
        picked = np.zeros(len(asked)) if feature is None else _picks(values[:, [feature]])[way][:, 0]
        found.append(bool(asked[np.argmax(picked)] == group.target))
    return found


def single_features(table: Table, most: int = 3) -> list[tuple[str, float]]:
    """The single features that predict the target most often, with their success rates.

    The rules for each feature are "the highest", "the lowest" and "exactly this value" (such as rank 3). If a rule
    selects several candidates, a hit counts as a fraction.

    Args:
        table: Scenes with their targets.
        most: Number of features to return.
    """
    return [(f"{table.names[feature]}: {_WAYS[way]}", share) for way, feature, share in _best(table, most)]


def _best(table: Table, most: int) -> list[tuple[int, int, float]]:
    """The best combinations of a rule and a feature, with their success rates."""
    shares = np.mean([_chances(table, group) for group in table.groups], axis=0)
    places = np.argsort(-shares, axis=None, kind="stable")[:most]
    pairs = [np.unravel_index(place, shares.shape) for place in places]
    return [(int(way), int(feature), float(shares[way, feature])) for way, feature in pairs]


def _chances(table: Table, group: Group) -> Scores:
    """For each rule and feature, the probability that it selects the target."""
    picked = _picks(table.values[group.rows][group.qualifying])
    target = int(np.flatnonzero(group.qualifying == group.target)[0])
    count = picked.sum(axis=1)
    return np.where(count == 0, group.fair, picked[:, target] / np.maximum(count, 1))


def _picks(values: Scores) -> NDArray[np.bool_]:
    """For each rule and feature, which candidates it selects."""
    return np.array(
        [
            values == np.where(np.isnan(values), -np.inf, values).max(axis=0),
            values == np.where(np.isnan(values), np.inf, values).min(axis=0),
            *(values == number for number in range(_MOST_EXACT)),
        ]
    )
