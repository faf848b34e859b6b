"""The review sheet as a single offline HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from html import escape
from importlib.resources import files
from string import Template

from fhir_gym.art_curation.review import Line, ReviewEntry, digest
from fhir_gym.tasks.packs.action_reasoning.phrasing import ENDINGS

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
