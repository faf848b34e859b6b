"""The commands `fhir-gym evaluate`, `fhir-gym suites …` and `fhir-gym submission …`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fhir_gym.cli._console import fields, note, print_json, print_text, progress, table
from fhir_gym.cli._options import AgentOptions, BudgetOptions, JsonOption, RunOptions, SuiteOptions, with_option_groups
from fhir_gym.errors import FhirGymError

if TYPE_CHECKING:
    from fhir_gym.suites import Card

app = typer.Typer(help="List and show suites: fixed lists of episodes for evaluations.", no_args_is_help=True)
submission = typer.Typer(help="Check and pack results of `evaluate` before they are published.", no_args_is_help=True)


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


@submission.command("check")
def check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `evaluate` wrote.")],
    as_json: JsonOption = False,
) -> None:
    """Check that a result is complete and that its score follows from the recorded actions.

    The actions are performed again on the embedded server. Each problem is one line; the exit code is 1 if there is
    one.

    Example: fhir-gym submission check runs/gold
    """
    from fhir_gym.suites.submission import check_submission

    problems = [*check_submission(folder)]
    if as_json:
        print_json({"accepted": not problems, "problems": problems})
    elif problems:
        print_text("\n".join(problems))
    else:
        print_text(f"{folder}: complete, and every score follows from the recorded actions")
    if problems:
        raise typer.Exit(1)


@submission.command("pack")
def pack(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `evaluate` wrote.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="New folder.")],
) -> None:
    """Write a small copy of a result, in which hashes replace the server's answers.

    `submission check` verifies both forms. The actions and the model's replies stay.

    Example: fhir-gym submission pack runs/gold runs/gold-packed
    """
    from fhir_gym.suites.submission import pack_submission

    pack_submission(folder, out)
    before, after = (sum(file.stat().st_size for file in path.iterdir()) for path in (folder, out))
    note(f"{out}: {after / 1e6:.1f} MB instead of {before / 1e6:.1f} MB")


@app.command("list")
def list_suites(as_json: JsonOption = False) -> None:
    """List the suites with their numbers of packs, tasks and episodes.

    Example: fhir-gym suites list
    """
    from fhir_gym.suites import OFFICIAL, known_suites

    rows: list[dict[str, Any]] = [
        {
            "name": suite.name,
            "about": suite.about,
            "packs": len(suite.env_ids),
            "tasks": len({episode[:2] for episode in suite.episodes}),
            "episodes": len(suite.episodes),
        }
        for suite in known_suites()
    ]
    about = "the 300 tasks of MedAgentBench's own task file, which it needs"
    rows.append({"name": OFFICIAL, "about": about, "packs": 1, "tasks": 300, "episodes": 300})
    if as_json:
        print_json(rows)
        return
    table(tuple(rows[0]), [tuple(row.values()) for row in rows])


@app.command("show")
@with_option_groups
def show(
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a suite; see `suites list`.")],
    official: SuiteOptions,
    as_json: JsonOption = False,
) -> None:
    """Show the hash, the worlds and the tasks of a suite; `--json` lists the episodes.

    Example: fhir-gym suites show core-v1
    """
    from fhir_gym import suites

    suite = official.suite(name)
    with progress("Building a world") as update, suites.open_suite(suite, update) as content:
        packs = [
            {
                "env_id": env_id,
                "world": content.worlds[env_id].name,
                "world_hash": content.worlds[env_id].manifest.content_hash,
                "max_steps": suite.config(env_id).step_limit,
            }
            for env_id in suite.env_ids
        ]
        hashes = {key: record.hash for key, record in content.tasks.items()}
    if as_json:
        episodes = [episode._asdict() | {"hash": hashes[episode[:3]]} for episode in suite.episodes]
        print_json({"name": name, "hash": content.hash, "grading": suite.grading, "packs": packs, "episodes": episodes})
        return
    count = len(suite.episodes)
    about = {"name": name, "about": suite.about, "hash": content.hash, "grading": suite.grading, "episodes": count}
    fields([*about.items()])
    for pack in packs:
        counts = Counter(episode.task for episode in suite.episodes if episode.env_id == pack["env_id"])
        print_text(f"\n{pack['env_id']}, world {pack['world']} {str(pack['world_hash'])[:12]}")
        for count in dict.fromkeys(counts.values()):
            keys = [task for task in counts if counts[task] == count]
            print_text(f"{count} episodes of each of {len(keys)} tasks: {' '.join(keys)}")
