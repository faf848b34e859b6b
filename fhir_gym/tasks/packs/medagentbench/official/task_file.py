"""Read the benchmark's own task files, which the user supplies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from fhir_gym.errors import TaskError
from fhir_gym.tasks.core.task_file import read_json, read_list
from fhir_gym.types import Json

CLASSES = tuple(f"task{number}" for number in range(1, 11))
_TRAINING = "train_"


class OfficialCase(BaseModel):
    """One task of a task file.

    Attributes:
        id: Id of the task, such as ``task5_21`` or ``train_task5_21``.
        instruction: The clinician's request.
        context: Additional facts, such as the current time, codes and dosing instructions.
        sol: The expected answer; files state it only for the first task class.
        eval_MRN: The patient's record number; None if the right answer is that no patient matches.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    id: str
    instruction: str
    context: str = ""
    sol: list[Json] | None = None
    eval_MRN: str | None = None

    @property
    def kind(self) -> str:
        """The task class, ``task1`` to ``task10``."""
        return self.id.removeprefix(_TRAINING).partition("_")[0]


_CASES = TypeAdapter(tuple[OfficialCase, ...])


def read_cases(path: str | Path) -> tuple[OfficialCase, ...]:
    """Read the tasks of a file, in file order.

    Raises:
        TaskError: The file is not readable or not a task file.
    """
    cases = read_list(path, _CASES, "MedAgentBench task file")
    for case in cases:
        if case.kind not in CLASSES:
            raise TaskError(f"{path}: the task id {case.id!r} does not start with one of {', '.join(CLASSES)}")
    return cases


def read_functions(path: str | Path) -> list[dict[str, Any]]:
    """Read the list of functions that the benchmark's prompt shows.

    Raises:
        TaskError: The file is not readable, or is not a list of objects that have a name.
    """
    functions = read_json(path)
    if not isinstance(functions, list) or not all(
        isinstance(function, dict) and "name" in function for function in functions
    ):
        raise TaskError(f"{path} is not a MedAgentBench function file: it must be a list of objects with a name")
    return functions
