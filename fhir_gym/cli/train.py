"""The commands `fhir-gym train …`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from fhir_gym.cli._console import note, progress

app = typer.Typer(
    no_args_is_help=True,
    help="Train a policy or a language model, with checkpoints and a report.\n\n"
    "A killed run continues from its last checkpoint when the same command runs again.",
)

ConfigOption = Annotated[
    Path, typer.Option("--config", metavar="FILE.toml", help="The recipe's settings; see docs/training.md.")
]
OutOption = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Folder of the run: checkpoints, metrics, model and report.")
]
SeedOption = Annotated[int | None, typer.Option("--seed", min=0, help="Seed; it replaces the seed in the config.")]


@app.command("sb3")
def sb3(config: ConfigOption, out: OutOption, seed: SeedOption = None) -> None:
    """Train a policy over a menu of actions with Stable-Baselines3 (extra sb3).

    Example: fhir-gym train sb3 --config sb3.toml --out runs/sb3
    """
    _train("sb3", config, out, seed)


@app.command("sft")
def sft(config: ConfigOption, out: OutOption, seed: SeedOption = None) -> None:
    """Fine-tune a language model on successful episodes (extras local and train).

    Example: fhir-gym train sft --config sft.toml --out runs/sft
    """
    _train("sft", config, out, seed)


@app.command("expert")
def expert(config: ConfigOption, out: OutOption, seed: SeedOption = None) -> None:
    """Improve a language model by expert iteration: fine-tune it on its own successes (extras local and train).

    Example: fhir-gym train expert --config expert.toml --out runs/expert
    """
    _train("expert", config, out, seed)


@app.command("grpo")
def grpo(config: ConfigOption, out: OutOption, seed: SeedOption = None) -> None:
    """Train a language model by reinforcement learning with TRL's GRPO (extras local and train).

    Example: fhir-gym train grpo --config grpo.toml --out runs/grpo
    """
    _train("grpo", config, out, seed)


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


def _train(recipe: str, config: Path, out: Path, seed: int | None) -> None:
    """Run a recipe with a progress bar."""
    from fhir_gym.training.config import load_config

    module = import_module(f"fhir_gym.training.{recipe}")
    kind: Any = getattr(module, f"{recipe.capitalize()}Config")
    train: Callable[..., None] = getattr(module, f"train_{recipe}")
    changes = {} if seed is None else {"seed": seed}
    settings = load_config(config, kind, **changes)
    with progress(f"Training ({recipe})") as update:
        train(settings, out, progress=update)
    note(f"report written to {out / 'report.md'}")
