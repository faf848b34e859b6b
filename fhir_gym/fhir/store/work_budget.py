"""The work that one request may do."""

from __future__ import annotations

from fhir_gym.fhir.costs import too_costly

PORTION = 10_000
"""Number of steps in one unit. SQLite reports steps in these units, and the budget counts them in these units."""


class WorkBudget:
    """The work that a request may do, counted in steps. `bool(budget)` is false once all steps are spent.

    Args:
        steps: The number of steps; several `Store.budget` blocks may spend from one budget.
    """

    def __init__(self, steps: int) -> None:
        self._portions = bytearray(steps // PORTION)
        self._spent = 0
        # The callback is not written in Python, because Python would run signal handlers in it, and SQLite would
        # mistake an exception from a handler (Ctrl-C) for an interruption. Popping from an empty bytearray raises,
        # which interrupts SQLite.
        self.tick = self._portions.pop

    def __bool__(self) -> bool:
        return bool(self._portions)

    def spend(self, steps: int) -> None:
        """Spend steps for work outside of SQLite.

        Raises:
            FhirError: Fewer steps are left.
        """
        self._spent += steps
        if self._spent < PORTION and self._portions:
            return
        due, self._spent = divmod(self._spent, PORTION)
        if due >= len(self._portions):
            self._portions.clear()
            raise too_costly()
        if due:
            del self._portions[-due:]
