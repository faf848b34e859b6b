"""The code in the documentation runs, its commands exist, and it covers all public names."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
import shlex
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import gymnasium
import pytest

import fhir_gym
from fhir_gym import tasks
from fhir_gym.cli._app import app
from fhir_gym.errors import MissingExtraError, pip_install
from fhir_gym.plugins import PACKS
from fhir_gym.tasks import pack_ids
from fhir_gym.training import TrainingConfig, load_config

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "api").glob("*.md"))]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
PUBLIC_PACKAGES = (
    "actions",
    "agents",
    "envs",
    "errors",
    "evaluation",
    "fhir",
    "integrations",
    "mcp_servers",
    "reflexion",
    "rollouts",
    "soundness",
    "specification",
    "suites",
    "tasks",
    "testing",
    "training",
    "worlds",
)
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\s*(?:prints\s+)?```text\n(.*?)^```)?", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def commands() -> dict[str, list[str]]:
    """Return every command with the names of its long options."""
    from typer.main import get_command

    found: dict[str, list[str]] = {}

    def walk(command: object, name: str) -> None:
        children = getattr(command, "commands", {})
        for child, value in children.items():
            walk(value, f"{name} {child}")
        if not children:
            options = [opt for param in getattr(command, "params", []) for opt in param.opts if opt.startswith("--")]
            found[name] = [option for option in options if option != "--help"]

    walk(get_command(app), "fhir-gym")
    return found


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return the Python blocks of a page, each with the expected output from the next text block (or without one)."""
    return BLOCK.findall(page.read_text("utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=page_id)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    """The blocks of a page run in order as one program and print the output that the page shows."""
    end = "-- end of block --"
    source = "".join(f"{code}\nprint({end!r})\n" for code, _ in blocks(page))
    if "write_rollouts(" in source:
        source += source  # a page also runs if its files already exist
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, f"{page_id(page)}:\n{done.stdout}\n{done.stderr}"
    for path in tmp_path.glob("*.jsonl"):
        lines = path.read_bytes().splitlines()
        assert len(lines) == len(set(lines)), f"{page_id(page)} writes lines of {path.name} twice"
    for (_, shown), printed in zip(blocks(page), done.stdout.split(f"{end}\n"), strict=False):
        assert not shown or printed == shown, f"{page_id(page)} shows output that its code does not print"


def test_every_public_name_has_an_example() -> None:
    code = "\n".join(block for page in PAGES for block, _ in blocks(page))
    for name in fhir_gym.__all__:
        used = rf"\bfhir_gym\.{name}\b|from fhir_gym import [\w, ]*\b{name}\b"
        assert re.search(used, code), f"no Python block in README or docs uses fhir_gym.{name}"
    for name in (
        "worlds.load",
        "worlds.build",
        "import_files",
        "World",
        "Session",
        "Request",
        "Response",
        "FinishedEpisode",
    ):
        assert re.search(rf"\b{name}\b", code), f"no Python block in README or docs uses {name}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name != "api"], ids=page_id)
def test_every_page_starts_with_an_example_and_is_short(page: Path) -> None:
    text = page.read_text("utf-8")
    limit = 17_000 if page.name == "cli.md" else 13_000  # cli.md grows with the number of commands
    assert len(text) < limit, f"{page_id(page)} is too long for one question"
    assert blocks(page) or page.name in ("cli.md", "measurements.md"), f"{page_id(page)} has no example"


def signatures(body: list[ast.stmt]) -> set[str]:
    """Return the methods and annotated attributes of a class."""
    found = set()
    for node in body:
        if isinstance(node, ast.FunctionDef):
            found.add(f"{node.name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns) if node.returns else None}")
        elif isinstance(node, ast.AnnAssign):
            found.add(ast.unparse(node))
    return found


def test_the_signatures_for_task_authors_equal_the_code() -> None:
    page = (ROOT / "docs" / "writing_tasks.md").read_text("utf-8")
    (stub,) = re.findall(r"^```pyi\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    for node in ast.parse(stub).body:
        assert isinstance(node, ast.ClassDef)
        (source,) = ast.parse(inspect.getsource(getattr(tasks, node.name))).body
        assert isinstance(source, ast.ClassDef)
        assert signatures(node.body) <= signatures(source.body), f"docs/writing_tasks.md: {node.name}"


def modules_with_examples() -> list[str]:
    files = (path for path in (ROOT / "fhir_gym").rglob("*.py") if ">>> " in path.read_text("utf-8"))
    return sorted(".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files)


@pytest.mark.parametrize("name", modules_with_examples())
def test_docstring_examples_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_names_in_the_docs_exist() -> None:
    named = {*re.findall(r"\bfhir_gym(?:\.[A-Za-z_]\w*)+", TEXT)} - {PACKS}
    for name in named:
        with suppress(MissingExtraError):  # a package that needs an extra
            try:
                assert pkgutil.resolve_name(name) is not None
            except AttributeError:  # a module that needs a library of an extra, or no name at all
                assert find_spec(name) is not None


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text("utf-8")):
        if not re.match(r"[a-z]+:|#", target):
            assert (page.parent / target.partition("#")[0]).exists(), f"{page_id(page)} links to {target}"


def test_every_public_package_has_a_page_of_reference() -> None:
    pages = "\n".join(page.read_text("utf-8") for page in (ROOT / "docs" / "api").glob("*.md"))
    described = set(re.findall(r"^::: (\S+)$", pages, re.MULTILINE))
    assert described >= {"fhir_gym", *(f"fhir_gym.{name}" for name in PUBLIC_PACKAGES)}


def test_the_site_has_every_page() -> None:
    """Every page is in the menu, and its links lead only to files of the site."""
    menu = (ROOT / "zensical.toml").read_text("utf-8")
    docs = ROOT / "docs"
    for page in PAGES[1:]:
        assert f'"{page.relative_to(docs).as_posix()}"' in menu, f"zensical.toml does not list {page_id(page)}"
        for target in LINK.findall(page.read_text("utf-8")):
            if not re.match(r"[a-z]+:|#", target):
                assert (page.parent / target).resolve().is_relative_to(docs), f"{page_id(page)} links to {target}"


@pytest.mark.parametrize("command", sorted(commands()))
def test_every_command_is_documented(command: str) -> None:
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    usage = re.search(rf"^    {re.escape(command)}\b.*(?:\n        .*)*", page, re.MULTILINE)
    assert usage, f"docs/cli.md has no usage line of {command!r}"
    options = usage.group()
    for group, meaning in re.findall(r"`(\[[A-Z]+\])` stands for\s`(.+?)`", page):
        options = options.replace(group, meaning)
    documented = set(re.findall(r"--[a-z-]+", options))
    known = set(commands()[command])
    assert known <= documented, f"docs/cli.md: {command} lacks {sorted(known - documented)}"
    assert documented <= known, f"docs/cli.md: {command} has no option {sorted(documented - known)}"


def test_documented_commands_exist() -> None:
    """Every `fhir-gym …` line in a page names a command that exists."""
    known = {name.split()[1] for name in commands()}
    for line in re.findall(r"^    fhir-gym (.+)$", TEXT, re.MULTILINE):
        assert shlex.split(line.replace("'", ""))[0] in known, line


def test_every_env_id_is_documented() -> None:
    registered = [name for name in gymnasium.registry if name.startswith("FHIRAgent/")]
    assert registered
    for env_id in {*registered, *pack_ids()}:
        assert env_id in TEXT, f"no page mentions {env_id}"


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("training_*.md")), ids=page_id)
def test_the_settings_of_recipes_load(page: Path, tmp_path: Path) -> None:
    """Each TOML block is a config of the recipe in the command before it, and each documented setting exists."""
    first, *parts = re.split(r"^    fhir-gym train (\w+) --config.*$", page.read_text("utf-8"), flags=re.MULTILINE)
    assert parts and "```toml" not in first, f"{page_id(page)} has a config without a command"
    for recipe, text in zip(parts[::2], parts[1::2], strict=True):
        kind = getattr(importlib.import_module(f"fhir_gym.training.{recipe}"), f"{recipe.capitalize()}Config")
        for block in re.findall(r"^```toml\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            path = tmp_path / f"{recipe}.toml"
            path.write_text(block, "utf-8")
            load_config(path, kind)
        table = re.search(r"^\| setting \|.*\n\|.*\n((?:\|.*\n)+)", text, re.MULTILINE)
        cells = [row.split("|")[1] for row in table[1].splitlines()] if table else []
        for name in re.findall(r"`(\w+)(?: = |`)", " ".join(cells)) + re.findall(r"`(\w+) = ", text):
            assert name in kind.model_fields, f"{page_id(page)}: {kind.__name__} has no field {name}"


def test_the_settings_of_all_recipes_exist() -> None:
    page = (ROOT / "docs" / "training.md").read_text("utf-8")
    table = page[page.index("| field | meaning | default |") :].partition("\n\n")[0]
    names = [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert len(names) > 8 and set(names) <= set(TrainingConfig.model_fields)


def test_every_extra_is_documented_and_asked_for() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    table = (ROOT / "docs" / "start.md").read_text("utf-8")
    source = "\n".join(path.read_text("utf-8") for path in (ROOT / "fhir_gym").rglob("*.py"))
    for extra in extras:
        assert f"| `{extra}` |" in table
        assert re.search(rf"""(pip_install\(|extra=)["']([\w,-]+,)?{extra}[,"']""", source), f"nothing asks for {extra}"
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", table, re.MULTILINE)) == set(extras)


def test_every_page_and_example_installs_extras_as_the_messages_do() -> None:
    """Until the first release, pip installs the clone: `fhir_gym.errors` decides."""
    distribution = pip_install("x").removeprefix("pip install '").partition("[")[0]
    files = [*PAGES, ROOT / "CHANGELOG.md", *(ROOT / "examples").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    installed = {
        (file.name, name)
        for file in (*files, *(ROOT / "fhir_gym").rglob("*.py"))
        for name in re.findall(r"""pip install [^\n]*?["']([\w.-]+)\[""", file.read_text("utf-8"))
    }
    assert {name for _, name in installed} >= {distribution}
    others = {".", "fhir-gym"} - {distribution}
    assert [place for place in sorted(installed) if place[1] in others] == []


def test_the_version_is_that_of_the_distribution() -> None:
    assert fhir_gym.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
