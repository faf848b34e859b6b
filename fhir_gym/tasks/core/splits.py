"""The training and test splits, as ranges of variation numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from fhir_gym.arguments import require_name
from fhir_gym.errors import ArgumentError

TrainOrTest = Literal["train", "test"]
Split = Literal["train", "test", "heldout_tasks"]
"""Name of a split: a range of variation numbers."""
DEFAULT_SPLIT: Split = "train"
"""The default split is the training split, so that nobody trains on test variations by mistake."""
TEST_START = 1_000
"""Lower variation numbers are for training, this number and higher numbers for testing."""
VARIATIONS = range(2 * TEST_START)
"""The numbers of all variations of a task."""
SPLITS: Mapping[str, range] = {
    "train": VARIATIONS[:TEST_START],
    "test": VARIATIONS[TEST_START:],
    "heldout_tasks": VARIATIONS[TEST_START:],
}
"""The variation numbers of each split. The split ``heldout_tasks`` contains only the pack's held-out tasks."""


def split_of(number: int) -> TrainOrTest:
    """Return whether a variation number is for training or for testing."""
    return "train" if number < TEST_START else "test"


def split_numbers(split: str | None) -> range:
    """Return the variation numbers of a split, or of all splits if `split` is None.

    Raises:
        UnknownNameError: There is no such split.
    """
    return VARIATIONS if split is None else SPLITS[require_name("split", split, SPLITS)]


def require_variation(number: int, split: str | None = None) -> None:
    """Refuse a variation that does not exist or does not belong to a split.

    Raises:
        UnknownNameError: There is no such split.
        ArgumentError: The split does not contain the variation; without a split, the variation does not exist.
    """
    if number not in VARIATIONS:
        raise ArgumentError(
            f"variation {number} does not exist: variations are numbered from {VARIATIONS[0]} to {VARIATIONS[-1]}"
        )
    if number not in (allowed := split_numbers(split)):
        hint = "split=None admits all variations"
        if split == "train":
            hint = "test variations are never trained on; evaluate with split='test', or with None for both splits"
        raise ArgumentError(f"variation {number} is not in split {split!r} ({allowed[0]} to {allowed[-1]}): {hint}")
