"""The tokens of an experiment, their cost, and the limits on both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fhir_gym.agents import Usage
from fhir_gym.errors import ExperimentError
from fhir_gym.experiments.folder import memory_file, rollouts_of
from fhir_gym.experiments.manifest import Manifest
from fhir_gym.reflexion import training_usage
from fhir_gym.rollouts import Budget, BudgetTracker, Prices

ROLES = {"agent": "trainer", "evaluator": "evaluator", "reflector": "reflector"}
"""Maps each role of `training_usage` to the role in the manifest."""


@dataclass(frozen=True, slots=True)
class ModelPrices:
    """Prices of the tokens of several models.

    Attributes:
        default: Prices of all other models; None if they are unknown.
        by_model: Prices by the name of the model.
    """

    default: Prices | None = None
    by_model: Mapping[str, Prices] = field(default_factory=dict)

    def of(self, model: str) -> Prices | None:
        """Return the prices of a model; None if they are unknown."""
        return self.by_model.get(model, self.default)

    def cost(self, spent: Iterable[tuple[str, Usage]]) -> float | None:
        """Return the cost of the tokens of several models; None if a price is unknown."""
        if self.default is None and not self.by_model:
            return None
        total = 0.0
        for model, usage in spent:
            prices = self.of(model)
            if prices is None and usage.total:
                return None
            total += prices.cost(usage) if prices else 0.0
        return total


def training_spending(folder: Path, manifest: Manifest, memory: str) -> list[tuple[str, Usage]]:
    """Return the name and the tokens of each model that trains a memory."""
    training = manifest.training
    if training is None:
        return []
    spent = training_usage(memory_file(folder, memory))
    return [(training.models[ROLES[role]].model, usage) for role, usage in spent.items()]


def tracker_of(
    folder: Path, manifest: Manifest, max_tokens: int | None, max_cost: float | None, prices: ModelPrices
) -> BudgetTracker:
    """Return a tracker of the experiment's budget that has already counted the tokens in the folder.

    Raises:
        ExperimentError: There is a maximum cost, but the prices of a model are unknown.
    """
    models = [manifest.model, *(manifest.training.models.values() if manifest.training else ())]
    for record in models:
        if max_cost is not None and prices.of(record.model) is None:
            raise ExperimentError(f"a maximum cost needs the prices of {record.model}'s tokens")
    tracker = BudgetTracker(Budget(tokens=max_tokens, cost=max_cost, prices=prices.of(manifest.model.model)))
    for memory in dict.fromkeys(one.memory for one in manifest.configurations.values() if one.memory):
        for model, usage in training_spending(folder, manifest, memory):
            tracker.spend(usage, prices.of(model))
    for name in manifest.configurations:
        for rollout in rollouts_of(folder, name):
            tracker.spend(rollout.usage or Usage())
    return tracker
