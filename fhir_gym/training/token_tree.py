"""Episodes as sequences of tokens, and a group as one tree of tokens, which computes what they share once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fhir_gym.errors import TrainingError
from fhir_gym.rollouts import Rollout

MOST_NODES = 1_024
"""Number of tokens of the largest tree; a larger one would need several gigabytes in an update."""


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """An episode as one token sequence.

    Attributes:
        prompt_ids: The tokens before the model's first reply.
        completion_ids: The model's replies, and the tokens that it read between them.
        mask: For each token of `completion_ids`, 1 if the model wrote the token, and 0 if it only read the token.
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    mask: list[int]

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)

    @classmethod
    def of(cls, rollout: Rollout, padding: int) -> Self:
        """Return the tokens that a rollout of a `LocalAgent` has recorded.

        Args:
            rollout: The rollout.
            padding: Token that stands for the sequence of an episode without a reply; its mask is 0.

        Raises:
            TrainingError: The chat template changes earlier messages, so the model did not read one growing sequence.
        """
        prompt: list[int] = []
        completion: list[int] = []
        mask: list[int] = []
        for turn in rollout.turns:
            if turn.reply is None:  # a further action of the same reply
                continue
            extra: Any = turn.reply.extra
            read, wrote = extra["prompt_ids"], extra["completion_ids"]
            if extra.get("restart"):
                raise TrainingError(
                    "the chat template changes earlier messages, so the tokens of an episode are not one sequence; "
                    "use a template that keeps them, such as TRL's training template of the model"
                )
            if not mask:
                prompt, read = list(read), []
            completion += [*read, *wrote]
            mask += [0] * len(read) + [1] * len(wrote)
        return cls(prompt, completion, mask) if mask else cls([padding], [padding], [0])


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Token sequences with their common beginnings merged.

    Each node is a token. A node follows its parent, and a sequence is a path from the root. The members of a group
    read the same prompt and often write the same first action, so the tree has a fraction of their tokens. A token's
    probability depends on its ancestors only, so the gradient is that of the separate sequences.

    Attributes:
        ids: The token of each node.
        parents: The parent of each node; -1 for the root. Parents come before their children.
        weights: Sum of the advantages of the episodes that wrote the node's token. It is 0 for a token that all
            members of a group wrote, because the advantages of a group add up to 0.
        writers: Number of episodes in which the model wrote the node's token.
        tokens: Number of tokens of the separate sequences.

    Examples:
        >>> hello, world = (TokenSequence([1], [2, token], [1, 1]) for token in (3, 4))
        >>> tree = TokenTree.of([hello, world], [1.0, -1.0])
        >>> tree.ids, tree.parents, tree.weights, tree.writers, tree.tokens
        ([1, 2, 3, 4], [-1, 0, 1, 1], [0.0, 0.0, 1.0, -1.0], [0, 2, 1, 1], 6)
    """

    ids: list[int]
    parents: list[int]
    weights: list[float]
    writers: list[int]
    tokens: int

    @classmethod
    def of(cls, sequences: Sequence[TokenSequence], advantages: Sequence[float]) -> Self:
        """Merge the sequences of a group, which begin with the same token."""
        nodes: dict[tuple[int, int], int] = {}
        tree = cls([], [], [], [], sum(map(len, sequences)))
        for sequence, advantage in zip(sequences, advantages, strict=True):
            mask = [0] * len(sequence.prompt_ids) + sequence.mask
            parent = -1
            for token, is_written in zip(sequence.prompt_ids + sequence.completion_ids, mask, strict=True):
                node = nodes.setdefault((parent, token), len(tree.ids))
                if node == len(tree.ids):
                    tree.ids.append(token)
                    tree.parents.append(parent)
                    tree.weights.append(0.0)
                    tree.writers.append(0)
                tree.weights[node] += advantage * is_written
                tree.writers[node] += is_written
                parent = node
        return tree

    @classmethod
    def split(cls, sequences: Sequence[TokenSequence], advantages: Sequence[float], most: int) -> list[Self]:
        """Merge the sequences of a group into trees of at most `most` nodes, as far as a sequence is not longer.

        The memory of an update grows with the square of a tree's size. Half of the sequences go into each of two trees
        until the trees are small enough; the sum of their gradients is the same.
        """
        tree, half = cls.of(sequences, advantages), len(sequences) // 2
        if len(tree.ids) <= most or not half:
            return [tree]
        first = cls.split(sequences[:half], advantages[:half], most)
        return first + cls.split(sequences[half:], advantages[half:], most)

    def depths(self) -> list[int]:
        """Return the number of ancestors of each node, which is the token's position in its sequences."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return depths

    def visible(self) -> NDArray[np.bool_]:
        """Return for each pair of nodes whether the first attends to the second: itself and its ancestors."""
        visible = np.eye(len(self.ids), dtype=bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                visible[node] |= visible[parent]
        return visible

    @property
    def written(self) -> int:
        """Number of tokens that the model wrote, summed over the episodes."""
        return sum(self.writers)

    def learnt(self, smallest: float = 1e-6) -> list[int]:
        """Return the nodes that have a weight, apart from rounding errors."""
        return [node for node, weight in enumerate(self.weights) if abs(weight) > smallest]
