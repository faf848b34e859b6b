"""Read and write task files: JSON lists of cases in the format of the paper's figure 2."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import orjson
from pydantic import TypeAdapter

from fhir_gym.errors import TaskError
from fhir_gym.files import write_file
from fhir_gym.tasks.core.task_file import read_list
from fhir_gym.tasks.packs.action_reasoning.cases import ReasoningCase

_CASES = TypeAdapter(tuple[ReasoningCase, ...])
_OURS = "fhir_gym"


def read_cases(path: str | Path) -> tuple[ReasoningCase, ...]:
    """Read the cases of a file, in file order.

    Raises:
        TaskError: The file is not readable or not a task file.
    """
    return read_list(path, _CASES, "task file of this pack")


def write_cases(path: str | Path, cases: Iterable[ReasoningCase]) -> None:
    """Write cases to a file atomically, creating its folder if needed.

    Raises:
        TaskError: The file is not writable.
    """
    write_file(Path(path), dumped(cases), TaskError)


def dumped(cases: Iterable[ReasoningCase]) -> bytes:
    """Serialise cases to the bytes of a task file, with keys in the paper's order; equal cases give equal bytes."""
    plain = [case.model_dump(mode="json", by_alias=True) for case in cases]
    for resource in plain:
        if resource[_OURS] is None:  # external cases have no specification
            del resource[_OURS]
    return orjson.dumps(plain, option=orjson.OPT_INDENT_2) + b"\n"
