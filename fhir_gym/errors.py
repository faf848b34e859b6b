"""The exceptions of this package; all derive from `FhirGymError`.

An agent's mistakes are never exceptions: the agent reads a FHIR OperationOutcome or an explanation instead
(`Session.handle` converts every `fhir_gym.fhir.outcome.FhirError` to a response).
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

__all__ = [
    "AgentError",
    "EndpointError",
    "FhirGymError",
    "InfraError",
    "MissingExtraError",
    "PluginError",
    "PluginWarning",
    "RecordError",
    "TaskError",
    "TrainingError",
    "UnknownNameError",
    "WorldError",
    "WrongTypeError",
    "describe_type",
    "in_one_line",
]


_SIMILAR = 0.5
"""Minimum similarity, from 0 to 1, at which the message suggests a name."""
_MAX_LENGTH = 100
"""Maximum number of a name's characters that are compared and shown."""


class FhirGymError(Exception):
    """Base class of this package's errors."""


class UnknownNameError(FhirGymError, ValueError):
    """A name of a task, world, split, agent or option does not exist; the message suggests the most similar one.

    Args:
        kind: Kind of name in words (``"task"``, ``"world"``).
        name: The unknown name.
        known: The names that exist.
    """

    def __init__(self, kind: str, name: object, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, tuple(known)
        given = str(name)[:_MAX_LENGTH]
        near = max(self.known, key=lambda one: SequenceMatcher(None, one, given).ratio(), default="")
        close = SequenceMatcher(None, near, given).ratio() >= _SIMILAR
        hint = f"; did you mean {near!r}?" if near and close else "."  # the first of equally similar names
        listed = ", ".join(self.known[:60]) + (" …" if len(self.known) > 60 else "")
        shown = repr(name) if len(str(name)) <= _MAX_LENGTH else f"{given!r} …"
        super().__init__(f"unknown {kind} {shown}{hint} Known: {listed or 'none'}")

    def __reduce__(self) -> tuple[type[UnknownNameError], tuple[str, object, tuple[str, ...]]]:
        """Pickle the constructor's arguments, so that workers can send the error to their parent."""
        return type(self), (self.kind, self.name, self.known)


class WrongTypeError(FhirGymError, TypeError):
    """A value has the wrong type: None as an action, or a class in place of an agent."""


class AgentError(FhirGymError):
    """An agent's own code raised an exception, available as `__cause__`; the message names the episode."""


class WorldError(FhirGymError):
    """A world cannot be built, opened or read."""


class TaskError(FhirGymError):
    """A task is defined wrongly or does not fit the world."""


class RecordError(FhirGymError):
    """A rollout record cannot be read or written."""


class TrainingError(FhirGymError):
    """A training config is wrong, or does not fit the run folder or the recipe."""


class PluginError(FhirGymError):
    """A plugin of another distribution, or a module that the user named, cannot be used."""


class PluginWarning(UserWarning):
    """An installed plugin cannot be used; everything else works."""


class MissingExtraError(FhirGymError, ImportError):
    """An optional dependency is not installed; the message names the pip command."""


class InfraError(FhirGymError):
    """The environment itself failed, for example because a remote server is down; the episode has no reward."""


class EndpointError(FhirGymError):
    """A model's endpoint is misconfigured (URL, key, model name or a setting), so every episode would fail."""


def in_one_line(error: BaseException) -> str:
    """Return the type and the message of an exception on one line, for quoting in another error."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def describe_type(value: object) -> str:
    """Return a value's type in words, for an error message about a wrong type."""
    return "None" if value is None else f"a value of type {type(value).__name__}"
