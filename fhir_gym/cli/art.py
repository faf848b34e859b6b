"""`fhir-gym research art …`: mine, generate, audit, review, sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fhir_gym.cli._console import fields, note, out, print_json, print_text, progress, table
from fhir_gym.cli._options import (
    AgentOptions,
    BaseUrlOption,
    ConcurrencyOption,
    JsonOption,
    WorkersOption,
    WorldOption,
    with_option_groups,
)
from fhir_gym.cli._summary import Summary
from fhir_gym.errors import FhirGymError
from fhir_gym.files import require_writable, resolve, write_file, write_files
from fhir_gym.processes import temporary_folder

if TYPE_CHECKING:
    from fhir_gym.art_curation.audit import AuditReport
    from fhir_gym.art_curation.sweep import Point, Sweep
    from fhir_gym.fhir import World
    from fhir_gym.rollouts import Rollout
    from fhir_gym.tasks.packs.action_reasoning.cases import ReasoningCase

_SHOWN = 10

app = typer.Typer(
    help="Action-based reasoning tasks: mine a world, generate, audit and review task files, run sweeps.",
    no_args_is_help=True,
)

TasksArgument = Annotated[
    Path, typer.Argument(metavar="TASKS", help="A task file, such as one written by `research art generate`.")
]
SheetOption = Annotated[Path | None, typer.Option(help="Write a review sheet (CSV).")]
PageOption = Annotated[Path | None, typer.Option(help="Write the review sheet as an HTML page with checkboxes.")]
SampleOption = Annotated[int, typer.Option(min=0, help="Number of tasks to review in addition to doubtful tasks.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")]


@app.command()
def mine(world: WorldOption = "cohort-mini", as_json: JsonOption = False) -> None:
    """Count the records of a world that are suitable for tasks, for each scenario, test, value category and pitfall.

    Example: fhir-gym research art mine --world cohort
    """
    from fhir_gym.tasks.packs.action_reasoning.mining import mining_report

    with _opened(world) as opened:
        report = mining_report(opened)
    if as_json:
        print_json(report.to_json())
        return
    table(report.columns, report.rows(), title="Scenarios")
    print_text()
    table(report.category_columns, report.category_rows(), title="Values of conditional tasks by category")
    print_text()
    table(report.pitfall_columns, report.pitfall_rows(), title="Candidates by pitfall")


@app.command()
def generate(
    out: Annotated[Path, typer.Option(help="Task file to write.")],
    world: WorldOption = "cohort-mini",
    seed: Annotated[int, typer.Option(help="Seed of the tasks; the same seed gives the same file.")] = 0,
    per_family: Annotated[
        int, typer.Option(min=1, help="Number of tasks of each kind: retrieval, aggregation, conditional.")
    ] = 200,
    rephrase_with: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Let this model reword the instructions; facts are checked.")
    ] = None,
    base_url: BaseUrlOption = None,
    review: SheetOption = None,
    review_html: PageOption = None,
    sample: SampleOption = 60,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Generate tasks, audit them, and write the tasks that pass the audit.

    Example: fhir-gym research art generate --world cohort --out tasks.json --review sheet.csv --review-html review.html
    """
    if base_url is not None and rephrase_with is None:
        raise typer.BadParameter("--base-url needs --rephrase-with", param_hint="--base-url")
    files = (("--out", out), ("--review", review), ("--review-html", review_html))
    _require_free(overwrite, *files, read=_file_of(world))
    from fhir_gym.art_curation.audit import audit_cases
    from fhir_gym.tasks.packs.action_reasoning.generation import SCENARIOS, generate

    with _opened(world) as opened:
        cases = generate(opened, seed=seed, per_family=per_family)
        if rephrase_with is not None:
            cases = _rephrased(cases, opened, rephrase_with, base_url)
        report = audit_cases(cases, opened)
    _write(report, out, review, review_html, sample, seed)
    _print_audit(report, as_json)
    counts = Counter(case.plan.family for case in cases if case.plan)
    for family in SCENARIOS:
        if counts[family] < per_family:
            note(f"{family}: {counts[family]} of {per_family} tasks; the world has no more candidates")
    note(f"{len(report.kept)} tasks written to {out}")


@app.command()
def audit(
    tasks: TasksArgument,
    world: WorldOption = "cohort-mini",
    sheet: SheetOption = None,
    html: PageOption = None,
    sample: SampleOption = 60,
    seed: Annotated[int, typer.Option(help="Seed for choosing the sample.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the tasks that pass to this file.")] = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Derive every task again with independent code, and list the tasks that are wrong, ambiguous or incomplete.

    The exit code is 1 if a task is listed.

    Example: fhir-gym research art audit tasks.json --world cohort --html review.html
    """
    _require_free(overwrite, ("--out", out), read=_file_of(world))  # --out may replace the task file
    _require_free(overwrite, ("--sheet", sheet), ("--html", html), read=[tasks, *_file_of(world), *_given(out)])
    from fhir_gym.art_curation.audit import audit_cases
    from fhir_gym.tasks.packs.action_reasoning.file_task import read_cases

    cases = read_cases(tasks)
    with _opened(world) as opened:
        report = audit_cases(cases, opened)
    _write(report, out, sheet, html, sample, seed)
    _print_audit(report, as_json)
    if out is not None:
        note(f"{len(report.kept)} tasks written to {out}")
    if report.dropped:
        raise typer.Exit(1)


@app.command()
def review(
    tasks: TasksArgument,
    verdicts: Annotated[
        Path, typer.Argument(metavar="SHEET", help="The completed sheet, or the file that the page saved.")
    ],
    out: Annotated[Path, typer.Option(help="Task file to write.")],
    keep_unreviewed: Annotated[
        bool, typer.Option("--keep-unreviewed", help="Keep doubtful tasks that have no verdict.")
    ] = False,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Apply the verdicts of a review: remove rejected tasks, and doubtful tasks that have no verdict.

    Example: fhir-gym research art review tasks.json sheet.csv --out reviewed.json
    """
    _require_free(overwrite, ("--out", out), read=[verdicts])
    from fhir_gym.art_curation.review import apply_verdicts, read_verdicts
    from fhir_gym.tasks.packs.action_reasoning.file_task import read_cases, write_cases

    reviewed = apply_verdicts(read_cases(tasks), read_verdicts(verdicts), keep_unreviewed=keep_unreviewed)
    write_cases(out, reviewed.cases)
    if as_json:
        rejected = [{"id": verdict.id, "comment": verdict.comment} for verdict in reviewed.rejected]
        print_json({"kept": len(reviewed.cases), "rejected": rejected, "withheld": list(reviewed.withheld)})
    else:
        for verdict in reviewed.rejected:
            print_text(f"rejected  {verdict.id}  {' '.join(verdict.comment.split())}".rstrip())
        for id in reviewed.withheld:
            print_text(f"withheld  {id}  not reviewed")
    note(f"{len(reviewed.cases)} tasks written to {out}")


@app.command()
@with_option_groups
def sweep(
    *,
    out: Annotated[Path, typer.Option(help="Output file with one JSON line per episode.")] = Path("sweep.jsonl"),
    world: WorldOption = "cohort-mini",
    options: AgentOptions,
    windows: Annotated[str | None, typer.Option(help="Time windows, such as 12h,24h,36h,48h.")] = None,
    shifts: Annotated[
        str | None, typer.Option(help="Relative shifts of the reference limits, such as -10%,0%,10%.")
    ] = None,
    tasks_file: Annotated[Path | None, typer.Option(help="Task file to vary; by default, tasks are generated.")] = None,
    tasks: Annotated[int, typer.Option(min=3, help="Number of tasks to generate if there is no task file.")] = 60,
    seed: Annotated[int, typer.Option(help="Seed of the generated tasks and of the agent.")] = 0,
    workers: WorkersOption = 0,
    concurrency: ConcurrencyOption = 8,
    csv: Annotated[Path | None, typer.Option(help="Write the curve as CSV.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a file: run only the missing episodes.")] = False,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run the same tasks with other time windows or shifted limits, and print the success rate for each setting.

    The tasks are written next to the records. After Ctrl-C, finished episodes are kept; `--resume` continues the run.

    Example: fhir-gym research art sweep --windows 12h,24h,36h,48h --shifts=-10%,0%,10% --agent gold --out sweep.jsonl
    """
    if resume and overwrite:
        raise typer.BadParameter("--resume and --overwrite cannot be combined")
    if not windows and not shifts:
        raise typer.BadParameter("pass --windows or --shifts")
    read, hint = [*_given(tasks_file), *_file_of(world)], "continue it with --resume or replace it with --overwrite"
    _require_free(overwrite or resume, ("--out", out), read=read, hint=hint)
    beside = _tasks_of(out)
    _require_free(overwrite or resume, ("--out", beside), ("--csv", csv), read=[out, *read], hint=hint)
    from fhir_gym.agents import make_agent
    from fhir_gym.art_curation import sweep as sweeps

    settings = (*(sweeps.windows(windows) if windows else ()), *(sweeps.shifts(shifts) if shifts else ()))
    actor = make_agent(options.name(default="gold"), **options.settings())
    with _opened(world) as opened:
        prepared = sweeps.prepare(opened, _base(opened, tasks_file, tasks, seed), settings)
        if resume:
            _require_same_tasks(beside, prepared.cases)
        how = {"workers": workers, "concurrency": concurrency}
        done = _do_sweep(prepared, opened, actor, out, overwrite, seed, how)
    _print_curve(done, csv, as_json)


def _opened(world: str) -> World:
    from fhir_gym import worlds

    with progress(f"Building {world}") as update:
        return worlds.load(world, progress=update)


def _given(path: Path | None) -> list[Path]:
    return [] if path is None else [path]


def _file_of(world: str) -> list[Path]:
    """Return the world's file if the world is given by path."""
    return [Path(world)] if Path(world).is_file() else []


def _require_free(
    overwrite: bool,
    *options: tuple[str, Path | None],
    read: Sequence[Path] = (),
    hint: str = "replace it with --overwrite",
) -> None:
    """Raise an error if an output file is not writable, is also an input, or already exists."""
    named = {resolve(path) for path in read}
    for option, path in options:
        if path is None:
            continue
        if resolve(path) in named:
            raise typer.BadParameter(f"{path} is already used as another input or output", param_hint=option)
        require_writable(path)
        if path.exists() and not path.is_file():
            raise FhirGymError(f"{path} is not a file")
        if path.exists() and not overwrite:
            raise FhirGymError(f"{path} exists; {hint}")
        named.add(resolve(path))


def _rephrased(
    cases: tuple[ReasoningCase, ...], world: World, model: str, base_url: str | None
) -> tuple[ReasoningCase, ...]:
    from fhir_gym.art_curation.rephrase import Rephraser
    from fhir_gym.tasks.packs.action_reasoning.orders import ORDERS
    from fhir_gym.tasks.packs.action_reasoning.series import lab_chart

    history = lab_chart(world)
    names = [history.person(id).name for id in history.patients]
    with progress(f"Rewording with {model}") as update:
        rephrased = Rephraser(model, base_url=base_url).rephrase(
            cases, names=names, phrases={key: order.name for key, order in ORDERS.items()}, progress=update
        )
    note(
        f"{rephrased.reworded} of {len(cases)} instructions reworded "
        f"({rephrased.asked} requests; other answers were cached)"
    )
    for reason, count in rephrased.problems()[:_SHOWN]:
        note(f"  {count} answers rejected: {reason}")
    return rephrased.cases


def _write(
    report: AuditReport, tasks: Path | None, csv: Path | None, html: Path | None, sample: int, seed: int
) -> None:
    """Write the requested files (kept tasks, review sheet, review page); if one of them fails, write none."""
    from fhir_gym.art_curation.audit import for_review
    from fhir_gym.art_curation.review import entries, review_page, review_sheet
    from fhir_gym.tasks.packs.action_reasoning.file_task import dumped

    rows = entries(for_review(report, sample=sample, seed=seed))
    files: dict[Path, str | bytes] = {}
    if tasks is not None:
        files[tasks] = dumped(report.cases)
    if csv is not None:
        files[csv] = review_sheet(rows)
    if html is not None:
        files[html] = review_page(rows)
    write_files(files)
    if csv or html:
        doubtful = sum(row.why == "doubtful" for row in rows)
        note(f"{len(rows)} tasks to review: {doubtful} doubtful tasks and a sample of {len(rows) - doubtful} others")


def _print_audit(report: AuditReport, as_json: bool) -> None:
    from fhir_gym.art_curation.sweep import COLUMNS, balance, balance_rows

    if as_json:
        print_json({**report.plain(), "balance": balance(report.cases)})
        return
    fields(
        [
            ("tasks", len(report.kept) + len(report.dropped)),
            ("kept", len(report.kept)),
            ("dropped", len(report.dropped)),
            ("doubtful", f"{len(report.doubtful)} (confidence 0.6 or less)"),
        ]
    )
    for title, counts in (("Dropped, by reason", report.reasons()), ("Signals of kept tasks", report.signals())):
        if counts:
            print_text()
            table(("", "tasks"), list(counts.items()), title=title)
    for dropped in report.dropped[:_SHOWN]:
        print_text(f"\n{dropped.case.id}", style="red")
        for reason in dropped.reasons:
            print_text(f"  {reason.kind}: {reason.text}")
    if len(report.dropped) > _SHOWN:
        print_text(f"\n{len(report.dropped) - _SHOWN} more tasks were dropped; --json lists all")
    print_text()
    table(COLUMNS, balance_rows(report.cases), title="Balance of kept tasks")


def _base(world: World, file: Path | None, count: int, seed: int) -> tuple[ReasoningCase, ...]:
    """Return the tasks to vary: the tasks of the file or, without a file, `count` generated tasks, balanced by kind."""
    from fhir_gym.tasks.packs.action_reasoning.file_task import read_cases
    from fhir_gym.tasks.packs.action_reasoning.generation import generate

    if file is not None:
        return read_cases(file)
    generated = generate(world, seed=seed, per_family=-(-count // 3))
    by_family: dict[str, list[ReasoningCase]] = {}
    for case in generated:
        by_family.setdefault(case.id.partition("_")[0], []).append(case)
    turns = [case for place in range(len(generated)) for own in by_family.values() for case in own[place : place + 1]]
    return tuple(turns[:count])


def _tasks_of(records: Path) -> Path:
    """Return the path of the file with a sweep's tasks, which is next to the records."""
    return records.with_suffix(".tasks.json")


def _require_same_tasks(path: Path, cases: Sequence[ReasoningCase]) -> None:
    """Raise TaskError if the sweep to resume has other tasks."""
    from fhir_gym.errors import TaskError
    from fhir_gym.tasks.packs.action_reasoning.file_task import read_cases

    if path.exists() and read_cases(path) != tuple(cases):
        raise TaskError(f"{path} contains the tasks of another sweep; use --overwrite to start over")


def _do_sweep(
    prepared: Sweep, world: World, actor: Any, records: Path, overwrite: bool, seed: int, how: dict[str, Any]
) -> tuple[Point, ...]:
    """Run the missing episodes, and return the results of all recorded episodes for each setting."""
    from fhir_gym import rollouts
    from fhir_gym.art_curation.sweep import curve
    from fhir_gym.tasks.packs.action_reasoning.cases import ENV_ID
    from fhir_gym.tasks.packs.action_reasoning.file_task import write_cases

    summary = Summary()
    with temporary_folder() as folder:
        tasks = folder / "tasks.json"
        write_cases(tasks, prepared.cases)
        plan = rollouts.plan(ENV_ID, world=world, task_file=tasks, seed=seed)
        todo = plan if overwrite else plan.unfinished(records, actor, world)
        try:
            with progress(f"Agent {actor.name}") as update:
                running = rollouts.run_plan(todo, actor, **how)
                watched = summary.watch(running, lambda done: update(done, len(todo.episodes)))
                kept = _with_tasks(watched, _tasks_of(records), prepared.cases)
                written = rollouts.write_rollouts(records, kept, overwrite=overwrite)
        except KeyboardInterrupt:
            note(summary.interrupted(len(todo.episodes), records, overwrite))
            raise typer.Exit(130) from None
    summary.require_verdict(records, written)
    note(f"{written} episodes written to {records}; their tasks are in {_tasks_of(records)}")
    return curve(
        prepared, (rollout for rollout in rollouts.read_rollouts(records) if plan.includes(rollout, actor, world))
    )


def _with_tasks(rollouts: Iterable[Rollout], path: Path, cases: Sequence[ReasoningCase]) -> Iterator[Rollout]:
    """Yield the rollouts unchanged, and write the task file just before the first graded rollout."""
    from fhir_gym.tasks.packs.action_reasoning.file_task import write_cases

    missing = True
    for rollout in rollouts:
        if missing and rollout.graded:
            write_cases(path, cases)
            missing = False
        yield rollout


def _print_curve(points: Sequence[Point], csv: Path | None, as_json: bool) -> None:
    if csv is not None:
        from fhir_gym.art_curation.sweep import to_csv

        write_file(csv, to_csv(points))
    if as_json:
        print_json([point.plain() for point in points])
        return
    for kind, title in (("window", "By window"), ("shift", "By shift of the limits")):
        own = [point for point in points if point.setting.kind == kind]
        if own:
            table(own[0].columns, [point.row() for point in own], title=title)
            out.print()
