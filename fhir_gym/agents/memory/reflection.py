"""Reflections: short lessons from earlier episodes, with their provenance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fhir_gym.types import Phrasing

Operation = Literal["search", "read", "create", "update", "delete"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
"""Operations on resources that micro reflections are about."""
_SYNONYMS: Mapping[str, Operation] = {
    "searchresources": "search",
    "getresourcebyid": "read",
    "createresource": "create",
    "updateresource": "update",
    "deleteresource": "delete",
    "get": "read",
    "post": "create",
    "put": "update",
    "patch": "update",
}


def find_operation(name: str) -> Operation | None:
    """Return the operation that a name means; None for an unknown name.

    The names of the FHIR tools (``createResource``) and HTTP verbs are accepted too.

    Examples:
        >>> find_operation("searchResources")
        'search'
    """
    key = name.strip().casefold()
    operations: Mapping[str, Operation] = {operation: operation for operation in OPERATIONS}
    return operations.get(key) or _SYNONYMS.get(key)


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Provenance(_Data):
    """The training episode that a reflection comes from.

    Attributes:
        env_id: Env id of the pack.
        task: Key of the task.
        variation: Number of the training variation.
        phrasing: Index of the prompt, or ``brief``.
        trial: Number of the trial, from 1.
        success: Whether the episode succeeded.
    """

    env_id: str
    task: str
    variation: int
    phrasing: Phrasing
    trial: int
    success: bool


class Reflection(_Data):
    """A lesson from training.

    A micro reflection is about one operation on one resource type. A macro reflection is about a kind of task.

    Attributes:
        kind: ``micro`` or ``macro``.
        text: The lesson.
        resource_type: Resource type of a micro reflection.
        operation: One of `OPERATIONS`, for a micro reflection.
        situation: The request that a macro reflection is about, without instance data. Retrieval compares it with the
            agent's task.
        source: The training episode; None for a reflection that a person wrote.
        support: Number of equal or nearly equal reflections that this one stands for.
    """

    kind: Literal["micro", "macro"]
    text: str = Field(min_length=1)
    resource_type: str | None = None
    operation: Operation | None = None
    situation: str | None = None
    source: Provenance | None = None
    support: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Require exactly the fields of the kind."""
        micro = (self.resource_type is not None, self.operation is not None)
        if self.kind == "micro" and (not all(micro) or self.situation is not None):
            raise ValueError("a micro reflection has a resource_type and an operation, and no situation")
        if self.kind == "macro" and (any(micro) or not self.situation):
            raise ValueError("a macro reflection has a situation, and neither resource_type nor operation")
        return self
