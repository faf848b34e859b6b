"""The exceptions of this package. All exceptions derive from `FhirGymError`.

Mistakes of an agent never raise an exception to the caller. The agent reads a FHIR OperationOutcome or an explanation
instead: `Session.handle` converts every `fhir_gym.fhir.outcome.FhirError` to a response.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import SequenceMatcher

__all__ = [
    "AgentError",
    "ArgumentError",
    "EndpointError",
    "ExperimentError",
    "FhirGymError",
    "FhirServerError",
    "InfraError",
    "MemoryFileError",
    "MissingExtraError",
    "PluginError",
    "PluginWarning",
    "RecordError",
    "TaskError",
    "TrainingBudgetError",
    "TrainingError",
    "UnknownNameError",
    "WorldError",
    "WrongTypeError",
    "describe_type",
    "in_one_line",
    "missing_extra",
    "pip_install",
]


_SIMILAR = 0.5
"""Minimum similarity, from 0 to 1, of a name that the error message suggests."""
_MAX_LENGTH = 100
"""Maximum number of characters of a name that are compared and shown."""


_DISTRIBUTION = "."
"""What pip installs: the clone, in which the command runs. From the first release on, it is ``fhir-gym``."""


class FhirGymError(Exception):
    """Base class of this package's errors."""


class ArgumentError(FhirGymError):
    """An argument, an option or a field of a settings file is invalid, whatever files and servers there are."""


class UnknownNameError(ArgumentError, ValueError):
    """A name of a task, world, split, agent or option does not exist. The message suggests the most similar name.

    Args:
        kind: What the name refers to (``"task"``, ``"world"``).
        names: The names that exist.
    """

    def __init__(self, kind: str, name: object, names: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, tuple(names)
        text = str(name)[:_MAX_LENGTH]
        near = max(self.known, key=lambda known_name: SequenceMatcher(None, known_name, text).ratio(), default="")
        close = SequenceMatcher(None, near, text).ratio() >= _SIMILAR
        hint = f"; did you mean {near!r}?" if near and close else "."  # among equally similar names, the first one
        listed = ", ".join(self.known[:60]) + (" …" if len(self.known) > 60 else "")
        shown = repr(name) if len(str(name)) <= _MAX_LENGTH else f"{text!r} …"
        super().__init__(f"unknown {kind} {shown}{hint} Known: {listed or 'none'}")

    def __reduce__(self) -> tuple[type[UnknownNameError], tuple[str, object, tuple[str, ...]]]:
        """Pickle the constructor's arguments, so that a worker process can send the error to its parent."""
        return type(self), (self.kind, self.name, self.known)


class WrongTypeError(ArgumentError, TypeError):
    """A value has the wrong type, such as None as an action or a class as an agent."""


class AgentError(FhirGymError):
    """An agent's own code raised an exception, which is the `__cause__`. The message names the episode."""


class WorldError(FhirGymError):
    """A world cannot be built, opened or read."""


class TaskError(FhirGymError):
    """A task has an error in its definition, or does not fit the world."""


class RecordError(FhirGymError):
    """A rollout record cannot be read or written."""


class MemoryFileError(FhirGymError):
    """A memory file cannot be read or written, or was made with another embedder."""


class TrainingError(FhirGymError):
    """A training cannot start or continue: its config does not fit the run folder, or its data cannot be used."""


class ExperimentError(FhirGymError):
    """An experiment's folder cannot be used, or does not fit the settings."""


class TrainingBudgetError(TrainingError):
    """The budget of a training is spent. The work so far is kept, so the training can continue with a larger budget."""


class PluginError(FhirGymError):
    """A plugin of another distribution, or a module that the user named, cannot be used."""


class PluginWarning(UserWarning):
    """An installed plugin cannot be used. Everything else works."""


class MissingExtraError(FhirGymError, ImportError):
    """An optional dependency is not installed. The message contains the pip command that installs it."""


class InfraError(FhirGymError):
    """The environment itself failed, for example because a remote server is down. The episode has no reward."""


class FhirServerError(InfraError):
    """A running FHIR server failed, or its state is unknown. Another server may still work."""


class EndpointError(FhirGymError):
    """A model's endpoint is misconfigured (URL, key, model name or a setting), so every episode would fail."""


@contextmanager
def missing_extra(message: str) -> Iterator[None]:
    """Raise `MissingExtraError` with a message if an import in the body fails."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(message) from error


def pip_install(extras: str) -> str:
    """Return the command that installs extras, such as ``"local,train"``, for the message of `MissingExtraError`."""
    where = " in the clone of fhir_gym" if _DISTRIBUTION == "." else ""
    return f"pip install '{_DISTRIBUTION}[{extras}]'{where}"


def in_one_line(error: BaseException) -> str:
    """Return the type and message of an exception as one line, so that another error can quote it."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def describe_type(value: object) -> str:
    """Return a description of a value's type for an error message."""
    return "None" if value is None else f"a value of type {type(value).__name__}"
