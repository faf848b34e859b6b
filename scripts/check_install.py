"""Install the package as users do, in fresh environments outside the clone, and check that it works and leaves nothing.

    python -m scripts.check_install                                       # with the Python that runs the script
    python -m scripts.check_install --python python3.12 python3.13 --extras

It builds a wheel and a source archive. For each Python and archive it installs the archive, runs `fhir-gym demo` in an
empty folder with an empty home, checks that the home then has files in the cache folder only, uninstalls the package
and looks for files that are left. With `--extras`, uv also resolves each extra of the wheel. The result is one line of
JSON for each check; the exit status is 1 if one fails. An interpreter that does not exist is a failed check.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = sorted(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"])
CACHE = ".cache/fhir_gym"


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Attributes:
        problem: What is wrong; empty if the check passed.
    """

    python: str
    archive: str
    name: str
    problem: str
    seconds: float

    def line(self) -> str:
        """Return the check as a line of JSON."""
        fields = {"python": self.python, "archive": self.archive, "check": self.name, "seconds": round(self.seconds, 1)}
        return json.dumps(fields | ({"problem": self.problem} if self.problem else {"passed": True}))


class Installation:
    """An archive that is installed into a fresh environment.

    Args:
        python: The interpreter.
        archive: The wheel or source archive.
        folder: An empty folder for the environment, the home and the working directory.
        uv: The program uv, which resolves extras without downloading them.
    """

    def __init__(self, python: str, archive: Path, folder: Path, uv: Path) -> None:
        self._python, self._archive, self._folder, self._uv = python, archive, folder, uv
        self._home, self._work = folder / "home", folder / "work"
        for path in (self._home, self._work):
            path.mkdir(parents=True)

    def checks(self, extras: bool) -> Iterator[Check]:
        """Perform the checks in order; those that need a failed one are left out."""
        install = self._check("install", lambda: self._pip("install", str(self._archive)))
        yield install
        if install.problem:
            return
        before = self._files()  # pip may have made some
        yield self._check("demo", lambda: self._run([str(self._bin / "fhir-gym"), "demo"]))
        yield self._check("files", lambda: ", ".join(sorted(self._files() - before)))
        for extra in EXTRAS if extras else ():
            yield self._check(f"extra {extra}", partial(self._resolve, extra))
        yield self._check("uninstall", self._uninstall)

    @property
    def _bin(self) -> Path:
        return self._folder / "env" / "bin"

    def _check(self, name: str, perform: Callable[[], str]) -> Check:
        start = time.monotonic()
        problem = perform()
        return Check(self._python, self._archive.suffix.lstrip("."), name, problem, time.monotonic() - start)

    def _run(self, command: list[str]) -> str:
        """Run a command in the working directory; return the last line of its errors, or nothing."""
        clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        clean |= {"HOME": str(self._home), "XDG_CACHE_HOME": str(self._home / ".cache")}
        try:
            done = subprocess.run(command, cwd=self._work, env=clean, capture_output=True, text=True, check=False)
        except OSError as error:
            return f"{command[0]}: {error.strerror}"
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        return "" if done.returncode == 0 else (lines or [f"exit status {done.returncode}"])[-1]

    def _pip(self, *arguments: str) -> str:
        if not self._bin.exists() and (problem := self._run([self._python, "-m", "venv", str(self._folder / "env")])):
            return problem
        pip = [str(self._bin / "python"), "-m", "pip", "--quiet", "--no-input", "--no-cache-dir"]
        return self._run([*pip, *arguments])

    def _resolve(self, extra: str) -> str:
        requirement = self._work / "extra.in"
        requirement.write_text(f"fhir-gym[{extra}] @ {self._archive.as_uri()}\n", "utf-8")
        return self._run([str(self._uv), "pip", "compile", "--quiet", f"--python={self._bin}/python", str(requirement)])

    def _files(self) -> set[str]:
        """Return the files of the home that are not in the cache folder."""
        files = {path.relative_to(self._home).as_posix() for path in self._home.rglob("*") if path.is_file()}
        return {file for file in files if not file.startswith(f"{CACHE}/")}

    def _uninstall(self) -> str:
        problem = self._pip("uninstall", "--yes", "fhir-gym")
        left = [path.name for path in (self._folder / "env").rglob("fhir*gym*")]
        return problem or (f"left: {', '.join(sorted(left))}" if left else "")


def build(folder: Path) -> tuple[list[Path], Path]:
    """Build a wheel and a source archive; return their paths and the path of uv."""
    subprocess.run([sys.executable, "-m", "venv", str(folder / "builder")], check=True)
    python = str(folder / "builder" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "--quiet", "install", "build", "uv"], check=True)
    archives = folder / "archives"
    subprocess.run([python, "-m", "build", "--outdir", str(archives), str(ROOT)], check=True, capture_output=True)
    return sorted(archives.iterdir()), folder / "builder" / "bin" / "uv"


def main() -> None:
    """Perform the checks and print their results."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters")
    options.add_argument("--extras", action="store_true", help="resolve each extra of the wheel")
    chosen = options.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as name:
        archives, uv = build(Path(name))
        for number, python in enumerate(chosen.python):
            for archive in archives:
                installation = Installation(python, archive, Path(name, f"{number}{archive.suffix}"), uv)
                for check in installation.checks(chosen.extras and archive.suffix == ".whl"):
                    print(check.line(), flush=True)
                    failed = failed or bool(check.problem)
    sys.exit(failed)


if __name__ == "__main__":
    main()
