"""The command `fhir-gym memory show`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fhir_gym.arguments import require_name
from fhir_gym.cli._console import fields, print_json, print_text, table
from fhir_gym.cli._options import JsonOption

if TYPE_CHECKING:
    from fhir_gym.agents.memory import Memory, Reflection

app = typer.Typer(no_args_is_help=True, help="Show the reflections of a memory.")

_LARGE = 1_000


@app.command("show")
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A memory file.")],
    resource: Annotated[str | None, typer.Option(help="Only micro reflections about this resource type.")] = None,
    operation: Annotated[
        str | None, typer.Option(help="Only micro reflections about search, read, create, update or delete.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Only reflections from the task with this key.")] = None,
    query: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The macro reflections that an agent with this task would read.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the reflections of a memory as a table.

    Example: fhir-gym memory show memory.jsonl --resource Patient --operation search
    """
    from fhir_gym.agents.memory import Memory

    memory, only = Memory.load(file), _operation(operation)
    tasks = sorted({reflection.source.task for reflection in memory.reflections if reflection.source is not None})
    if task is not None:
        require_name("task of this memory", task, tasks)
    reflections = memory.reflections if query is None else [reflection for reflection, _ in memory.macro(query, _LARGE)]
    chosen = [reflection for reflection in reflections if _fits(reflection, resource, only, task)]
    if as_json:
        plain = [reflection.model_dump(mode="json", exclude_none=True) for reflection in chosen]
        print_json({"header": memory.header.model_dump(mode="json"), "reflections": plain})
        return
    _print_header(memory)
    print_text()
    table(
        ("kind", "about", "task", "outcome", "support", "text"),
        [
            (reflection.kind, _about(reflection), *_origin(reflection), reflection.support, reflection.text)
            for reflection in chosen
        ],
        title=f"{len(chosen)} of {len(memory.reflections)} reflections",
    )


def _operation(name: str | None) -> str | None:
    from fhir_gym.agents.memory import OPERATIONS, find_operation
    from fhir_gym.errors import UnknownNameError

    if name is None:
        return None
    operation = find_operation(name)
    if operation is None:
        raise UnknownNameError("operation", name, OPERATIONS)
    return operation


def _fits(reflection: Reflection, resource: str | None, operation: str | None, task: str | None) -> bool:
    return (
        resource in (None, reflection.resource_type)
        and operation in (None, reflection.operation)
        and (task is None or (reflection.source is not None and reflection.source.task == task))
    )


def _about(reflection: Reflection) -> str:
    return (
        f"{reflection.operation} {reflection.resource_type}"
        if reflection.kind == "micro"
        else str(reflection.situation)
    )


def _origin(reflection: Reflection) -> tuple[str, str]:
    if reflection.source is None:
        return "", ""
    source = reflection.source
    where = f"{source.env_id.rpartition('/')[2]} {source.task}, variation {source.variation}, trial {source.trial}"
    return where, "success" if source.success else "failure"


def _print_header(memory: Memory) -> None:
    header = memory.header
    counts = header.training.get("counts")
    shown = ", ".join(f"{name} {count}" for name, count in counts.items()) if isinstance(counts, dict) else ""
    pairs: list[tuple[str, object]] = [
        ("hash", memory.hash),
        ("embedder", f"{header.embedder.name} ({header.embedder.dimension} dimensions)"),
        ("models", ", ".join(f"{role} {name}" for role, name in header.models.items()) or "none"),
        ("specification", header.specification or "none"),
        ("training", shown or "none"),
    ]
    fields(pairs)
