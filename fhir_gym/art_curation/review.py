"""Human review: write a review sheet as an offline HTML page, read the verdicts, and apply them to a set of tasks."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from hashlib import blake2b
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import Literal

import orjson

from fhir_gym.arguments import require_name
from fhir_gym.art_curation.audit import Audited
from fhir_gym.art_curation.examination import Examination
from fhir_gym.art_curation.exported import ExportedResult
from fhir_gym.errors import RecordError, UnknownNameError
from fhir_gym.tasks.packs.action_reasoning.cases import ReasoningCase
from fhir_gym.tasks.packs.action_reasoning.phrasing import ENDINGS
from fhir_gym.types import Json

Word = Literal["accept", "reject"]
_WORDS: Mapping[str, Word] = MappingProxyType({"accept": "accept", "reject": "reject"})
_KEPT = ("row", "id", "digest", "why", "verdict", "comment")
COLUMNS = (*_KEPT, "confidence", "signals", "instruction", "context", "patient", "records", "range", "answer", "truth")
"""Columns of a review sheet; `read_verdicts` reads only the first six."""

_TAMED = tuple("=+-@\t\r'")
"""A field that starts with one of these characters gets a leading apostrophe, so that it is not read as a formula."""
_AROUND = 6
"""Maximum number of results to show in each role other than ``decides``."""


@dataclass(frozen=True, slots=True)
class Line:
    """One result on the sheet, with its role in the task, such as ``decides`` or ``withdrawn``."""

    id: str
    taken: str
    value: str
    status: str
    role: str

    def __str__(self) -> str:
        return f"{self.taken}  {self.value}  {self.status}  {self.id}  ({self.role})"


@dataclass(frozen=True)
class ReviewEntry:
    """One task on a sheet.

    Attributes:
        task: The task and its audit.
        why: Why the task is reviewed: ``doubtful`` or ``sample``.
        row: Position on the sheet, such as ``3 of 57``.
    """

    task: Audited
    why: str
    row: str

    @property
    def lines(self) -> tuple[Line, ...]:
        """The results that determine the answer, and the nearest other results."""
        return _lines(self.task.found)

    @property
    def patient(self) -> str:
        """Description of the patient."""
        person, age = self.task.found.person, self.task.found.age
        about = f"{person.gender or 'sex not said'}, {'age not known' if age is None else f'{age} years'}"
        return f"{person.name or 'no name'} ({person.id}), {about}, born {person.birth or 'not said'}"

    @property
    def range(self) -> str:
        """The patient's reference range; empty if the task has no range."""
        row, limits = self.task.found.row, self.task.found.limits
        if row is None:
            return ""
        critical = f"critical up to {limits['critically_low']} and from {limits['critically_high']}"
        return f"{row.people}: {limits['low']} to {limits['high']} {row.unit}; {critical} ({row.source})"

    @property
    def answer(self) -> str:
        """The correct answer."""
        return json.dumps(list(self.task.case.sol))

    def cells(self) -> dict[str, str]:
        """Return the task's row of the sheet."""
        case = self.task.case
        return {
            "row": self.row,
            "id": case.id,
            "digest": digest(case),
            "why": self.why,
            "verdict": "",
            "comment": "",
            "confidence": f"{self.task.confidence:g}",
            "signals": "\n".join(f"{signal.name}: {signal.note}" for signal in self.task.signals),
            "instruction": case.instruction,
            "context": case.context,
            "patient": self.patient,
            "records": "\n".join(map(str, self.lines)),
            "range": self.range,
            "answer": self.answer,
            "truth": "\n".join(f"{name}: {value}" for name, value in case.ground_truth if value is not None),
        }


@dataclass(frozen=True, slots=True)
class ReviewVerdict:
    """A reviewer's verdict on a task; `word` is None if the reviewer gave none.

    The digest identifies the content that the reviewer saw.
    """

    id: str
    digest: str
    why: str
    word: Word | None
    comment: str = ""


@dataclass(frozen=True)
class Reviewed:
    """Result of a review.

    Attributes:
        cases: The tasks that remain.
        rejected: The verdicts that rejected a task.
        withheld: Ids of doubtful tasks that were removed because they have no verdict.
    """

    cases: tuple[ReasoningCase, ...]
    rejected: tuple[ReviewVerdict, ...]
    withheld: tuple[str, ...]


def digest(case: ReasoningCase) -> str:
    """Return a short digest of a task's content."""
    # Because of the leading letter, a spreadsheet does not read the digest as a number.
    return f"d{blake2b(case.model_dump_json(by_alias=True).encode(), digest_size=6).hexdigest()}"


def entries(tasks: Iterable[tuple[Audited, str]]) -> tuple[ReviewEntry, ...]:
    """Build the rows of a sheet from pairs of a task and the reason for its review."""
    listed = list(tasks)
    return tuple(ReviewEntry(task, why, f"{n} of {len(listed)}") for n, (task, why) in enumerate(listed, start=1))


def review_sheet(rows: Sequence[ReviewEntry]) -> str:
    """Return the sheet as CSV, in which reviewers fill in the columns ``verdict`` and ``comment``.

    Fields that a spreadsheet would treat as formulas are escaped.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\r\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _harmless(value) for name, value in row.cells().items()})
    return text.getvalue()


def read_verdicts(path: str | Path) -> tuple[ReviewVerdict, ...]:
    """Read verdicts from a completed sheet, or from the file that the review page saved.

    Args:
        path: CSV separated by commas, semicolons or tabs, or the JSON file that the page saved.

    Raises:
        RecordError: The file is not readable, lacks a column or row, repeats a task, or contains an invalid verdict.
    """
    path = Path(path)
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise RecordError(f"{path}: not UTF-8; save the spreadsheet as CSV UTF-8") from error
    if not text.strip():
        raise RecordError(f"{path}: the file is empty")
    rows = _rows_of_json(text, path) if text.lstrip().startswith("[") else _rows_of_csv(text, path)
    verdicts = tuple(_verdict(row, f"{path}: row {number}") for number, row in enumerate(rows, start=1))
    _require_whole([row["row"] for row in rows], path)
    seen: dict[str, int] = {}
    for number, verdict in enumerate(verdicts, start=1):
        if verdict.id in seen:
            raise RecordError(f"{path}: rows {seen[verdict.id]} and {number} are both for task {verdict.id!r}")
        seen[verdict.id] = number
    return verdicts


def apply_verdicts(
    cases: Sequence[ReasoningCase], verdicts: Sequence[ReviewVerdict], *, keep_unreviewed: bool = False
) -> Reviewed:
    """Remove rejected tasks, and doubtful tasks that have no verdict.

    Args:
        cases: The tasks from which the sheet was made.
        verdicts: Result of `read_verdicts`.
        keep_unreviewed: Whether to keep doubtful tasks that have no verdict.

    Raises:
        UnknownNameError: A verdict is for an unknown task.
        RecordError: A task has changed since the sheet was made.
    """
    cases_by_id = {case.id: case for case in cases}
    for verdict in verdicts:
        require_name("task", verdict.id, cases_by_id)
        if digest(cases_by_id[verdict.id]) != verdict.digest:
            raise RecordError(f"task {verdict.id!r} has changed since the sheet was made; review the current version")
    rejected = tuple(verdict for verdict in verdicts if verdict.word == "reject")
    withheld = tuple(
        verdict.id for verdict in verdicts if verdict.word is None and verdict.why == "doubtful" and not keep_unreviewed
    )
    gone = {verdict.id for verdict in rejected} | set(withheld)
    return Reviewed(tuple(case for case in cases if case.id not in gone), rejected, withheld)


def _lines(examination: Examination) -> tuple[Line, ...]:
    used = {row.id for row in examination.used}
    reading = examination.reading
    roles = (
        ("counts, not the latest", [row for row in reading.counted if row.id not in used][-_AROUND:]),
        ("replaced by one of the same time", reading.replaced),
        ("withdrawn", reading.void),
        ("in another unit", reading.strange),
        ("before the window", reading.before[-_AROUND:]),
        ("after the moment", reading.later[:_AROUND]),
    )
    since = min((row.taken for row in examination.used if row.taken), default=reading.start)
    lines = [(row, "decides") for row in examination.used]
    for role, rows in roles:
        near = sorted(
            (row for row in rows if row.id not in used), key=lambda row: (row.taken or reading.end, row.order)
        )
        if since is not None and role in ("withdrawn", "in another unit", "replaced by one of the same time"):
            near = sorted(near, key=lambda row: abs((row.taken or reading.end) - since))
        lines += [(row, role) for row in near[:_AROUND]]
    lines.sort(key=lambda pair: (pair[0].taken or reading.end, pair[0].order))
    return tuple(_line(row, role) for row, role in lines)


def _line(row: ExportedResult, role: str) -> Line:
    value = "no value" if row.value is None else f"{_plain(row.value)} {row.unit}".strip()
    return Line(row.id, row.text or "not said", value, row.status or "no status", role)


def _plain(value: Decimal) -> str:
    return f"{value:f}"


def _harmless(value: str) -> str:
    return f"'{value}" if value.startswith(_TAMED) else value


def _unharmed(value: str) -> str:
    """Undo `_harmless`, even if the spreadsheet has removed the apostrophe."""
    return value[1:] if value.startswith("'") and value[1:].startswith(_TAMED) else value


def _rows_of_csv(text: str, path: Path) -> list[dict[str, str]]:
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        rows = list(reader)
    except csv.Error as error:
        raise RecordError(f"{path}: not CSV: {error}") from error
    for name in _KEPT:
        if name not in (reader.fieldnames or ()):
            raise RecordError(f"{path}: not a review sheet: the column {name!r} is missing")
    # Spreadsheets may append lines of empty cells.
    filled = [row for row in rows if any(isinstance(value, str) and value.strip() for value in row.values())]
    return [{name: _unharmed(row[name] or "") for name in _KEPT} for row in filled]


def _rows_of_json(text: str, path: Path) -> list[dict[str, str]]:
    try:
        rows: list[Json] = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise RecordError(f"{path}: not JSON: {error}") from error
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in _KEPT):
            raise RecordError(f"{path}: row {number} needs text in each of {', '.join(_KEPT)}")
    return [{name: row[name] for name in _KEPT} for row in rows]


def _verdict(row: Mapping[str, str], where: str) -> ReviewVerdict:
    word = row["verdict"].strip().lower()
    if word and word not in _WORDS:
        raise RecordError(f"{where} ({row['id']}): {UnknownNameError('verdict', word, _WORDS)} (or nothing)")
    if row["why"] not in ("doubtful", "sample"):
        raise RecordError(f"{where} ({row['id']}): why is {row['why']!r}; expected doubtful or sample")
    return ReviewVerdict(row["id"], row["digest"], row["why"], _WORDS.get(word), row["comment"].strip())


def _require_whole(places: Sequence[str], path: Path) -> None:
    """Raise RecordError if rows are missing, because a doubtful task in a missing row would be kept without review."""
    totals = {place.partition(" of ")[2] for place in places}
    if not places or len(totals) != 1 or not next(iter(totals)).isdecimal():
        raise RecordError(f"{path}: the rows are not numbered like '3 of 57'")
    total = next(iter(totals))
    missing = [n for n in range(1, int(total) + 1) if f"{n} of {total}" not in places]
    if missing:
        raise RecordError(f"{path}: {len(missing)} of {total} rows are missing, the first is row {missing[0]}")


_ARTICLE = Template(
    """<article data-row="$row" data-id="$id" data-digest="$digest" data-why="$why">
<h2>$row: $id</h2>
<p class="question">$instruction</p>
<h3>Context</h3>
<p>$context</p>
<h3>Patient</h3>
<p>$patient</p>
<h3>Results</h3>
<table>
<tr><th>taken</th><th>value</th><th>status</th><th>record</th><th>what it is here</th></tr>
$lines
</table>
$range<h3>Answer</h3>
<p class="answer">$answer</p>
<p>$truth</p>
<h3>Confidence $confidence ($why)</h3>
$signals
<h3>Verdict</h3>
<p class="ticks"><label><input type="radio" name="$digest-$number" value="accept"> accept</label>\
<label><input type="radio" name="$digest-$number" value="reject"> reject</label>\
<button type="button" class="clear">clear</button></p>
<textarea aria-label="Comment on $id" placeholder="Comment"></textarea>
</article>"""
)


def review_page(rows: Sequence[ReviewEntry]) -> str:
    """Return the sheet as a self-contained HTML page that saves verdicts to a file for `read_verdicts`."""
    frame = Template(files(__package__).joinpath("page.html").read_text("utf-8"))
    whole = blake2b("\n".join(digest(row.task.case) for row in rows).encode(), digest_size=8).hexdigest()
    articles = "\n".join(_article(number, row) for number, row in enumerate(rows, start=1))
    rules = "\n".join(f"<h3>{family}</h3>\n<p>{escape(text)}</p>" for family, text in ENDINGS.items())
    text = frame.substitute(count=len(rows), articles=articles, rules=rules)
    return text.replace("<body>", f'<body data-digest="{whole}">', 1)


def _article(number: int, row: ReviewEntry) -> str:
    cells = {name: escape(value) for name, value in row.cells().items()}
    signals = "".join(f'<p class="doubt">{escape(f"{signal.name}: {signal.note}")}</p>' for signal in row.task.signals)
    about_range = f"<h3>Range</h3>\n<p>{cells['range']}</p>\n" if row.range else ""
    cells |= {"lines": _table(row.lines), "range": about_range, "signals": signals or "<p>no signals</p>"}
    return _ARTICLE.substitute(cells, number=number)


def _table(lines: Iterable[Line]) -> str:
    rows = [
        f'<tr class="{"decides" if line.role == "decides" else "beside"}">'
        + "".join(f"<td>{escape(cell)}</td>" for cell in (line.taken, line.value, line.status, line.id, line.role))
        + "</tr>"
        for line in lines
    ]
    return "\n".join(rows) or '<tr><td colspan="5">no results of this kind</td></tr>'
