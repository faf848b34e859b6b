"""The command `fhir-gym tasks review`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fhir_gym.cli._console import note, print_json, progress, table
from fhir_gym.cli._options import JsonOption, PriceOptions, names, with_option_groups

if TYPE_CHECKING:
    from fhir_gym.rollouts import Rollout
    from fhir_gym.soundness.verdict_review import ReviewRun

Outcome = Literal["all", "success", "failure"]
_SHOWN = 5


@with_option_groups
def review(
    *,
    rollouts: Annotated[list[Path], typer.Argument(metavar="ROLLOUTS", help="Rollout files.")],
    model: Annotated[str, typer.Option(help="Name of the model that reviews.")],
    out: Annotated[Path, typer.Option(help="Folder for the opinions (reviews.jsonl) and the sheet (review.md).")],
    base_url: Annotated[str | None, typer.Option(help="URL of the model's OpenAI-compatible endpoint.")] = None,
    tasks: Annotated[str | None, typer.Option(help="Task keys, separated by commas (default: all).")] = None,
    outcome: Annotated[Outcome, typer.Option(help="Which verdicts to review.")] = "all",
    temperature: Annotated[
        float | None, typer.Option(min=0, help="Sampling temperature; default: the provider's.")
    ] = None,
    max_reply_tokens: Annotated[int | None, typer.Option(min=1, help="Token limit of a reply.")] = None,
    max_chars: Annotated[int, typer.Option(min=4000, help="Maximum number of characters of a question.")] = 40_000,
    concurrency: Annotated[int, typer.Option(min=1, help="Number of concurrent requests.")] = 8,
    max_reviews: Annotated[int | None, typer.Option(min=1, help="Ask about at most this many verdicts.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Ask no more after the run has used this many tokens.")
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option(min=0, help="Ask no more after the run has cost this much; it needs prices.")
    ] = None,
    token_prices: PriceOptions,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Discard the opinions in the folder.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Ask a model whether it agrees with verdicts, and write a sheet of its opinions for people who maintain tasks.

    The opinions change no record and no score. Repeat the command to continue after an interruption.

    Example: fhir-gym tasks review rollouts.jsonl --model qwen3 --base-url http://localhost:8000/v1 --out review
    """
    from fhir_gym.rollouts import Budget, BudgetTracker
    from fhir_gym.soundness.verdict_review import COLUMNS, VerdictReviewer, counts

    reviewer = VerdictReviewer(
        model,
        base_url=base_url,
        temperature=temperature,
        max_tokens=max_reply_tokens,
        concurrency=concurrency,
        max_chars=max_chars,
    )
    budget = Budget(episodes=max_reviews, tokens=max_tokens, cost=max_cost, prices=token_prices.prices())
    chosen = _chosen(rollouts, names(tasks), outcome)
    with progress("Reviewing verdicts") as update:
        run = reviewer.review(
            chosen, out, budget=BudgetTracker(budget), overwrite=overwrite, progress=lambda done: update(done, 0)
        )
    if as_json:
        print_json(run.to_json())
    else:
        table(COLUMNS, counts(run.reviews))
    _note(run, out)
    if not run.reviews:
        raise typer.Exit(1)


def _chosen(paths: list[Path], tasks: tuple[str, ...] | None, outcome: Outcome) -> Iterator[Rollout]:
    """Yield the rollouts of all files that have one of the tasks and the outcome."""
    from fhir_gym.rollouts import read_rollouts

    for path in paths:
        for rollout in read_rollouts(path):
            wanted = outcome == "all" or rollout.success in (None, outcome == "success")
            if wanted and (tasks is None or rollout.task.key in tasks):
                yield rollout


def _note(run: ReviewRun, out: Path) -> None:
    if run.without_verdict:
        note(f"{run.without_verdict} rollouts have no verdict")
    for reason in run.unanswered[:_SHOWN]:
        note(f"no opinion on {reason}", style="red")
    if run.unanswered:
        note(f"{len(run.unanswered)} verdicts have no opinion; repeat the command to ask again")
    if run.stopped:
        note("the budget is spent; repeat the command to continue")
    if run.reviews:
        note(f"opinions: {run.asked} new, {run.kept} from earlier runs; the sheet is {out / 'review.md'}")
    else:
        note("no verdict was reviewed", style="red")
