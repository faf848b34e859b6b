"""The commands `fhir-gym experiment …`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fhir_gym.cli._console import note, print_json, print_text, progress, table
from fhir_gym.cli._options import (
    AGENT_SETTINGS,
    BaseUrlOption,
    ConcurrencyOption,
    JsonOption,
    MaxTokensOption,
    ModelOption,
    PacksOption,
    PriceOptions,
    SeedOption,
    SettingsOption,
    agent_settings,
    names,
    with_option_groups,
)
from fhir_gym.cli.report import report_experiments

if TYPE_CHECKING:
    from fhir_gym.experiments import ExperimentStatus, ModelPrices

app = typer.Typer(
    no_args_is_help=True,
    help="Repeat the experiments of FHIR-AgentEval with any model: train memories, test configurations.\n\n"
    "A killed experiment continues when the same command runs again.",
)

FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of an experiment.")]
PricesOption = Annotated[
    list[str] | None,
    typer.Option("--price", metavar="MODEL=IN,OUT", help="Prices of a model's million tokens; may be repeated."),
]


@app.command("list")
def list_experiments(as_json: JsonOption = False) -> None:
    """List FHIR-AgentEval's experiments and their numbers of training and test episodes.

    Example: fhir-gym experiment list --json
    """
    from fhir_gym import tasks

    experiments = list(tasks.EXPERIMENTS.values())
    if as_json:
        parts = ("train", "test")
        names_of = ("env", "task", "variation", "phrasing")
        episodes = {
            experiment.name: {
                part: [dict(zip(names_of, e, strict=True)) for e in getattr(experiment, part).episodes()]
                for part in parts
            }
            for experiment in experiments
        }
        print_json(
            [
                {
                    "name": experiment.name,
                    "about": experiment.about,
                    "repeats": experiment.repeats,
                    **episodes[experiment.name],
                }
                for experiment in experiments
            ]
        )
        return
    rows = [
        [
            experiment.name,
            experiment.about,
            *(f"{len(list(part.episodes()))}" for part in (experiment.train, experiment.test)),
            str(experiment.repeats),
        ]
        for experiment in experiments
    ]
    table(("name", "about", "train episodes", "test episodes", "test repeats"), rows)


@app.command("run")
@with_option_groups
def run(
    *,
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT", help="Name of an experiment; see `list`.")],
    model: ModelOption = None,
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent",  # before typer 0.28, this metavar alone would name the option --AGENT
            metavar="AGENT",
            help="Agent to test instead, such as your own as module:Class; it has no configurations.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the experiment.")],
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config", metavar="NAME", help="Configuration to test; may be repeated. Default: the paper's five."
        ),
    ] = None,
    base_url: BaseUrlOption = None,
    training_model: Annotated[
        str | None, typer.Option(help="Model of the agent in the memory's training; default: --model.")
    ] = None,
    evaluator_model: Annotated[
        str | None, typer.Option(help="Model that evaluates training episodes; default: --model.")
    ] = None,
    reflector_model: Annotated[
        str | None, typer.Option(help="Model that writes reflections; default: --model.")
    ] = None,
    training_base_url: Annotated[
        str | None, typer.Option(help="Endpoint of the training, evaluator and reflector models; default: --base-url.")
    ] = None,
    setting: SettingsOption = None,
    training_setting: Annotated[
        list[str] | None,
        typer.Option(
            "--training-set",
            metavar=AGENT_SETTINGS,
            help="Setting of the evaluator's and the reflector's model; may be repeated.",
        ),
    ] = None,
    embedder: Annotated[
        Literal["hashed", "minilm"], typer.Option(help="Embedder of the memory; minilm needs the extra memory.")
    ] = "hashed",
    pack: PacksOption = None,
    tasks: Annotated[str | None, typer.Option(help="Task keys separated by commas; default: all.")] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Number of runs of each test episode; default: 3.")] = None,
    grading: Annotated[
        Literal["state", "evidence"],
        typer.Option(help="What to grade. state: the end state and the answer; evidence: also the records read."),
    ] = "state",
    max_steps: Annotated[
        int | None, typer.Option(min=1, help="Number of actions after which an episode is truncated.")
    ] = None,
    seed: SeedOption = 0,
    concurrency: ConcurrencyOption = 8,
    max_tokens: MaxTokensOption = None,
    max_cost: Annotated[
        float | None, typer.Option(min=0, help="Start no episode after the experiment has cost this much.")
    ] = None,
    token_prices: PriceOptions,
    price: PricesOption = None,
) -> None:
    """Run an experiment: train the memories that the configurations need, then test each configuration.

    The limits of tokens and cost apply to the experiment as a whole. The same command continues the experiment.

    Example: fhir-gym experiment run experiment-2 --config baseline --config memory-spec --model gpt-4.1-mini --out exp2

    Example: fhir-gym experiment run experiment-2 --agent my_agents:MyAgent --set depth=2 --out exp2
    """
    if (model is None) == (agent is None):
        raise typer.BadParameter("name either a model or an agent of your own", param_hint="--model, --agent")
    from fhir_gym.experiments import STUDY_CONFIGURATIONS, ExperimentConfig, run_experiment

    settings = ExperimentConfig(
        experiment,
        model or agent or "",
        tuple(config or (STUDY_CONFIGURATIONS if agent is None else ())),
        agent=agent or "chat",
        base_url=base_url,
        training_model=training_model,
        evaluator_model=evaluator_model,
        reflector_model=reflector_model,
        training_base_url=training_base_url,
        env_ids=tuple(pack or ()),
        tasks=names(tasks) or (),
        repeats=repeats,
        seed=seed,
        settings=agent_settings(setting),
        training_settings=agent_settings(training_setting),
        grading=grading,
        max_steps=max_steps,
        embedder=embedder,
    )
    prices = _prices(token_prices, price)
    try:
        with progress(experiment) as update:
            final = run_experiment(
                settings,
                out,
                concurrency=concurrency,
                max_tokens=max_tokens,
                max_cost=max_cost,
                prices=prices,
                progress=update,
            )
    except KeyboardInterrupt:
        note(f"interrupted: finished episodes are in {out}; the same command continues")
        raise typer.Exit(130) from None
    _print_status(final)
    if final.errors:
        note(f"{final.errors} episodes have no verdict ({final.first_error}); the same command repeats them")
    elif final.missing:
        note(f"the budget is used up and {final.missing} episodes remain; continue with a larger budget")


@app.command("status")
@with_option_groups
def status(
    *, folder: FolderArgument, token_prices: PriceOptions, price: PricesOption = None, as_json: JsonOption = False
) -> None:
    """Show how far each configuration of an experiment is, with errors, tokens and cost.

    Example: fhir-gym experiment status exp2 --price-in 0.4 --price-out 1.6
    """
    from fhir_gym.experiments import experiment_status

    experiment_state = experiment_status(folder, _prices(token_prices, price))
    if as_json:
        print_json(experiment_state.plain())
    else:
        _print_status(experiment_state)


@app.command("report")
@with_option_groups
def report(
    *,
    folders: Annotated[list[Path], typer.Argument(metavar="DIR ...", help="Folders of experiments.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder for the report; default: the first experiment.")
    ] = None,
    pool: Annotated[
        bool, typer.Option("--pool", help="Merge the runs of each configuration over the experiments.")
    ] = False,
    token_prices: PriceOptions,
) -> None:
    """Write the report of one or more experiments in all formats, with the figures of the study.

    Example: fhir-gym experiment report exp1 exp2 exp3 exp4 --pool --out study
    """
    from fhir_gym.experiments import require_manifest

    for folder in folders:
        require_manifest(folder)
    report_experiments(folders, out or folders[0], token_prices.prices(), pool=pool)


def _prices(token_prices: PriceOptions, by_model: list[str] | None) -> ModelPrices:
    """Return the prices of the models."""
    from fhir_gym.experiments import ModelPrices
    from fhir_gym.rollouts import Prices

    prices = {}
    for text in by_model or ():
        model, _, pair = text.rpartition("=")
        try:
            read, written = (float(part) for part in pair.split(","))
        except ValueError:
            model = ""
        if not model:
            raise typer.BadParameter(f"{text!r} does not have the form MODEL=IN,OUT", param_hint="--price")
        prices[model] = Prices(read, written)
    return ModelPrices(token_prices.prices(), prices)


def _print_status(state: ExperimentStatus) -> None:
    """Print tables of the memories and the configurations, and the totals."""

    def money(cost: float | None) -> str:
        return "" if cost is None else f"{cost:.4f}"

    print_text(f"{state.experiment} with {state.model}")
    if state.memories:
        rows = [
            (memory.name, "yes" if memory.trained else "no", f"{memory.tokens:,}", money(memory.cost))
            for memory in state.memories
        ]
        table(("memory", "trained", "tokens", "cost"), rows)
    columns = ("configuration", "episodes", "done", "success", "errors", "tokens", "cost")
    table(
        columns,
        [
            (
                configuration.name,
                configuration.episodes,
                configuration.done,
                f"{configuration.successes / configuration.done:.1%}" if configuration.done else "",
                configuration.errors,
                f"{configuration.tokens:,}",
                money(configuration.cost),
            )
            for configuration in state.configurations
        ],
    )
    print_text(f"{state.tokens:,} tokens" + ("" if state.cost is None else f", cost {state.cost:.4f}"))
