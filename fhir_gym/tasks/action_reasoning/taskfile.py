"""Task files: a JSON list of cases in the form of the paper's figure 2."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import orjson
from pydantic import TypeAdapter, ValidationError

from fhir_gym.errors import TaskError
from fhir_gym.tasks.action_reasoning.cases import Case

__all__ = ["read_cases", "write_cases"]

_CASES = TypeAdapter(tuple[Case, ...])
_OURS = "fhir_gym"


def read_cases(path: str | Path) -> tuple[Case, ...]:
    """The cases of a file, in its order.

    Raises:
        TaskError: It cannot be read, or is no such file.
    """
    try:
        cases = _CASES.validate_python(orjson.loads(Path(path).expanduser().read_bytes()))
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise TaskError(f"{path} is not JSON: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise TaskError(f"{path} is no file of such tasks: {first['msg']} at {where or 'the top'}") from error
    ids: set[str] = set()
    for case in cases:
        if case.id in ids:
            raise TaskError(f"{path} has two tasks {case.id!r}")
        ids.add(case.id)
    if not cases:
        raise TaskError(f"{path} holds no tasks")
    return cases


def write_cases(path: str | Path, cases: Iterable[Case]) -> None:
    """Write cases in the order of the paper's keys; the same cases, the same bytes.

    Raises:
        TaskError: It cannot be written.
    """
    plain = [case.model_dump(mode="json", by_alias=True) for case in cases]
    for one in plain:
        if one[_OURS] is None:  # a case that others made keeps their form
            del one[_OURS]
    try:
        Path(path).expanduser().write_bytes(orjson.dumps(plain, option=orjson.OPT_INDENT_2) + b"\n")
    except OSError as error:
        raise TaskError(f"{path} cannot be written: {error.strerror}") from error
