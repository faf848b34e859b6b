"""A new user's first hour: each error is one line on stderr with exit code 1 or 2, and no file is lost.

The tests give every kind of wrong file to every command that reads files, every unwritable path to every command that
writes files, and an invalid value to every option. A slow test runs the commands of the
README and the docs in a fresh clone.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fhir_gym.agents.memory import Memory
from fhir_gym.cli import main
from tests.cli.conftest import Cli
from tests.test_docs import commands

ROOT = Path(__file__).resolve().parents[2]
CLINIC, REASONING, BENCH = (f"FHIRAgent/{name}-v0" for name in ("Appointment", "ActionReasoning", "MedAgentBench"))
ONE = f"rollout {CLINIC} --tasks 01 --variations 0 --out new"
CHAT = f"{ONE} --model m --base-url http://127.0.0.1:9/v1"
SWEEP = "research art sweep --tasks 3 --windows 12h --out new"

WRONG_FILES = ("./missing", "folder", "void", "binary", "list.json")
MORE_WRONG_FILES = (
    *("missing/x", "text/x", "loop", "x" * 300, "blank", "nul", "text", "latin", "utf16", "object.json", "deep.json"),
    *("future.jsonl", "middle.jsonl"),
)
READING = (
    *("dataset FILE --out existing", "dataset good.jsonl FILE --out existing", "report FILE", "report good.jsonl FILE"),
    *(
        "research art audit FILE --out new",
        "research art review FILE sheet.csv --out new",
        "research art review tasks.json FILE --out new",
    ),
    *(f"{SWEEP} --tasks-file FILE", f"rollout {REASONING} --task-file FILE --out new"),
    *(f"rollout {BENCH} --task-file FILE --out new", f"rollout {BENCH} --task-file tasks.json --funcs-file FILE"),
    *("worlds info FILE", "worlds verify FILE", "serve --world FILE --port 18080", f"{ONE} --world FILE"),
    *("worlds import FILE --out new", "research art mine --world FILE", f"tasks check {CLINIC} --world FILE"),
)
WRONG_PLACES = ("folder", "text/x", "loop", "loop/x", "x" * 300, "/dev/null/x")
WRITING = (
    *("dataset good.jsonl --out FILE", f"rollout {CLINIC} --tasks 01 --variations 0 --out FILE"),
    *(
        f"rollout {CLINIC} --tasks 01 --variations 0 --out FILE --overwrite",
        "research art review tasks.json sheet.csv --out FILE",
    ),
    *(
        "research art generate --per-family 1 --out FILE",
        "research art generate --per-family 1 --out new --review FILE",
    ),
    *(
        "research art audit tasks.json --html FILE --overwrite",
        "research art sweep --tasks 3 --windows 12h --out FILE --overwrite",
    ),
    *(f"{SWEEP} --csv FILE", "demo --variations 1 --out text", "worlds build empty --out FILE"),
)
WRONG_WORDS = (
    *("nonsense", "rollot", "--nonsense", "worlds nonsense", "demo --nonsense", "rollout", f"rollout {CLINIC} extra"),
    *("rollout nonsense --out new", "rollout '' --out new", f"rollout {CLINIC[:-3]} --out new", "report", "dataset x"),
    *(f"tasks show {CLINIC}", f"tasks show {CLINIC} 99", "tasks show X 01", "tasks list X", "tasks check X"),
    *(f"tasks show {CLINIC} 01 --variation -1", f"tasks show {CLINIC} 01 --variation nan", "tasks probe X"),
    *(
        f"tasks check {CLINIC} --tasks 99",
        f"tasks check {CLINIC} --variations nan",
        f"tasks check {CLINIC} --workers -1",
    ),
    *(f"{ONE} --tasks 99", f"{ONE} --tasks 01,99", f"{ONE} --world hospital-smal"),
    *(f"{ONE} --agent golden", f"{ONE} --agent ''", f"{ONE} --agent chat", f"{ONE} --agent scripted"),
    *(f"{ONE} --agent no.such.module:X", f"{ONE} --agent json:Nothing", f"{ONE} --agent json:dumps"),
    *(f"{ONE} --split tain", f"{ONE} --split test", f"{ONE} --split ''", f"{ONE} --grading x", f"{ONE} --reward x"),
    *(
        f"{ONE} --grading official",
        f"{ONE} --phrasing 99",
        f"{ONE} --phrasing -1",
        f"{ONE} --phrasing short",
        f"{ONE} --resume --overwrite",
    ),
    *(f"{ONE} --variations {text}" for text in ("nan", "-1", "1.5", "3-1", "''", "0,,1", "0x1", f"0-{9**30}")),
    *(f"{ONE} --seed {text}" for text in ("nan", "1.5", "x", "''")),
    *(f"{ONE} --{name} {text}" for name in ("repeats", "concurrency", "max-episodes") for text in ("0", "-1", "nan")),
    *(f"{ONE} --{name} -1" for name in ("workers", "price-in", "price-out", "max-steps", "max-tokens", "max-seconds")),
    *(f"{ONE} --max-seconds nan", f"{ONE} --price-in nan", f"{ONE} --set x", f"{ONE} --set =1", f"{ONE} --set a=1"),
    *(f"{ONE} --agent random --set finish={value}" for value in ("2", "-1", "NaN", "nan", "x", "null", "[1]")),
    *(
        f"{CHAT} --set {setting}"
        for setting in ("temperature=NaN", "timeout=-1", "context_tokens=-1", "retries=x", "extra=1")
    ),
    *(f"{ONE} --fhir-server {url}" for url in ("nonsense", "ftp://x/fhir", "''", "http://[")),
    *(f"{ONE} --task-file tasks.json", f"{ONE} --funcs-file tasks.json", "dataset good.jsonl --out good.jsonl"),
    *("dataset good.jsonl --out existing --tasks 99", "dataset good.jsonl --out existing --min-reward nan"),
    *(
        "dataset good.jsonl --out existing --format x",
        "report good.jsonl --by x",
        "report good.jsonl --json --markdown",
    ),
    *(f"serve --port {port}" for port in ("0", "-1", "x", "80808")),
    *("serve --validation x --port 18080", "worlds build x", "worlds build empty --seed x", "worlds import ftp://x/y"),
    *("worlds import text --name 'a b' --out new", "demo --variations 0", "demo --world nope"),
    *(f"research art generate --out new {words}" for words in ("--per-family 0", "--review new", "--seed x")),
    *(f"research art sweep --tasks 3 --out new --windows {text}" for text in ("nan", "-1h", "12h,", "''")),
    *(
        "research art sweep --tasks 3 --out new --shifts=nan%",
        "research art sweep --out new --windows 12h --tasks 1",
        "research art sweep",
    ),
)

UNUSABLE = (
    *("evaluate --suite quick-v1 --out new/deep --model m --base-url http://127.0.0.1:9/v1",),
    *(CHAT, f"{SWEEP} {CHAT.partition('--out new ')[2]}", f"{ONE} --model m", f"{ONE} --out existing"),
    *(f"{ONE} --fhir-server http://127.0.0.1:9/fhir", "serve --host nohost.invalid --port 18080"),
    *(
        "serve --port TAKEN",
        f"{ONE} --world ''",
        "worlds build empty --out text",
        "worlds import http://127.0.0.1:9/fhir --out new",
        "demo --out mine",
    ),
    *("research art generate --out existing", "research art sweep --tasks 3 --windows 12h --out existing"),
    *("research art generate --out new --rephrase-with m --base-url http://127.0.0.1:9/v1 --per-family 1",),
)
SERVER, MODEL = "http://127.0.0.1:9/fhir", "--model m --base-url http://127.0.0.1:9/v1"
RIGHT = {
    f"fhir-gym {command}": argv
    for command, argv in {
        "demo": "--variations 1 --out new",
        "tasks list": CLINIC,
        "tasks show": f"{CLINIC} 01",
        "tasks check": f"... --tasks 01 --variations 1 {CLINIC}",
        "tasks probe": f"... --tasks 01 {CLINIC}",
        "tasks looks": f"... --tasks 01 {CLINIC}",
        "tasks review": f"... {MODEL} --out new good.jsonl",
        "rollout": f"{CLINIC} --tasks 01 --variations 0 --out new",
        "report": "... good.jsonl",
        "view": "... --export new good.jsonl",
        "replay": "good.jsonl",
        "evaluate": "--suite quick-v1 --agent gold --out new",
        "suites list": "",
        "suites show": "quick-v1",
        "submission check": "new",
        "submission pack": "new new2",
        "worlds list": "",
        "worlds build": "empty --out new",
        "worlds import": "text --out new",
        "worlds upload": f"empty {SERVER}",
        "worlds compare": f"empty {SERVER}",
        "worlds export": "empty new",
        "worlds remove": "empty",
        "worlds info": "empty",
        "worlds verify": "empty",
        "dataset": "... --out new good.jsonl",
        "train sb3": "--config wrong.toml --out new",
        "train sft": "--config wrong.toml --out new",
        "train expert": "--config wrong.toml --out new",
        "train grpo": "--config wrong.toml --out new",
        "train memory": f"{MODEL} --out new",
        "train report": "... --out new new",
        "memory show": "memory.jsonl",
        "serve": "--world empty --port 18080",
        "servers restore": f"empty {SERVER}",
        "mcp fhir": f"... --http 18080 {CLINIC}",
        "mcp spec": "--http 18080",
        "mcp memory": "memory.jsonl --http 18080",
        "openenv serve": f"... --port 18080 {CLINIC}",
        "experiment list": "",
        "experiment run": f"experiment-1 {MODEL} --config baseline --out new",
        "experiment status": "new",
        "experiment report": "... new",
        "research art mine": "",
        "research art generate": "--out new --per-family 1",
        "research art audit": "tasks.json",
        "research art review": "tasks.json sheet.csv --out new",
        "research art sweep": "--tasks 3 --windows 12h --out new",
        "publish harbor": f"{CLINIC} --tasks 01 --out new",
        "publish openenv": f"{CLINIC} --out new",
        "publish verifiers": f"{CLINIC} --out new",
        "research harbor serve": f"{CLINIC} --task 01 --variation 0 --port 18080",
        "research harbor verdict": "--out new",
    }.items()
}
"""Arguments of every command without a wrong value; `...` marks commands that take any number of them."""
WRONG_VALUES = {
    **dict.fromkeys(("--world", "--tasks", "--task", "--suite", "--agent", "--config", "--pack", "--by"), "nope"),
    **dict.fromkeys(("--variations", "--phrasing", "--windows", "--shifts", "--http", "--ray", "--date"), "nope"),
    **dict.fromkeys(("--embedder", "--env-ids", "--operation", "--price", "--set", "--training-set", "--dial"), "nope"),
    **dict.fromkeys(("--format", "--split", "--grading", "--reward", "--protocol", "--observations"), "nope"),
    **dict.fromkeys(("--validation", "--feedback", "--outcome", "--fhir-header", "--fhir-user"), "nope"),
    **dict.fromkeys(("--fhir-token-from-env", "--fhir-header-from-env", "--base-url", "--fhir-server"), "nope"),
    **dict.fromkeys(("--workers", "--repeats", "--concurrency", "--max-steps", "--max-tokens", "--trials"), "-1"),
    **dict.fromkeys(("--max-episodes", "--max-seconds", "--max-cost", "--price-in", "--price-out", "--limit"), "-1"),
    **dict.fromkeys(("--train", "--test", "--max-reviews", "--max-chars", "--sample", "--per-family"), "-1"),
    **dict.fromkeys(("--port", "--variation", "--level", "--episode", "--max-sessions", "--idle-timeout"), "-1"),
    **dict.fromkeys(("--seed", "--temperature", "--min-reward", "--max-reply-tokens"), "x"),
}
"""A wrong value of every option whose value can be wrong by itself, whatever files and servers there are."""

HOUR = (
    *("--version", "worlds list", "worlds info hospital-small", f"tasks list {CLINIC}", f"tasks show {CLINIC} 02a"),
    *("demo --variations 1", "demo --variations 1", f"rollout {CLINIC} --tasks 01,02a --variations 0-1"),
    *(f"rollout {CLINIC} --tasks 01,02a --variations 0-1 --resume", "report rollouts.jsonl --by task"),
    *("dataset rollouts.jsonl --out train.jsonl", "dataset rollouts.jsonl --out train.jsonl"),
    *(
        "research art generate --per-family 2 --out tasks.json",
        f"rollout {REASONING} --task-file tasks.json --out art.jsonl",
    ),
)


def run(argv: str) -> None:
    with pytest.raises(SystemExit) as left:
        main(shlex.split(argv))
    assert not left.value.code


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that contains every kind of wrong file, and some valid files."""
    folder = tmp_path_factory.mktemp("hour")
    before = Path.cwd()
    os.chdir(folder)
    try:
        run(f"rollout {CLINIC} --tasks 01,02a --variations 0 --out good.jsonl")
        run("research art generate --per-family 1 --out tasks.json --review sheet.csv --sample 3")
        Memory([]).save("memory.jsonl")
    finally:
        os.chdir(before)
    good = (folder / "good.jsonl").read_text("utf-8").splitlines()
    for name, content in {
        "void": b"",
        "blank": b"\n\n",
        "binary": bytes(range(256)) * 9,
        "nul": b"\0" * 100,
        "text": b"precious\n",
        "existing": b"precious",
        "latin": "Zoë".encode("latin-1"),
        "utf16": "hello".encode("utf-16"),
        "object.json": b'{"a": 1}\n',
        "list.json": b"[1, 2]\n",
        "deep.json": b"[" * 100_000,
        "wrong.toml": b"nope = 1",
        "future.jsonl": good[0].replace('"schema_version":2', '"schema_version":99').encode(),
        "middle.jsonl": f"{good[0][:300]}\n{good[1]}\n".encode(),
        "mine/rollouts.jsonl": good[0].replace('"gold"', '"mine"').encode(),
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to("loop")
    return folder


@pytest.fixture
def kept(made: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Change to the folder, and check after the test that its files are unchanged."""
    monkeypatch.chdir(made)
    before = contents(made)
    yield
    assert contents(made) == before


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def refuses(cli: Cli, argv: str, code: int) -> None:
    """Check that a command fails with an exit code and prints one error line."""
    outcome = cli(*shlex.split(argv))
    told = outcome.err.splitlines()
    assert outcome.code == code, (argv, outcome)
    assert outcome.out == "", argv
    assert told and told[0].startswith("error: "), (argv, told)
    assert all(line.startswith("  ") for line in told[1:]), (argv, told)  # an import lists all problems below
    assert "Traceback" not in outcome.err and "a bug of" not in outcome.err, (argv, told)


@pytest.mark.parametrize(
    "name", [*WRONG_FILES, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE_WRONG_FILES)]
)
@pytest.mark.usefixtures("kept")
def test_a_wrong_file_gives_one_line(cli: Cli, name: str) -> None:
    for argv in READING:
        # A link to itself is no file, so a command that takes the name or the path of a world reads it as a name.
        is_name = name == "loop" and ("--world FILE" in argv or argv in ("worlds info FILE", "worlds verify FILE"))
        refuses(cli, argv.replace("FILE", name), 2 if is_name else 1)


@pytest.mark.parametrize("name", WRONG_PLACES)
@pytest.mark.usefixtures("kept")
def test_an_unwritable_path_gives_one_line(cli: Cli, name: str) -> None:
    for argv in WRITING:
        refuses(cli, argv.replace("FILE", name), 1)


@pytest.mark.parametrize("argv", WRONG_WORDS)
@pytest.mark.usefixtures("kept")
def test_wrong_arguments_give_one_line(cli: Cli, argv: str) -> None:
    refuses(cli, argv, 2)


@pytest.mark.parametrize("argv", UNUSABLE)
@pytest.mark.usefixtures("kept")
def test_unusable_servers_files_and_agents_give_one_line(cli: Cli, argv: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refuses(cli, argv.replace("TAKEN", str(taken.getsockname()[1])), 1)


def test_every_command_has_a_right_command_line() -> None:
    assert set(RIGHT) == set(commands())


@pytest.mark.parametrize("command", RIGHT)
@pytest.mark.usefixtures("kept")
def test_every_command_refuses_wrong_options_and_values(cli: Cli, command: str) -> None:
    name, options = command.removeprefix("fhir-gym "), commands()[command]
    wrong = ["--nonsense"]
    for option, value in WRONG_VALUES.items():
        is_file = name.startswith("train ") and option == "--config"
        if option in options and not is_file and (option, name) != ("--world", "openenv serve"):  # it asks for an extra
            wrong.append(f"{option} {value}")
    wrong += ["surplus surplus"] * ("..." not in RIGHT[command])
    for words in wrong:
        refuses(cli, f"{name} {RIGHT[command].replace('...', '')} {words}", 2)


@pytest.mark.parametrize("recipe", ["sb3", "sft", "expert", "grpo", "memory"])
@pytest.mark.usefixtures("kept")
def test_a_wrong_field_of_a_config_is_wrong_usage(cli: Cli, recipe: str) -> None:
    refuses(cli, f"train {recipe} --config wrong.toml --out new", 2)
    refuses(cli, f"train {recipe} --config text --out new", 2)
    refuses(cli, f"train {recipe} --config missing.toml --out new", 1)


def test_text_that_a_terminal_cannot_show_is_escaped(tmp_path: Path) -> None:
    """Run the command line in a separate process, because pytest captures the streams of this process."""
    plain = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "fhir_gym", "tasks", "show", CLINIC, "Zoë"]
    done = subprocess.run(command, env=plain, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: unknown task 'Zo\\xeb'") and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    line = f"{shlex.quote(sys.executable)} -m fhir_gym tasks list --json | true"
    there = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, shell=True, env=there, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no repository to clone")
def test_commands_of_readme_and_docs_work_in_a_fresh_clone(tmp_path: Path) -> None:
    clone = tmp_path / "fhir_gym"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    there = {**os.environ, "PYTHONPATH": str(clone)}
    for argv in HOUR:
        words = [sys.executable, "-m", "fhir_gym", *shlex.split(argv)]
        done = subprocess.run(words, env=there, cwd=clone, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (argv, done.stderr)
        assert "Traceback" not in done.stderr and "warning" not in done.stderr, (argv, done.stderr)
    written = {path.name: len(path.read_bytes().splitlines()) for path in clone.glob("*.jsonl")}
    assert written == {"rollouts.jsonl": 4, "train.jsonl": 4, "art.jsonl": 6}
