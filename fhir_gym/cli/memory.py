"""The commands `fhir-gym memory …`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fhir_gym.cli._console import fields, note, print_json, print_text, progress, table
from fhir_gym.cli._options import JsonOption, names

if TYPE_CHECKING:
    from fhir_gym.agents.memory import Memory, Reflection
    from fhir_gym.reflexion import MemoryTrainingConfig

app = typer.Typer(
    no_args_is_help=True,
    help="Train a memory of reflections, or show one.\n\n"
    "A killed training continues when the same command runs again; nothing is paid for twice.",
)

_LARGE = 1_000


@app.command("train")
def train(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The memory file, in JSON lines.")],
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE.toml", help="All settings; see docs/memory.md.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model of the agent, the evaluator and the reflector.")] = None,
    base_url: Annotated[str | None, typer.Option(help="The models' OpenAI-compatible endpoint.")] = None,
    env_ids: Annotated[str | None, typer.Option("--env-ids", help="Env ids, separated by commas.")] = None,
    tasks: Annotated[str | None, typer.Option(help="Keys of tasks, separated by commas; default: all.")] = None,
    variations: Annotated[str | None, typer.Option(help="Training variations of each task; default: 0-1.")] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Maximum number of trials of a variation.")] = None,
    specification: Annotated[
        bool | None,
        typer.Option("--specification/--no-specification", help="Let the reflector look up the FHIR specification."),
    ] = None,
    embedder: Annotated[str | None, typer.Option(help="hashed, minilm or endpoint.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Number of concurrent episodes and reviews.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Stop after this many tokens of all models.")] = None,
) -> None:
    """Train a memory: an agent plays training episodes, and models write reflections about its runs (extra llm).

    Example: fhir-gym memory train --model qwen3 --base-url http://localhost:8000/v1 --out memory.jsonl
    """
    from fhir_gym.reflexion import train_memory, training_usage

    options: dict[str, Any] = {
        "env_ids": names(env_ids),
        "tasks": names(tasks),
        "variations": variations,
        "trials": trials,
        "specification": specification,
        "embedder": embedder,
        "concurrency": concurrency,
        "tokens": max_tokens,
    }
    settings = _settings(config, model, base_url, {name: value for name, value in options.items() if value is not None})
    with progress("Training the memory") as update:
        memory = train_memory(settings, out, progress=update)
    spent = sum(usage.total for usage in training_usage(out).values())
    counts = memory.header.training["counts"]
    note(
        f"{out}: {len(memory.reflections)} reflections from {counts['runs']} runs, {counts['successes']} of them "
        f"successful; {spent:,} tokens"
    )
    unreadable = counts.get("unreadable critiques", 0) + counts.get("unreadable reflections", 0)
    if unreadable:
        note(f"{unreadable} reviews have no readable answer: read them in {out}.training/replies.jsonl", style="yellow")


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

    memory = Memory.load(file)
    reflections = memory.reflections if query is None else [reflection for reflection, _ in memory.macro(query, _LARGE)]
    chosen = [reflection for reflection in reflections if _fits(reflection, resource, _operation(operation), task)]
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


def _settings(
    config: Path | None, model: str | None, base_url: str | None, changes: dict[str, Any]
) -> MemoryTrainingConfig:
    from fhir_gym.reflexion import load_memory_config, make_memory_config

    if config is None:
        if model is None:
            raise typer.BadParameter("give --model, or --config with all settings")
        return make_memory_config({**changes, "agent": {"model": model, "base_url": base_url}}, "options")
    if model is not None or base_url is not None:
        raise typer.BadParameter("--config names the models, so leave out --model and --base-url")
    return load_memory_config(config, **changes)


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
