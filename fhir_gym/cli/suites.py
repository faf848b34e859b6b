"""The commands `fhir-gym suites …`."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import typer

from fhir_gym.cli._console import fields, print_json, print_text, progress, table
from fhir_gym.cli._options import JsonOption, SuiteOptions, with_option_groups

app = typer.Typer(help="List and show suites: fixed lists of episodes for evaluations.", no_args_is_help=True)


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
