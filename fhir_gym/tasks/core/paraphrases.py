"""The paraphrases of a pack's prompts, from a file of the pack: some for training, the others for testing."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from fhir_gym.errors import TaskError, in_one_line
from fhir_gym.tasks.core.ids import seeded_random
from fhir_gym.tasks.core.splits import split_of


class Paraphrases(BaseModel):
    """Wordings of a task's request, with the placeholders of its prompts.

    Attributes:
        train: The wordings for training variations.
        test: The wordings for test variations.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    train: tuple[str, ...] = Field(min_length=1)
    test: tuple[str, ...] = Field(min_length=1)

    def place(self, k: int, key: str) -> int:
        """Return the place of variation `k`'s wording among all wordings, the training wordings first.

        The variations of a split use its wordings in turn, in an order that is random for each task.

        Args:
            k: Number of the variation.
            key: Key of the task. A changed copy of a pack has the same keys, so it uses the same wordings.
        """
        split, count = split_of(k), len(self.train)
        places: list[int] = [*range(count)] if split == "train" else [*range(count, count + len(self.test))]
        seeded_random("paraphrases", key, split).shuffle(places)
        return places[k % len(places)]


NO_PARAPHRASES = Paraphrases.model_construct(train=(), test=())
"""The paraphrases of a task that has none."""


@cache
def read_paraphrases(path: Path) -> Mapping[str, Paraphrases]:
    """Read the paraphrases of each task from a TOML file.

    Each table has the keys of one or several tasks as its name, and the lists ``train`` and ``test``.

    Raises:
        TaskError: The file is missing, or is not such a file.
    """
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
        paraphrases = {keys: Paraphrases.model_validate(table) for keys, table in tables.items()}
    except (OSError, ValueError) as error:
        raise TaskError(f"the paraphrases in {path} cannot be read: {in_one_line(error)}") from error
    return {key: wordings for keys, wordings in paraphrases.items() for key in keys.split()}
