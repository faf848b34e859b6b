"""Write docs/tasks/*.md, the site's reference of tasks: `python -m scripts.generate_task_docs`.

The pages come from the task classes and are not committed; `make docs-site` writes them before it builds the site.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fhir_gym.files import write_file
from fhir_gym.registration import SHIPPED
from fhir_gym.tasks import Task, get_pack, get_task, task_keys
from fhir_gym.tasks.core.docstrings import sections, summary
from fhir_gym.tasks.packs.action_reasoning import ranges

PACKS = {get_pack(env_id).package.rpartition(".")[2]: env_id for env_id in SHIPPED}
FOLDER = Path(__file__).resolve().parent.parent / "docs" / "tasks"


def page(env_id: str) -> str:
    """Return the page of a pack."""
    tasks = [get_task(env_id, key) for key in task_keys(env_id)]
    return "\n".join([*_head(env_id, tasks), *(line for task in tasks for line in _section(task))]).rstrip() + "\n"


def _head(env_id: str, tasks: list[Task[Any]]) -> Iterator[str]:
    yield f"# Tasks of `{env_id}`"
    yield ""
    yield "Made from the task classes by `python -m scripts.generate_task_docs`. See also [tasks](../tasks.md)."
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
    return " or ".join(", ".join(tools) for tools in task.required_tools)


def pages() -> dict[str, str]:
    """Return the text of every page by the name of its file."""
    return {f"{name}.md": page(env_id) for name, env_id in PACKS.items()} | {"reference_ranges.md": _ranges()}


def _ranges() -> str:
    rules = "The rules of these ranges: [action-based reasoning](../action_reasoning.md#reference-ranges)."
    return f"# Reference ranges\n\n{rules} They are not medical advice.\n\n{ranges.markdown()}\n"


def main() -> None:
    """Write the pages."""
    for name, text in pages().items():
        write_file(FOLDER / name, text)


if __name__ == "__main__":
    main()
