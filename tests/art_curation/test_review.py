from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fhir_gym.art_curation.audit import AuditReport, for_review
from fhir_gym.art_curation.review import (
    COLUMNS,
    ReviewEntry,
    apply_verdicts,
    digest,
    entries,
    read_verdicts,
    review_page,
    review_sheet,
)
from fhir_gym.errors import RecordError, UnknownNameError
from fhir_gym.tasks.packs.action_reasoning.cases import ReasoningCase
from fhir_gym.tasks.packs.action_reasoning.phrasing import ENDINGS

NASTY = (
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    "\tx",
    "'=1",
    "'",
    'a "quoted", one',
    "two\nlines",
    "<script>alert(1)</script>",
)


@pytest.fixture(scope="module")
def rows(report: AuditReport) -> tuple[ReviewEntry, ...]:
    return entries(for_review(report, sample=25))


def fill(rows: tuple[ReviewEntry, ...], path: Path, verdicts: dict[int, tuple[str, str]], delimiter: str = ",") -> Path:
    """Save a sheet as a spreadsheet would, with verdicts and comments; rows are numbered from 0."""
    listed = list(csv.DictReader(io.StringIO(review_sheet(rows), newline="")))
    for number, (verdict, comment) in verdicts.items():
        listed[number] |= {"verdict": verdict, "comment": comment}
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, delimiter=delimiter)
        writer.writeheader()
        writer.writerows(listed)
    return path


@pytest.mark.parametrize("delimiter", [",", ";", "\t"], ids=["comma", "semicolon", "tab"])
def test_round_trip(rows: tuple[ReviewEntry, ...], tmp_path: Path, delimiter: str) -> None:
    said = {0: ("accept", ""), 1: ("Reject ", 'wrong, "range";\ttwo\nlines'), 3: ("REJECT", "-1 is no answer")}
    verdicts = read_verdicts(fill(rows, tmp_path / "sheet.csv", said, delimiter))
    assert [verdict.id for verdict in verdicts] == [row.task.case.id for row in rows]
    assert [verdict.word for verdict in verdicts[:5]] == ["accept", "reject", None, "reject", None]
    assert verdicts[1].comment == 'wrong, "range";\ttwo\nlines'
    assert verdicts[3].comment == "-1 is no answer"


def test_an_unchanged_sheet_has_no_verdicts(rows: tuple[ReviewEntry, ...], tmp_path: Path) -> None:
    (tmp_path / "sheet.csv").write_text(review_sheet(rows), "utf-8", newline="")
    assert {verdict.word for verdict in read_verdicts(tmp_path / "sheet.csv")} == {None}


def test_sheet_has_no_formulas(rows: tuple[ReviewEntry, ...], tmp_path: Path) -> None:
    case = rows[0].task.case
    for nasty in NASTY:
        spoilt = case.model_copy(update={"instruction": nasty, "id": nasty})
        entry = ReviewEntry(_with(rows[0], spoilt).task, "sample", "1 of 1")
        text = review_sheet([entry])
        cells = [cell for line in csv.reader(io.StringIO(text, newline="")) for cell in line]
        assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
        (tmp_path / "one.csv").write_text(text, "utf-8", newline="")
        assert read_verdicts(tmp_path / "one.csv")[0].id == nasty


def _with(row: ReviewEntry, case: ReasoningCase) -> ReviewEntry:
    from dataclasses import replace

    return ReviewEntry(replace(row.task, case=case), row.why, row.row)


def test_verdicts_are_applied(report: AuditReport, rows: tuple[ReviewEntry, ...], tmp_path: Path) -> None:
    doubtful = [n for n, row in enumerate(rows) if row.why == "doubtful"]
    sampled = [n for n, row in enumerate(rows) if row.why == "sample"]
    assert len(doubtful) > 2
    assert len(sampled) > 2
    said = {doubtful[0]: ("accept", ""), doubtful[1]: ("reject", "no"), sampled[0]: ("reject", "no")}
    verdicts = read_verdicts(fill(rows, tmp_path / "sheet.csv", said))
    ids = [row.task.case.id for row in rows]
    reviewed = apply_verdicts(report.cases, verdicts)
    assert {verdict.id for verdict in reviewed.rejected} == {ids[doubtful[1]], ids[sampled[0]]}
    assert set(reviewed.withheld) == {ids[n] for n in doubtful[2:]}
    gone = {verdict.id for verdict in reviewed.rejected} | set(reviewed.withheld)
    assert reviewed.cases == tuple(case for case in report.cases if case.id not in gone)
    everything = apply_verdicts(report.cases, verdicts, keep_unreviewed=True)
    assert everything.withheld == ()
    assert len(everything.cases) == len(report.cases) - 2


def edited(rows: tuple[ReviewEntry, ...], path: Path, old: str, new: str) -> Path:
    text = review_sheet(rows)
    assert old in text
    path.write_text(text.replace(old, new), "utf-8", newline="")
    return path


def test_wrong_sheets_are_clear_errors(rows: tuple[ReviewEntry, ...], report: AuditReport, tmp_path: Path) -> None:
    path = tmp_path / "sheet.csv"
    cases = [
        (fill(rows, tmp_path / "a.csv", {0: ("acept", "")}), "did you mean 'accept'"),
        (edited(rows, tmp_path / "b.csv", ",verdict,", ",verdikt,"), "the column 'verdict' is missing"),
        (
            edited(rows, tmp_path / "c.csv", f",{rows[1].task.case.id},", f",{rows[0].task.case.id},"),
            "are both for task",
        ),
        (edited(rows, tmp_path / "d.csv", ",sample,", ",because,"), "expected doubtful or sample"),
        (tmp_path / "missing.csv", "No such file"),
    ]
    lines = review_sheet(rows[:1]).split("\r\n")
    path.write_text("\r\n".join([lines[0]]) + "\r\n", "utf-8", newline="")
    cases.append((path, "not numbered"))
    (tmp_path / "e.csv").write_bytes(b"\xff\xfe\x00garbage")
    cases.append((tmp_path / "e.csv", "save the spreadsheet as CSV UTF-8"))
    (tmp_path / "empty.csv").write_bytes(b"\xef\xbb\xbf\r\n")
    cases.append((tmp_path / "empty.csv", "the file is empty"))
    (tmp_path / "latin.csv").write_bytes(
        review_sheet(rows).encode().replace(b",sample,,,", b",sample,accept,gepr\xfcft,")
    )
    cases.append((tmp_path / "latin.csv", "CSV UTF-8"))
    (tmp_path / "deep.json").write_text("[" * 100_000)
    cases.append((tmp_path / "deep.json", "not JSON"))
    (tmp_path / "f.json").write_text('[{"id": 3}]')
    cases.append((tmp_path / "f.json", "row 1 needs text"))
    (tmp_path / "g.json").write_text('[{"id": 3}')
    cases.append((tmp_path / "g.json", "not JSON"))
    for file, message in cases:
        with pytest.raises(RecordError, match=re.escape(message)):
            read_verdicts(file)


def test_lost_rows_are_missed(rows: tuple[ReviewEntry, ...], tmp_path: Path) -> None:
    """A doubtful task must not be kept only because its row is missing."""
    path = tmp_path / "sheet.csv"
    listed = list(csv.DictReader(io.StringIO(review_sheet(rows), newline="")))
    for lost in (0, 4, len(listed) - 1):
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(listed[:lost] + listed[lost + 1 :])
        with pytest.raises(RecordError, match=f"row {lost + 1}"):
            read_verdicts(path)


def test_verdicts_on_other_tasks(rows: tuple[ReviewEntry, ...], report: AuditReport, tmp_path: Path) -> None:
    path = tmp_path / "sheet.csv"
    path.write_text(review_sheet(rows), "utf-8", newline="")
    verdicts = read_verdicts(path)
    without = [case for case in report.cases if case.id != rows[0].task.case.id]
    with pytest.raises(UnknownNameError, match="unknown task"):
        apply_verdicts(without, verdicts)
    changed = [
        case.model_copy(update={"context": "other"}) if case.id == rows[0].task.case.id else case
        for case in report.cases
    ]
    with pytest.raises(RecordError, match="has changed since"):
        apply_verdicts(changed, verdicts)


class Outline(HTMLParser):
    """Collect a page's tags, attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_page_shows_everything_and_needs_nothing(rows: tuple[ReviewEntry, ...]) -> None:
    text = review_page(rows)
    outline = Outline()
    outline.feed(text)
    articles = [attrs for tag, attrs in outline.tags if tag == "article"]
    assert [article["data-id"] for article in articles] == [row.task.case.id for row in rows]
    assert [article["data-digest"] for article in articles] == [digest(row.task.case) for row in rows]
    for row in rows:
        for shown in (row.task.case.instruction, row.task.case.context, row.patient, row.range, row.answer):
            assert shown in outline.text
        for record in row.task.found.used:
            assert record.id in outline.text
            assert record.text in outline.text
        assert sum(line.role == "decides" for line in row.lines) == len(row.task.found.used)
    for rules in ENDINGS.values():
        assert rules in outline.text
    loading = [attrs for _, attrs in outline.tags if {"src", "href", "action"} & attrs.keys()]
    assert loading == []
    assert "@import" not in text
    assert "url(" not in text
    policy = next(attrs["content"] for tag, attrs in outline.tags if attrs.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert text == review_page(rows)


def test_the_page_escapes_task_texts(rows: tuple[ReviewEntry, ...]) -> None:
    evil = '"><script>alert(1)</script>$id & <b>'
    spoilt = rows[0].task.case.model_copy(update={"instruction": evil, "context": evil, "id": evil})
    text = review_page([_with(rows[0], spoilt)])
    outline = Outline()
    outline.feed(text)
    assert [tag for tag, _ in outline.tags].count("script") == 1
    assert [attrs["data-id"] for tag, attrs in outline.tags if tag == "article"] == [evil]
    assert outline.text.count(evil) >= 3


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node to run the page's script")
def test_verdicts_saved_by_the_page_are_read_back(rows: tuple[ReviewEntry, ...], tmp_path: Path) -> None:
    script = re.search(r"<script>\n(.*)start\(\);\n</script>", review_page(rows), re.DOTALL)
    assert script
    words = ["accept", "reject", ""]
    saved = [
        {
            "row": row.row,
            "id": row.task.case.id,
            "digest": digest(row.task.case),
            "why": row.why,
            "verdict": words[n % 3],
            "comment": NASTY[n % len(NASTY)].strip(),
        }
        for n, row in enumerate(rows)
    ]
    code = f"{script[1]}\nconst rows = {json.dumps(saved)};\nconsole.log(JSON.stringify([toCsv(rows), toJson(rows)]));"
    done = subprocess.run(["node", "-e", code], capture_output=True, text=True, check=True, timeout=60)
    as_csv, as_json = json.loads(done.stdout)
    for name, text in (("verdicts.csv", as_csv), ("verdicts.json", as_json)):
        (tmp_path / name).write_text(text, "utf-8", newline="")
        verdicts = read_verdicts(tmp_path / name)
        assert [verdict.word or "" for verdict in verdicts] == [verdict["verdict"] for verdict in saved]
        assert [verdict.comment for verdict in verdicts] == [verdict["comment"] for verdict in saved]
    cells = [cell for line in csv.reader(io.StringIO(as_csv, newline="")) for cell in line]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@"))]


DOM = """
const articles = ROWS.map((row) => {
  const inputs = ["accept", "reject"].map((value) => ({ value, checked: false }));
  const area = { value: "" };
  const clear = { listeners: [], addEventListener: (_, f) => clear.listeners.push(f), closest: () => article };
  const article = {
    dataset: row, className: "", inputs, area, clear,
    querySelector: (what) => (what === "textarea" ? area : inputs.find((one) => one.checked) || null),
    querySelectorAll: () => inputs,
  };
  return article;
});
const listeners = {}, byId = {}, saved = [], store = {};
const element = () => ({ listeners: {}, addEventListener(name, f) { this.listeners[name] = f; } });
for (const id of ["standing", "csv", "json", "open"]) byId[id] = element();
globalThis.document = {
  body: { dataset: { digest: "x" }, append() {}, classList: { toggle() {} } },
  querySelectorAll: (what) => (what === "article" ? articles : articles.map((one) => one.clear)),
  getElementById: (id) => byId[id],
  addEventListener: (name, f) => { listeners[name] = f; },
  createElement: () => ({ click() { saved.push(this); }, remove() {} }),
};
globalThis.localStorage = { getItem: (key) => store[key] ?? null, setItem: (key, text) => { store[key] = text; } };
globalThis.setTimeout = () => {};
const blobs = [];
URL.createObjectURL = (blob) => { blobs.push(blob); return "blob:1"; };
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node to run the page's script")
def test_ticks_are_counted_saved_and_kept(rows: tuple[ReviewEntry, ...], tmp_path: Path) -> None:
    script = re.search(r"<script>\n(.*)</script>", review_page(rows), re.DOTALL)
    assert script
    data = [{"row": row.row, "id": row.task.case.id, "digest": digest(row.task.case), "why": row.why} for row in rows]
    acts = """
    (async () => {
      articles[0].inputs[0].checked = true;
      articles[1].inputs[1].checked = true;
      articles[1].area.value = " not so ";
      articles[2].inputs[1].checked = true;
      listeners.change();
      articles[2].clear.listeners[0]();
      const told = byId.standing.textContent, colours = articles.slice(0, 3).map((one) => one.className);
      for (const one of articles) { one.inputs[0].checked = one.inputs[1].checked = false; one.area.value = ""; }
      start();
      byId.csv.listeners.click();
      console.log(JSON.stringify([told, colours, saved[0].download, await blobs[0].text()]));
    })();
    """
    code = DOM.replace("ROWS", json.dumps(data)) + script[1] + acts
    done = subprocess.run(["node", "-e", code], capture_output=True, text=True, check=True, timeout=60)
    told, colours, name, text = json.loads(done.stdout)
    assert told.startswith(f"1 accepted, 1 rejected, {len(rows) - 2} open.")
    assert colours == ["accept", "reject", ""]
    (tmp_path / name).write_text(text, "utf-8", newline="")
    verdicts = read_verdicts(tmp_path / name)
    assert [(verdict.word, verdict.comment) for verdict in verdicts[:3]] == [
        ("accept", ""),
        ("reject", "not so"),
        (None, ""),
    ]
