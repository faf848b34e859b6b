"""The training and test splits, as ranges of variation numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from fhir_gym.arguments import require_name

Half = Literal["train", "test"]
Split = Literal["train", "test", "heldout_tasks"]
"""Name of a split: a range of variation numbers."""
DEFAULT_SPLIT: Split = "train"
"""The default split is the training split, so that nobody trains on test variations by mistake."""
TEST_START = 1_000
"""Lower variation numbers are for training, this number and higher numbers for testing."""
SPLITS: Mapping[str, range] = {
    "train": range(TEST_START),
    "test": range(TEST_START, 2 * TEST_START),
    "heldout_tasks": range(TEST_START, 2 * TEST_START),
}
"""The variation numbers of each split. The split ``heldout_tasks`` contains only the pack's held-out tasks."""


def split_of(number: int) -> Half:
    """Return whether a variation number is for training or for testing."""
    return "train" if number < TEST_START else "test"


def split_numbers(split: str | None) -> range:
    """Return the variation numbers of a split, or of all splits if `split` is None.

    Raises:
        UnknownNameError: There is no such split.
    """
    if split is None:
        return range(SPLITS["train"].start, SPLITS["test"].stop)
    return SPLITS[require_name("split", split, SPLITS)]
