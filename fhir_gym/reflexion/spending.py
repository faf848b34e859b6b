"""Count the tokens of a memory training by role, and stop it when its budget is spent."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from typing_extensions import override

from fhir_gym.agents import Usage
from fhir_gym.errors import TrainingBudgetError
from fhir_gym.rollouts import BudgetTracker
from fhir_gym.rollouts.budget import Prices

ROLES = ("agent", "evaluator", "reflector")
"""Roles of the models of a memory training."""
MayContinue = Callable[[Mapping[str, Usage]], bool]
"""Function that gets the tokens spent so far by role, and returns whether a further request may be sent."""


class Spending:
    """The tokens that a training has spent, including those before an interruption.

    Args:
        before: Tokens by role that were spent before.
        tokens: Maximum total of tokens; None for no limit.
        may_continue: A further condition for each request; None for none.
    """

    def __init__(self, before: Mapping[str, Usage], tokens: int | None, may_continue: MayContinue | None) -> None:
        self.usage = {role: before.get(role, Usage()) for role in ROLES}
        self._tokens, self._may_continue = tokens, may_continue

    def add(self, role: str, usage: Usage | None) -> None:
        """Add the tokens of a reply."""
        self.usage[role] += usage or Usage()

    @property
    def exhausted(self) -> bool:
        """Whether no further request may be sent."""
        total = sum(usage.total for usage in self.usage.values())
        if self._tokens is not None and total >= self._tokens:
            return True
        return self._may_continue is not None and not self._may_continue(dict(self.usage))

    def require_budget(self) -> None:
        """Raise if no further request may be sent.

        Raises:
            TrainingBudgetError: The budget is spent.
        """
        if self.exhausted:
            total = sum(usage.total for usage in self.usage.values())
            raise TrainingBudgetError(
                f"the budget of the memory training is spent after {total:,} tokens; nothing is lost: "
                "run it again with a larger budget"
            )


class AgentBudget(BudgetTracker):
    """Lets `run_plan` start an episode only if the training's budget allows it.

    Args:
        spending: The training's tokens.
    """

    def __init__(self, spending: Spending) -> None:
        super().__init__()
        self._spending = spending

    @override
    def try_begin(self) -> bool:
        return not self._spending.exhausted

    @override
    def spend(self, usage: Usage, prices: Prices | None = None) -> None:
        self._spending.add("agent", usage)
