"""Write docs/tasks/*.md from the task classes.

python scripts/generate_task_docs.py            write the pages
python scripts/generate_task_docs.py --check    exit with 1 if a page is out of date
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fhir_gym.files import write_file
from fhir_gym.registration import SHIPPED
from fhir_gym.tasks import Task, get_pack, get_task, task_keys
from fhir_gym.tasks.core.docstrings import sections, summary

PAGES = {get_pack(env_id).package.rpartition(".")[2]: env_id for env_id in SHIPPED}
FOLDER = Path(__file__).resolve().parent.parent / "docs" / "tasks"


def page(env_id: str) -> str:
    """Return the page of a pack."""
    tasks = [get_task(env_id, key) for key in task_keys(env_id)]
    return "\n".join([*_head(env_id, tasks), *(line for task in tasks for line in _section(task))]).rstrip() + "\n"


def _head(env_id: str, tasks: list[Task[Any]]) -> Iterator[str]:
    yield f"# Tasks of `{env_id}`"
    yield ""
    yield "Made from the task classes by `python scripts/generate_task_docs.py`. See also [tasks](../tasks.md)."
    yield ""
    yield "| key | task | kind | category | difficulty | answer |"
    yield "|---|---|---|---|---|---|"
    for task in tasks:
        row = (
            f"`{task.key}`",
            task.title,
            task.kind,
            task.category,
            str(task.difficulty),
            f"`{task.answer.description}`",
        )
        yield f"| {' | '.join(row)} |"
    yield ""


def _section(task: Task[Any]) -> Iterator[str]:
    yield f"## `{task.key}` {task.title}"
    yield ""
    yield summary(task)
    yield ""
    for text in (task.prompts[0], task.answer_instructions):
        yield from (f"> {line}".rstrip().replace("<", "\\<") for line in text.splitlines())
        yield ">"
    yield f"> ({len(task.prompts)} phrasings; values in braces differ by variation)"
    if task.brief is not None:
        yield ""
        yield f"Brief: {task.brief}".replace("<", "\\<")
    yield ""
    for name, text in sections(task).items():
        yield f"- **{name}**: {_plain(text)}"
    steps = f"{task.gold_steps} actions at most, `FINISH` included"
    yield f"- **Reference solution**: {steps}; tools {_alternatives(task)}; types {', '.join(task.required_resources)}"
    yield f"- **Prohibited tools**: {', '.join(task.prohibited_tools) or 'none'}"
    yield ""


def _plain(text: str) -> str:
    return re.sub(r"``(.*?)``", r"`\1`", text)


def _alternatives(task: Task[Any]) -> str:
    return " or ".join(", ".join(one) for one in task.required_tools)


def main() -> int:
    """Write or check the pages."""
    parser = argparse.ArgumentParser(description="Write docs/tasks/*.md from the task classes.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is out of date")
    stale = []
    check = parser.parse_args().check
    for name, env_id in PAGES.items():
        path, text = FOLDER / f"{name}.md", page(env_id)
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path)
        if not check:
            write_file(path, text)
    for path in stale:
        print(f"{'out of date' if check else 'written'}: {path}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
