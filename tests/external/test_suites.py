"""The runner of other projects' suites, on hand-made folders in the form of each suite."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.external.suites import FHIR_PATCH, MICROSOFT, main

PATIENT = '<Patient xmlns="http://hl7.org/fhir">{}</Patient>'
DELETE = (
    '<parameter><name value="operation"/><part><name value="type"/><valueCode value="delete"/></part>'
    '<part><name value="path"/><valueString value="Patient.birthDate"/></part></parameter>'
)
HEADER = "suite        passed failed  left out\n"
JEST = """#!/usr/bin/env node
const { impl } = require(process.env.FHIR262_IMPL_PATH);
const { writeFileSync } = require("node:fs");
(async () => {
  const { rest } = await impl.server.startWithCoreOnly("r4");
  const { body, status } = await rest.create("Patient", { resourceType: "Patient", gender: "male" });
  const found = await rest.search("Patient", "gender=male");
  const passed = status === 201 && found.body.entry[0].resource.id === body.id;
  const results = [
    { id: "created and found", status: passed ? "pass" : "fail", error: JSON.stringify(found) },
    { id: "wrong", status: "fail", error: "Expected: 1\\nReceived: 2" },
    { id: "later", status: "skipped" },
  ];
  writeFileSync(process.env.FHIR262_OUT_PATH, JSON.stringify({ results }));
})();
"""


def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main([str(folder)])
    return code, capsys.readouterr().out


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")
    return file


def patch_case(name: str, result: str, operations: str = DELETE) -> str:
    before = PATIENT.format('<birthDate value="1920-01-01"/>')
    diff = f'<Parameters xmlns="http://hl7.org/fhir">{operations}</Parameters>'
    return f'<case name="{name}" mode="both"><input>{before}</input>\n<diff>{diff}</diff>\n{result}</case>'


def test_fhir_patch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    active = '<active value="true"/>'
    cases = [
        patch_case("right", f"<output>{PATIENT.format('')}</output>"),
        patch_case("wrong", f"<output>{PATIENT.format(active)}</output>"),
        patch_case("too lenient", '<error msg="x"/>'),
        patch_case("refused", '<error msg="x"/>', DELETE.replace("delete", "spam")),
        '<case name="another form"/>',
    ]
    write(tmp_path / "checkout" / FHIR_PATCH, f"<tests>{''.join(cases)}</case></tests>")
    code, shown = run(tmp_path, capsys)
    assert code == 1
    assert "FHIR Patch        2      2  1 in no known form\n" in shown
    assert '    wrong: expected {"active": true, "resourceType": "Patient"}, got {"resourceType": "Patient"}\n' in shown
    assert "    too lenient: not refused\n" in shown


def test_json_patch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add = [{"op": "add", "path": "/a", "value": True}]
    cases = [
        {"comment": "right", "doc": {}, "patch": add, "expected": {"a": True}},
        {"comment": "another type", "doc": {}, "patch": add, "expected": {"a": 1}},
        {"comment": "only a test", "doc": {"a": 1}, "patch": [{"op": "test", "path": "/a", "value": 1}]},
        {"doc": [], "patch": add, "error": "not an index"},
        {"doc": {}, "patch": add, "expected": {}, "disabled": True},
    ]
    write(tmp_path / "tests.json", json.dumps(cases))
    write(tmp_path / "spec_tests.json", "[]")
    code, shown = run(tmp_path, capsys)
    assert code == 1
    assert "JSON Patch        3      1  1 disabled by the suite\n" in shown
    assert '    tests.json 1: another type: expected {"a": 1}, got {"a": true}\n' in shown


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_fhir262(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "framework/impl-loader.ts", "")
    assert run(tmp_path, capsys)[1].endswith("fhir262           0      0  1 `npm install` has not run in its folder\n")
    jest = write(tmp_path / "node_modules/.bin/jest", JEST)
    jest.chmod(0o755)
    code, shown = run(tmp_path, capsys)
    assert code == 1
    assert "fhir262           1      1  1 skipped by the suite\n    wrong: Expected: 1 Received: 2\n" in shown
    write(jest, "#!/usr/bin/env node\nthrow new Error('broken')")
    assert "    all: jest wrote no report: " in run(tmp_path, capsys)[1]


def test_code_of_another_server_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(
        tmp_path / MICROSOFT / "DateSearchTests.cs", '[Theory]\n[InlineData("1980", 1)]\n[InlineData("lt1980")]\n[Fact]'
    )
    assert run(tmp_path, capsys) == (0, f"{HEADER}Microsoft         0      0  3 C# that starts Microsoft's server\n")


def test_a_folder_without_a_suite_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(SystemExit):
            main([str(folder)])
        assert f"{folder} holds no known suite" in capsys.readouterr().err
