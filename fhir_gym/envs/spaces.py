"""A Gymnasium space of texts with a fast membership check."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from gymnasium.spaces import Space
from gymnasium.spaces.utils import flatdim, flatten, flatten_space
from gymnasium.vector.utils import create_shared_memory
from gymnasium.wrappers.utils import create_zero_array
from typing_extensions import override

from fhir_gym.errors import WrongTypeError

_TYPES = ("Appointment", "Condition", "Observation", "Patient", "Practitioner", "Schedule", "Slot")


class TextSpace(Space[str]):
    """All texts up to a maximum length, with any characters.

    Gymnasium's `Text` checks every character, which takes longer for large FHIR responses than the server's own work.
    `Text` samples random characters; this space samples valid actions.

    Args:
        max_length: Maximum number of characters.
        seed: Seed of `sample`.
    """

    def __init__(self, max_length: int, *, seed: int | np.random.Generator | None = None) -> None:
        self.max_length = max_length
        super().__init__(dtype=str, seed=seed)

    @property
    @override
    def is_np_flattenable(self) -> bool:
        return False

    @override
    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return a short, valid search action.

        Args:
            mask: Not supported.
            probability: Not supported.

        Raises:
            ValueError: A mask or probabilities were given.
        """
        if mask is not None or probability is not None:
            raise ValueError("a TextSpace supports neither mask nor probability")
        kind = _TYPES[int(self.np_random.integers(len(_TYPES)))]
        count = int(self.np_random.integers(1, 10))
        return f"GET /{kind}?_count={count}"

    @override
    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace) and self.max_length == other.max_length

    @override
    def __hash__(self) -> int:
        return hash((TextSpace, self.max_length))

    @override
    def __repr__(self) -> str:
        return f"TextSpace({self.max_length})"


def _refuse(function: Any, advice: str) -> None:
    """Make a space function of Gymnasium raise an error with advice if it gets a `TextSpace`."""

    def refused(space: TextSpace, *_: object, **__: object) -> NoReturn:
        raise WrongTypeError(f"observations are texts of any length up to {space.max_length:,} characters: {advice}")

    function.register(TextSpace, refused)


_NO_ARRAYS = "they have no array form. Keep the texts, for example as chat messages, or convert them to numbers with "
_TRANSFORM = "gymnasium.wrappers.TransformObservation first"
for _function in (flatdim, flatten, flatten_space, create_zero_array):
    _refuse(_function, _NO_ARRAYS + _TRANSFORM)
_refuse(
    create_shared_memory,
    "shared memory cannot hold them. Pass shared_memory=False to AsyncVectorEnv, or to make_vec "
    'vector_kwargs={"shared_memory": False}',
)
