"""Read the task files of benchmarks. A task file is a JSON list of cases, each with an id."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from fhir_gym.errors import TaskError
from fhir_gym.types import Json


class _Named(Protocol):
    @property
    def id(self) -> str: ...


C = TypeVar("C", bound=_Named)


def read_list(path: str | Path, cases: TypeAdapter[tuple[C, ...]], what: str) -> tuple[C, ...]:
    """Read the cases of a task file in order.

    Args:
        path: The file.
        cases: Type adapter that validates the cases.
        what: Name of the file type, for error messages.

    Raises:
        TaskError: The file cannot be read, has another form, contains no case, or repeats an id.
    """
    items = read_json(path)
    if not isinstance(items, list):
        raise TaskError(f"{path} is not a {what}: it must be a JSON list")
    try:
        read = cases.validate_python(items)
    except ValidationError as error:
        first = error.errors()[0]
        raise TaskError(f"{path} is not a {what}: {first['msg']} at {'.'.join(map(str, first['loc']))}") from error
    if not read:
        raise TaskError(f"{path} holds no tasks")
    ids: set[str] = set()
    for case in read:
        if case.id in ids:
            raise TaskError(f"{path} has two tasks with the id {case.id!r}")
        ids.add(case.id)
    return read


def read_json(path: str | Path) -> Json:
    """Parse a JSON file.

    Raises:
        TaskError: The file cannot be read or is not valid JSON.
    """
    try:
        return orjson.loads(Path(path).expanduser().read_bytes())
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise TaskError(f"{path} is not JSON: {error}") from error
