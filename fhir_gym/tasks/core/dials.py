"""Dials: numbers with which researchers change how much a task draws. The task's key contains them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real

from fhir_gym.errors import FhirGymError, UnknownNameError

_SEPARATOR, _EQUALS = "+", "="


@dataclass(frozen=True, slots=True)
class Dial:
    """A number that changes how much a task draws.

    Attributes:
        usual: The value that the task has without dials.
        least: The minimum.
        most: The maximum.
        is_whole: Whether only whole numbers are possible.
    """

    usual: float
    least: float
    most: float
    is_whole: bool = False

    def checked(self, name: str, value: object) -> float:
        """Return a value of this dial, rounded to six digits.

        Raises:
            FhirGymError: The value is not a number, or not in the range of the dial.
        """
        number = None if isinstance(value, bool) or not isinstance(value, Real) else float(value)
        if number is None or not self.least <= number <= self.most or (self.is_whole and not number.is_integer()):
            kind = "whole number" if self.is_whole else "number"
            raise FhirGymError(f"dial {name} must be a {kind} from {self.least:g} to {self.most:g}, not {value!r}")
        return float(f"{number:.6g}")


def checked_dials(key: str, dials: Mapping[str, Dial], values: Mapping[str, object]) -> dict[str, float]:
    """Return the values that differ from the usual ones, in the order of the dials.

    Args:
        key: Key of the task, for error messages.
        dials: The dials of the task.
        values: The values by the names of dials.

    Raises:
        UnknownNameError: The task has no such dial.
        FhirGymError: A value is not possible.
    """
    for name in values:
        if name not in dials:
            raise UnknownNameError(f"dial of task {key}", name, dials)
    found = {name: dial.checked(name, values[name]) for name, dial in dials.items() if name in values}
    return {name: value for name, value in found.items() if value != dials[name].usual}


def key_with_dials(key: str, values: Mapping[str, float]) -> str:
    """Return the key of a task with values of dials, such as ``day-3+minutes=60``."""
    return _SEPARATOR.join([key, *(f"{name}{_EQUALS}{value:.6g}" for name, value in values.items())])


def split_key(key: str) -> tuple[str, dict[str, object]]:
    """Split a key with dials into the key of the task and the values of the dials. A text is no valid value."""
    task, *settings = key.split(_SEPARATOR)
    pairs = (setting.partition(_EQUALS) for setting in settings)
    return task, {name: _number(text) for name, _, text in pairs}


def _number(text: str) -> object:
    """Return the number that a text means; the text itself if it means none."""
    try:
        return float(text)
    except ValueError:
        return text
