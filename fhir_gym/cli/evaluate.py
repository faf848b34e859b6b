"""The command `fhir-gym evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fhir_gym.cli._console import note, print_json, print_text, progress, table
from fhir_gym.cli._options import (
    ConcurrencyOption,
    ConfigurationOption,
    JsonOption,
    MaxCostOption,
    MaxEpisodesOption,
    MaxSecondsOption,
    MaxTokensOption,
    PriceInOption,
    PriceOutOption,
    ProtocolOption,
    RepeatsOption,
    SeedOption,
    SettingsOption,
    SuiteFuncsOption,
    SuiteTasksOption,
    SuiteWorldOption,
    WorkersOption,
    agent_settings,
    prices_of,
    with_configuration,
)
from fhir_gym.errors import FhirGymError

if TYPE_CHECKING:
    from fhir_gym.suites import Card


def evaluate(
    suite: Annotated[str, typer.Option(help="Name of a suite; see `suites list`.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the rollouts and the result card.")],
    model: Annotated[str | None, typer.Option(help="Name of a model; the agent is then chat.")] = None,
    base_url: Annotated[str | None, typer.Option(help="Endpoint of the model. Same as --set base_url=…")] = None,
    agent: Annotated[
        str | None, typer.Option(help="An agent other than chat, such as local, gold, or your own as module:Class.")
    ] = None,
    setting: SettingsOption = None,
    protocol: ProtocolOption = None,
    configuration: ConfigurationOption = None,
    repeats: RepeatsOption = 1,
    seed: SeedOption = 0,
    workers: WorkersOption = 0,
    concurrency: ConcurrencyOption = 8,
    max_episodes: MaxEpisodesOption = None,
    max_tokens: MaxTokensOption = None,
    max_seconds: MaxSecondsOption = None,
    max_cost: MaxCostOption = None,
    price_in: PriceInOption = None,
    price_out: PriceOutOption = None,
    date: Annotated[str | None, typer.Option(help="Date on the card, such as 2026-11-23; default: none.")] = None,
    task_file: SuiteTasksOption = None,
    funcs_file: SuiteFuncsOption = None,
    world: SuiteWorldOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate an agent on a suite, and write a result card.

    The same command continues an interrupted evaluation. The exit code is 1 if an episode has no verdict.

    Example: fhir-gym evaluate --suite quick-v1 --agent gold --out runs/gold

    Example: fhir-gym evaluate --suite core-v1 --model qwen3 --base-url http://localhost:8000/v1 --out runs/qwen3
    """
    from fhir_gym import suites
    from fhir_gym.agents import make_agent
    from fhir_gym.rollouts import Budget

    found = suites.get_suite(suite, task_file=task_file, funcs_file=funcs_file, world=world)
    prices = prices_of(price_in, price_out)
    budget = Budget(max_episodes, max_tokens, max_seconds, max_cost, prices)
    name = _agent_name(agent, model)
    given = {"model": model, "base_url": base_url, "protocol": protocol}
    settings = agent_settings(setting) | {key: value for key, value in given.items() if value}
    actor = make_agent(name, **with_configuration(settings, configuration))
    how: dict[str, Any] = {"workers": workers, "concurrency": concurrency, "budget": budget, "prices": prices}
    try:
        with progress(f"{suite}, agent {name}") as update:
            card = suites.evaluate(found, actor, out, repeats=repeats, seed=seed, date=date, progress=update, **how)
    except KeyboardInterrupt:
        note("interrupted; the same command continues the evaluation")
        raise typer.Exit(130) from None
    _print(card, out, as_json)
    if not card.complete:
        raise typer.Exit(1)


def _agent_name(agent: str | None, model: str | None) -> str:
    if agent is None and model is None:
        raise typer.BadParameter("name a model with --model, or another agent with --agent")
    return agent or "chat"


def _print(card: Card, out: Path, as_json: bool) -> None:
    from fhir_gym.suites import results_table

    if as_json:
        print_json(card.model_dump(mode="json"))
    else:
        print_text(f"{card.suite}, hash {card.suite_hash}")
        results = results_table(card)
        table(results.columns, results.rows)
        if card.cost is not None:
            print_text(f"cost {card.cost:.4f}")
    for remark in card.remarks:
        note(remark, style="yellow")
    if not card.overall.graded:
        raise FhirGymError(f"no episode has a verdict; see {out / 'rollouts.jsonl'}")
    note(f"result card written to {out / 'card.md'} and {out / 'card.json'}")
    if not card.complete:
        note("the evaluation is incomplete; the same command continues it")
