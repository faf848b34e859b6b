"""The commands `fhir-gym train …`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fhir_gym.cli._console import note, progress, table
from fhir_gym.cli._options import BaseUrlOption, names

if TYPE_CHECKING:
    from fhir_gym.reflexion import MemoryTrainingConfig
    from fhir_gym.training.tuner import ModelConfig

_HEAVY = {
    "sb3": ("fhir_gym.training.sb3_run",),
    "sft": ("torch", "transformers"),
    "expert": ("torch", "transformers"),
    "grpo": ("torch", "transformers", "trl"),
}
"""Modules whose import takes seconds, by recipe."""

app = typer.Typer(
    no_args_is_help=True,
    help="Train a policy, a language model or a memory, with checkpoints and a report.\n\n"
    "A killed run continues from its last checkpoint when the same command runs again.",
)

ConfigOption = Annotated[
    Path, typer.Option("--config", metavar="FILE.toml", help="The recipe's settings; see docs/training.md.")
]
OutOption = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Folder of the run: checkpoints, metrics, model and report.")
]
SeedOption = Annotated[int | None, typer.Option("--seed", min=0, help="Seed; it replaces the seed in the config.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print tasks, episodes and an estimate of the memory; train nothing.")
]


@app.command("sb3")
def sb3(config: ConfigOption, out: OutOption, seed: SeedOption = None) -> None:
    """Train a policy over a menu of actions with Stable-Baselines3 (extra sb3).

    Example: fhir-gym train sb3 --config sb3.toml --out runs/sb3
    """
    _train("sb3", config, out, seed)


@app.command("sft")
def sft(config: ConfigOption, out: OutOption, seed: SeedOption = None, dry_run: DryRunOption = False) -> None:
    """Fine-tune a language model on successful episodes (extras local and train).

    Example: fhir-gym train sft --config sft.toml --out runs/sft
    """
    _train("sft", config, out, seed, dry_run)


@app.command("expert")
def expert(config: ConfigOption, out: OutOption, seed: SeedOption = None, dry_run: DryRunOption = False) -> None:
    """Improve a language model by expert iteration: fine-tune it on its own successes (extras local and train).

    Example: fhir-gym train expert --config expert.toml --out runs/expert
    """
    _train("expert", config, out, seed, dry_run)


@app.command("grpo")
def grpo(config: ConfigOption, out: OutOption, seed: SeedOption = None, dry_run: DryRunOption = False) -> None:
    """Train a language model by reinforcement learning with TRL's GRPO (extras local and train).

    Example: fhir-gym train grpo --config grpo.toml --out runs/grpo
    """
    _train("grpo", config, out, seed, dry_run)


@app.command("memory")
def memory(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The memory file, in JSON lines.")],
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE.toml", help="All settings; see docs/memory.md.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model of the agent, the evaluator and the reflector.")] = None,
    base_url: BaseUrlOption = None,
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

    A killed training continues when the same command runs again; nothing is paid for twice.

    Example: fhir-gym train memory --model qwen3 --base-url http://localhost:8000/v1 --out memory.jsonl
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
    settings = _memory_settings(
        config, model, base_url, {name: value for name, value in options.items() if value is not None}
    )
    kept = f"{out}.training keeps the finished episodes and replies"
    with _interruptible(kept), progress("Training the memory", lines=True) as update:
        trained = train_memory(settings, out, progress=update)
    spent = sum(usage.total for usage in training_usage(out).values())
    counts = trained.header.training["counts"]
    note(
        f"{out}: {len(trained.reflections)} reflections from {counts['runs']} runs, {counts['successes']} of them "
        f"successful; {spent:,} tokens"
    )
    unreadable = counts.get("unreadable critiques", 0) + counts.get("unreadable reflections", 0)
    if unreadable:
        note(f"{unreadable} reviews have no readable answer: read them in {out}.training/replies.jsonl", style="yellow")


@app.command("report")
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR ...", help="Folders of training runs.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder for the report; default: the first run folder.")
    ] = None,
) -> None:
    """Write report.md, report.json and the plots of one run or of several runs.

    Runs that differ only in their seed are pooled; other runs are compared.

    Example: fhir-gym train report runs/expert-0 runs/expert-1 runs/sft --out report
    """
    from fhir_gym.training.report import write_report

    note(f"report written to {write_report(folders, out)}")


def _train(recipe: str, config: Path, out: Path, seed: int | None, dry_run: bool = False) -> None:
    """Run a recipe, and show how far it is; in a dry run, only say what it would need."""
    from fhir_gym.training.config import load_config

    module = import_module(f"fhir_gym.training.{recipe}")
    kind: Any = getattr(module, f"{recipe.capitalize()}Config")
    train: Callable[..., None] = getattr(module, f"train_{recipe}")
    changes = {} if seed is None else {"seed": seed}
    settings = load_config(config, kind, **changes)
    _import(_HEAVY[recipe])
    if dry_run:
        _print_needs(settings)
        return
    with _interruptible(f"{out} keeps the checkpoints"), progress(f"Training ({recipe})", lines=True) as update:
        train(settings, out, progress=update)
    note(f"report written to {out / 'report.md'}")


def _print_needs(settings: ModelConfig) -> None:
    from fhir_gym.training.memory_estimate import memory_estimate

    rows = [
        (
            "training tasks",
            ", ".join(f"{name.env_id.rpartition('/')[2]}/{name.task}" for name in settings.train_tasks()),
        ),
        ("training variations of a task", len(settings.train_variations)),
        ("episodes of an evaluation", len(settings.train_tasks()) * len(settings.test_variations)),
    ]
    needs = memory_estimate(settings)
    gigabytes = [*needs.items(), ("together", sum(needs.values()))]
    rows += [(f"memory: {purpose}", f"{size / 1e9:.2f} GB") for purpose, size in gigabytes]
    table(["what", "how much"], rows)


def _import(names: Iterable[str]) -> None:
    """Import modules. Ctrl-C ends the process at once, because some of these modules catch KeyboardInterrupt."""

    def leave(*_: object) -> None:
        note("interrupted before the training started")
        os._exit(130)

    before = signal.signal(signal.SIGINT, leave)
    try:
        for name in names:
            with suppress(ImportError):  # the recipe says what is missing
                import_module(name)
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _interruptible(kept: str) -> Iterator[None]:
    """Say after Ctrl-C what is kept, and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"interrupted: {kept}; the same command continues from the last of them")
        raise typer.Exit(130) from None


def _memory_settings(
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
