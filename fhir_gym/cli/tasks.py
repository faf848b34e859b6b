"""The commands `fhir-gym tasks …`: list, show, check and probe tasks, and review verdicts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fhir_gym.arguments import parse_phrasing
from fhir_gym.cli._console import fields, note, print_json, print_text, progress, table
from fhir_gym.cli._options import (
    BaseUrlOption,
    EnvArgument,
    JsonOption,
    OwnWorldOption,
    PhrasingOption,
    PriceOptions,
    WorkersOption,
    names,
    read_chosen,
    with_option_groups,
)

if TYPE_CHECKING:
    from fhir_gym.fhir import World
    from fhir_gym.soundness import Progress, TaskReport
    from fhir_gym.soundness.probe import TaskProbe
    from fhir_gym.soundness.verdict_review import ReviewRun
    from fhir_gym.tasks import Task

_SHOWN_FAILURES = 5

app = typer.Typer(help="List and show tasks, and check that they are sound.", no_args_is_help=True)


@app.command("list")
def list_(
    env_id: Annotated[
        str | None, typer.Argument(help="Environment, or module that registers environments (default: all).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the tasks of an environment or of all environments."""
    from fhir_gym import tasks

    chosen = tasks.find_packs(env_id) if env_id else tasks.pack_ids()
    listed = [
        {
            "env": pack,
            "key": task.key,
            "title": task.title,
            "kind": task.kind,
            "difficulty": task.difficulty,
            "category": task.category,
            "required_resources": list(task.required_resources),
            "prohibited_tools": list(task.prohibited_tools),
            "phrasings": len(task.prompts),
            "brief": task.brief is not None,
            "paraphrases": len(task.wordings) - len(task.prompts),
            "held_out": task.key in tasks.get_pack(pack).held_out,
        }
        for pack in chosen
        for task in (tasks.get_task(pack, key) for key in tasks.task_keys(pack))
    ]
    if as_json:
        print_json(listed)
        return
    columns = ("env", "key", "title", "kind", "difficulty", "category")
    rows = [[*(row[column] for column in columns), "yes" if row["held_out"] else ""] for row in listed]
    table((*columns, "held out"), rows)


@app.command()
def show(
    env_id: EnvArgument,
    task: Annotated[str, typer.Argument(help="Key of the task, such as 02a.")],
    variation: Annotated[
        int, typer.Option(min=0, help="Number of the variation; 0-999 are for training, 1000-1999 for testing.")
    ] = 0,
    phrasing: PhrasingOption = None,
    world: OwnWorldOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a variation of a task: its prompt, its start state, the reference solution and the verdict.

    Example: fhir-gym tasks show FHIRAgent/Appointment-v0 02a --variation 3
    """
    from fhir_gym import Episode, get_task, worlds
    from fhir_gym.tasks import get_pack

    shown_task, wording = get_task(env_id, task), parse_phrasing(phrasing)
    shown_task.require_phrasing(0 if wording is None else wording)
    world = get_pack(env_id).world if world is None else world
    with progress(f"Building {world}") as update:
        opened = worlds.load(world, progress=update)
    with opened, Episode(env_id, task=task, variation=variation, phrasing=wording, world=opened) as episode:
        turns = _play_gold(episode)
        verdict = episode.verdict()
        about: dict[str, Any] = {
            "env": env_id,
            "task": f"{shown_task.key} {shown_task.title}",
            "variation": f"{variation} ({episode.variation.split})",
            "kind": shown_task.kind,
            "category": shown_task.category,
            "difficulty": shown_task.difficulty,
            "answer": shown_task.answer.description,
        }
        if as_json:
            details = {"prompt": episode.prompt, "setup": episode.variation.setup, "solution": [a for a, _ in turns]}
            print_json({**about, **details, "verdict": verdict.model_dump(mode="json")})
            return
        fields(list(about.items()))
        print_text("\nPrompt", style="bold")
        print_text(episode.prompt)
        print_text(f"\nStart state ({len(episode.variation.setup)} resources)", style="bold")
        for resource in episode.variation.setup:
            print_text(f"{resource['resourceType']}/{resource['id']}  {_gist(resource)}")
        print_text("\nReference solution", style="bold")
        for action, status in turns:
            print_text(f"{action}{f'  -> {status}' if status else ''}")
        print_text(f"\n{verdict.explanation}")


@app.command()
def check(
    env_ids: Annotated[
        list[str] | None, typer.Argument(help="Environments, or modules that register them (default: all).")
    ] = None,
    tasks: Annotated[str | None, typer.Option(help="Task keys, separated by commas (default: all).")] = None,
    variations: Annotated[
        str, typer.Option(help="Variations of each task to check: how many, or their numbers, such as 0-199,1000-1099.")
    ] = "10",
    world: OwnWorldOption = None,
    workers: WorkersOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Check that tasks are sound, without a model.

    The reference solution and other correct solutions must succeed. Wrong behaviour must fail: doing nothing, constant
    answers, writing without reading, the solution of another variation, the use of similar but wrong records, and
    solutions in which one graded detail is wrong. The exit code is 1 if a task fails the check.

    Example: fhir-gym tasks check FHIRAgent/Appointment-v0 --tasks 02a,14a --variations 50 --workers 2
    """
    from fhir_gym import soundness
    from fhir_gym.rollouts.plan import parse_numbers

    tried = range(int(variations)) if variations.isdecimal() else parse_numbers(variations)
    if not tried:
        raise typer.BadParameter("at least one variation is needed", param_hint="--variations")
    reports = [
        soundness.check_tasks(opened, chosen, variations=tried, workers=workers, progress=tell)
        for opened, chosen, tell in _by_world("Checking", env_ids, tasks, world)
    ]
    report = soundness.merge_reports(reports)
    if as_json:
        print_json(report.to_json())
    else:
        table(report.group_columns, report.group_rows())
        print_text("")
        table(report.columns, report.rows())
        print_text("")
        table(report.summary_columns, report.summary_rows())
        for task in report.tasks:
            _explain(task)
        for problem in report.problems:
            print_text(f"\n{problem}", style="red")
    if not report.sound:
        raise typer.Exit(1)


@app.command()
def probe(
    env_ids: Annotated[
        list[str] | None, typer.Argument(help="Environments, or modules that register them (default: all).")
    ] = None,
    tasks: Annotated[str | None, typer.Option(help="Task keys, separated by commas (default: all).")] = None,
    train: Annotated[
        int | None, typer.Option(min=20, help="Training variations (default: 200, or 400 with --slow).")
    ] = None,
    test: Annotated[
        int | None, typer.Option(min=20, help="Test variations (default: 300, or 1,000 with --slow).")
    ] = None,
    slow: Annotated[bool, typer.Option("--slow", help="Use more variations and stricter limits.")] = False,
    world: OwnWorldOption = None,
    workers: WorkersOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Test whether a learner can solve tasks without their prompts. Needs scikit-learn.

    The learner sees solved training variations and the server's content. It predicts the record that a task asks about,
    and the answer. A task fails if, on test variations, the learner is better than a random guess among the qualifying
    records, or better than always giving the most frequent answer. The exit code is 1 if a task fails.

    Example: fhir-gym tasks probe FHIRAgent/Appointment-v0 --tasks 02a,11a --workers 2
    """
    from fhir_gym.soundness.probe import QUICK, SLOW, Effort, ProbeReport
    from fhir_gym.soundness.probe import probe as run_probe

    usual = SLOW if slow else QUICK
    effort = Effort(train or usual.train, test or usual.test, strict=slow)
    probes: list[TaskProbe] = []
    for opened, chosen, tell in _by_world("Probing", env_ids, tasks, world):
        probes += run_probe(opened, chosen, effort, workers=workers, progress=tell).tasks
    report = ProbeReport(tuple(probes))
    if as_json:
        print_json(report.to_json())
    else:
        table(report.columns, report.rows())
        for task in report.tasks:
            _explain_probe(task)
    if not report.sound:
        raise typer.Exit(1)


@app.command()
def looks(
    env_ids: Annotated[
        list[str] | None, typer.Argument(help="Environments, or modules that register them (default: all).")
    ] = None,
    tasks: Annotated[str | None, typer.Option(help="Task keys, separated by commas (default: all).")] = None,
    variations: Annotated[int, typer.Option(min=20, help="Number of variations of each task.")] = 200,
    world: OwnWorldOption = None,
    workers: WorkersOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Measure whether looks that ignore the prompt count as evidence that a record is missing.

    If the right answer is that there is no such record, an agent must have looked for it. This command sends requests
    that use nothing of the prompt, such as the latest changes or the first page by each sort order. A task fails if one
    of them shows the missing record more often than similar records of the scene. The exit code is 1 if a task fails.

    Example: fhir-gym tasks looks FHIRAgent/Appointment-v0 --tasks 02b,04b --workers 2
    """
    from fhir_gym.soundness.generic_looks import TaskLooks, measure_tasks

    measured: list[TaskLooks] = []
    for opened, chosen, tell in _by_world("Looking", env_ids, tasks, world):
        measured += measure_tasks(opened, chosen, range(variations), workers=workers, progress=tell)
    if as_json:
        print_json([task_looks.to_json() for task_looks in measured])
    else:
        table(TaskLooks.columns, [task_looks.row() for task_looks in measured])
        for task_looks in measured:
            for look in task_looks.leaks[:_SHOWN_FAILURES]:
                shares = f"{look.counterfactual:.0%} of the missing records, {look.similar:.0%} of similar ones"
                print_text(f"{task_looks.env} {task_looks.task}: {look.look} shows {shares}", style="red")
    if any(task_looks.leaks for task_looks in measured):
        raise typer.Exit(1)


def _by_world(
    doing: str, env_ids: list[str] | None, tasks: str | None, world: str | None
) -> Iterator[tuple[World, Sequence[Task[Any]], Progress]]:
    """Open each world, and yield the world, the tasks that it supports and a progress callback."""
    from fhir_gym import soundness, worlds
    from fhir_gym.tasks import find_packs

    packs = list(dict.fromkeys(pack for text in env_ids or () for pack in find_packs(text))) or None
    for name, chosen in soundness.by_world(packs, tasks=names(tasks), world=world).items():
        with progress(f"Building {name}") as update:
            opened = worlds.load(name, progress=update)
        with opened, progress(f"{doing} on {name}") as update:
            kept = soundness.available(opened, chosen, named=bool(tasks))
            if left := [f"{task.pack} {task.key}" for task in chosen if task not in kept]:
                note(f"skipped {', '.join(left)}, which the world {name} does not support")

            def tell(_: str, done: int, total: int, update: Callable[..., None] = update) -> None:
                update(done, total)

            yield opened, kept, tell


def _explain_probe(task: TaskProbe) -> None:
    """Print what a learner could predict, and from which features."""
    for problem in task.problems[:_SHOWN_FAILURES]:
        print_text(f"\n{task.env} {task.task}: {problem}", style="red")
    if task.ranker is not None and task.ranker.leaks:
        for feature, share in task.ranker.telling:
            print_text(f"  {share:.0%} by {feature}")


def _explain(task: TaskReport) -> None:
    """Print what is wrong with a task, and how to reproduce it."""
    for failure in task.failures[:_SHOWN_FAILURES]:
        print_text(f"\n{failure.env} {failure.task}, variation {failure.variation}: {failure.group}, {failure.policy}")
        print_text(f"{failure.problem} (grading {failure.grading})", style="red")
        for action in failure.actions:
            print_text(f"  {action}")
        print_text(failure.explanation)
    if len(task.failures) > _SHOWN_FAILURES:
        print_text(f"\n{len(task.failures) - _SHOWN_FAILURES} more of {task.env} {task.task}; --json lists all")
    for problem in task.problems:
        print_text(f"\n{task.env} {task.task}: {problem}", style="red")


def _play_gold(episode: Any) -> list[tuple[str, int]]:
    """Run the reference solution, and return its actions, each with the status of the response."""
    from fhir_gym import make_agent
    from fhir_gym.agents import EpisodeContext

    agent = make_agent("gold")
    observation = episode.start()
    agent.reset(observation, EpisodeContext.of(episode))
    turns, done = [], False
    while not done:
        action = agent.act(observation)
        step = episode.step(action)
        observation, done = step.observation, step.done
        turns.append((str(action), step.info["status"]))
    return turns


def _gist(resource: dict[str, Any], width: int = 110) -> str:
    rest = {name: value for name, value in resource.items() if name not in ("resourceType", "id", "meta", "text")}
    text = json.dumps(rest, ensure_ascii=False)
    return text if len(text) <= width else text[: width - 1] + "…"


Outcome = Literal["all", "success", "failure"]
_SHOWN = 5


@app.command("review")
@with_option_groups
def review(
    *,
    rollouts: Annotated[list[Path], typer.Argument(metavar="ROLLOUTS", help="Rollout files.")],
    model: Annotated[str, typer.Option(help="Name of the model that reviews.")],
    out: Annotated[Path, typer.Option(help="Folder for the opinions (reviews.jsonl) and the sheet (review.md).")],
    base_url: BaseUrlOption = None,
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
    chosen = (
        rollout
        for rollout in read_chosen(rollouts, names(tasks) or ())
        if outcome == "all" or rollout.success in (None, outcome == "success")
    )
    first = [*islice(chosen, 1)]  # an unknown task is an error before the folder is written
    with progress("Reviewing verdicts") as update:
        run = reviewer.review(
            chain(first, chosen),
            out,
            budget=BudgetTracker(budget),
            overwrite=overwrite,
            progress=lambda done: update(done, 0),
        )
    if as_json:
        print_json(run.to_json())
    else:
        table(COLUMNS, counts(run.reviews))
    _note(run, out)
    if not run.reviews:
        raise typer.Exit(1)


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
