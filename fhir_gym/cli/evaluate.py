"""The command `fhir-gym evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fhir_gym.cli._console import note, print_json, print_text, progress, table
from fhir_gym.cli._options import AgentOptions, BudgetOptions, JsonOption, RunOptions, SuiteOptions, with_option_groups
from fhir_gym.errors import FhirGymError

if TYPE_CHECKING:
    from fhir_gym.suites import Card


@with_option_groups
def evaluate(
    *,
    suite: Annotated[str, typer.Option(help="Name of a suite; see `suites list`.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the rollouts and the result card.")],
    options: AgentOptions,
    running: RunOptions,
    limits: BudgetOptions,
    date: Annotated[str | None, typer.Option(help="Date on the card, such as 2026-11-23; default: none.")] = None,
    official: SuiteOptions,
    as_json: JsonOption = False,
) -> None:
    """Evaluate an agent on a suite, and write a result card.

    The same command continues an interrupted evaluation. The exit code is 1 if an episode has no verdict.

    Example: fhir-gym evaluate --suite quick-v1 --agent gold --out runs/gold

    Example: fhir-gym evaluate --suite core-v1 --model qwen3 --base-url http://localhost:8000/v1 --out runs/qwen3
    """
    from fhir_gym import suites
    from fhir_gym.agents import make_agent

    chosen = official.suite(suite)
    budget = limits.budget()
    actor = make_agent(options.name(), **options.settings())
    how: dict[str, Any] = {"workers": running.workers, "concurrency": running.concurrency, "budget": budget}
    how |= {"repeats": running.repeats, "seed": running.seed, "prices": budget.prices}
    try:
        with progress(f"{suite}, agent {options.name()}") as update:
            card = suites.evaluate(chosen, actor, out, date=date, progress=update, **how)
    except KeyboardInterrupt:
        note("interrupted; the same command continues the evaluation")
        raise typer.Exit(130) from None
    _print(card, out, as_json)
    if not card.complete:
        raise typer.Exit(1)


def _print(card: Card, out: Path, as_json: bool) -> None:
    from fhir_gym.evaluation.text_table import LIGHT
    from fhir_gym.suites import results_table

    if as_json:
        print_json(card.model_dump(mode="json"))
    else:
        print_text(f"{card.suite}, hash {card.suite_hash}")
        results = results_table(card)
        table(results.columns, results.rows)
        if "light" in results.columns:
            note(LIGHT)
        if card.cost is not None:
            print_text(f"cost {card.cost:.4f}")
    for remark in card.remarks:
        note(remark, style="yellow")
    if not card.overall.graded:
        raise FhirGymError(f"no episode has a verdict; see {out / 'rollouts.jsonl'}")
    note(f"result card written to {out / 'card.md'} and {out / 'card.json'}")
    note(f"why an episode failed: fhir-gym replay {out}; all episodes in the browser: fhir-gym view {out}")
    if not card.complete:
        note("the evaluation is incomplete; the same command continues it")
