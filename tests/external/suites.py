"""Run test suites of other projects on the embedded server.

    make test-external DIR=FOLDER    FOLDER: a checkout of a suite, or a folder of checkouts

Nothing of these suites is in this repository. The suites are

- ``FHIR Patch`` of github.com/FHIR/fhir-test-cases;
- ``JSON Patch`` of github.com/json-patch/json-patch-tests;
- ``fhir262`` of github.com/HealthSamurai/fhir262, which needs Node.js, and ``npm install`` in its folder;
- the search tests of github.com/microsoft/fhir-server, which are only counted: C# code that starts Microsoft's server.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fhir_gym import worlds
from fhir_gym.fhir.adapters.http import create_app
from fhir_gym.fhir.interactions.patch import apply_json_patch, parse_json_patch, read_patch
from fhir_gym.fhir.limits import Limits
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.serialization.xml import parse_xml
from fhir_gym.printable import one_line
from fhir_gym.testing.servers import AppServer

FHIR_PATCH = "r4/patch/fhir-path-tests.xml"
JSON_PATCH = ("tests.json", "spec_tests.json")
MICROSOFT = "test/Microsoft.Health.Fhir.Shared.Tests.E2E/Rest/Search"
# A regular expression, because the file of some commits is not well-formed XML.
_CASE = re.compile(
    r'<case name="([^"]*)"[^>]*>.*?<input>(.*?)</input>.*?<diff>(.*?)</diff>\s*(?:<output>(.*?)</output>|<error\b)',
    re.DOTALL,
)


class Case(NamedTuple):
    """The result of a case: passed, failed, or left out."""

    name: str
    failure: str = ""
    left_out: str = ""


def _patched(name: str, change: Callable[[], Any], expected: Any, *, is_refused: bool) -> Case:
    """Compare the result of a patch with the expected one, or see that the patch is refused."""
    try:
        changed = change()
    except FhirError as error:
        return Case(name, "" if is_refused else f"refused: {error.diagnostics}")
    if is_refused:
        return Case(name, "not refused")
    texts = [json.dumps(value, sort_keys=True) for value in (expected, changed)]
    return Case(name, "" if texts[0] == texts[1] else f"expected {texts[0]}, got {texts[1]}")


def fhir_patch(folder: Path) -> Iterator[Case]:
    text = (folder / FHIR_PATCH).read_text("utf-8")
    cases = _CASE.findall(text)
    for name, before, patch, after in cases:
        expected = parse_xml(after.strip().encode(), None) if after else None
        resource, body = parse_xml(before.strip().encode(), None), patch.strip().encode()

        def change(resource: Any = resource, body: bytes = body) -> Any:
            return read_patch("application/fhir+xml", body).apply(resource, "Patient/1", Limits())

        yield _patched(name, change, expected, is_refused=not after)
    for _ in range(text.count("<case ") - len(cases)):
        yield Case("?", left_out="in no known form")


def json_patch(folder: Path) -> Iterator[Case]:
    for file in JSON_PATCH:
        for number, case in enumerate(json.loads((folder / file).read_text("utf-8"))):
            name = f"{file} {number}: {case.get('comment') or case.get('error', '')}"
            if case.get("disabled") or "patch" not in case:
                yield Case(name, left_out="disabled by the suite")
                continue
            document, body = case["doc"], json.dumps(case["patch"]).encode()

            def change(document: Any = document, body: bytes = body) -> Any:
                return apply_json_patch(document, parse_json_patch(body))

            expected = case.get("expected", document)  # without it, the patch only tests
            yield _patched(name, change, expected, is_refused="error" in case)


def fhir262(folder: Path) -> Iterator[Case]:
    jest = folder / "node_modules/.bin/jest"
    if not jest.exists():
        yield Case("all", left_out="`npm install` has not run in its folder")
        return
    with (
        tempfile.TemporaryDirectory() as out,
        worlds.load("empty") as world,
        AppServer(create_app(world, identifier_of_type=True)) as server,
    ):
        report = Path(out, "report.json")
        settings = {"FHIR262_IMPL_PATH": str(Path(__file__).with_name("fhir262.cjs")), "FHIR262_OUT_PATH": str(report)}
        settings |= {"FHIR262_IMPL_NAME": "fhir_gym", "FHIR_GYM_BASE": f"{server.url}/fhir"}
        command = [str(jest.resolve()), "--config", "jest.config.cjs", "--runInBand"]  # its files share a server
        jest_run = subprocess.run(
            command, cwd=folder, env=os.environ | settings, capture_output=True, text=True, check=False
        )
        if not report.exists():
            yield Case("all", f"jest wrote no report: {jest_run.stderr or jest_run.stdout}")
            return
        for result in json.loads(report.read_text("utf-8"))["results"]:
            failure = result.get("error", "") if result["status"] == "fail" else ""
            yield Case(result["id"], failure, "skipped by the suite" if result["status"] == "skipped" else "")


def microsoft(folder: Path) -> Iterator[Case]:
    for file in sorted((folder / MICROSOFT).glob("*Tests.cs")):
        for _ in re.findall(r"\[(?:InlineData|(?:Skippable|Retry)?Fact)\b", file.read_text("utf-8")):
            yield Case(file.stem, left_out="C# that starts Microsoft's server")


SUITES: dict[str, tuple[str, Callable[[Path], Iterator[Case]]]] = {
    "FHIR Patch": (FHIR_PATCH, fhir_patch),
    "JSON Patch": (JSON_PATCH[1], json_patch),
    "fhir262": ("framework/impl-loader.ts", fhir262),
    "Microsoft": (MICROSOFT, microsoft),
}
"""For each suite, a path by which its folder is recognised, and the function that runs it."""


def suites_in(folder: Path) -> Iterator[tuple[str, list[Case]]]:
    """Run the suites in a folder or in its subfolders."""
    checkouts = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())] if folder.is_dir() else []
    for name, (mark, run) in SUITES.items():
        for checkout in checkouts:
            if (checkout / mark).exists():
                yield name, [*run(checkout)]


def main(arguments: list[str] | None = None) -> int:
    """Print a table, and each failed case; return 1 if a case failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    folder = parser.parse_args(arguments).folder
    results = [*suites_in(folder)]
    if not results:
        marks = ", ".join(f"{name} ({mark})" for name, (mark, _) in SUITES.items())
        parser.error(f"{folder} holds no known suite, and neither does a folder in it; known: {marks}")
    print(f"{'suite':12} {'passed':>6} {'failed':>6}  left out")
    for name, cases in results:
        failed = [case for case in cases if case.failure]
        left_out = Counter(case.left_out for case in cases if case.left_out)
        reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items()) or "0"
        print(f"{name:12} {len(cases) - len(failed) - left_out.total():6} {len(failed):6}  {reasons}")
        for case in failed:
            print(f"    {one_line(case.name)}: {one_line(' '.join(case.failure.split()))}")
    return any(case.failure for _, cases in results for case in cases)


if __name__ == "__main__":
    raise SystemExit(main())
