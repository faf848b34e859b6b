"""The content of charts as plain data: what is drawn, and the same numbers as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fhir_gym.evaluation.figures.style import letter
from fhir_gym.evaluation.metrics import Distribution


@dataclass(frozen=True)
class Table:
    """The numbers of a chart. The first `heads` columns name the row."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    heads: int = 1


@dataclass(frozen=True)
class Bar:
    """The height of a bar.

    Attributes:
        value: The height.
        low: Lower bound of the 95 % interval; None without interval.
        high: Upper bound.
        sd: Standard deviation over repeats; None without repeats. Only the table shows it.
        note: What the value was computed from, such as the number of episodes. Only the table shows it.
    """

    value: float
    low: float | None = None
    high: float | None = None
    sd: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Bars:
    """Bars of several series, side by side in groups.

    Attributes:
        title: Title of the chart; empty in a figure of one chart.
        axis: Label of the value axis, with its unit.
        groups: Names of the groups.
        series: Names of the series.
        bars: For each series, the bar of each group; None without data.
        head: What a group is, such as "experiment".
        notes: Heading of the notes in the table.
        top: Upper end of the value axis; None fits the data.
        digits: Digits after the decimal point.
    """

    title: str
    axis: str
    groups: tuple[str, ...]
    series: tuple[str, ...]
    bars: tuple[tuple[Bar | None, ...], ...]
    head: str
    notes: str = ""
    top: float | None = None
    digits: int = 1

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw."""
        return all(bar is None for bars in self.bars for bar in bars)

    def table(self) -> Table:
        """Return the numbers, one row for each bar."""
        rows = []
        for at, group in enumerate(self.groups):
            for name, bars in zip(lettered(self.series), self.bars, strict=True):
                bar = bars[at] or Bar(0.0)
                value = "no data" if bars[at] is None else self._text(bar.value)
                interval = "" if bar.low is None else f"{self._text(bar.low)} to {self._text(bar.high)}"
                rows.append((group, name, value, interval, self._text(bar.sd), bar.note))
        columns = (self.head, "run", self.axis, "95 % interval", "SD over repeats", self.notes)
        return _without_empty_columns(columns, rows, 2)

    def _text(self, value: float | None) -> str:
        return "" if value is None else f"{value:.{self.digits}f}"


@dataclass(frozen=True)
class Stacks:
    """Stacked bars, one for each series.

    Attributes:
        title: Title of the chart.
        axis: Label of the value axis, with its unit.
        series: Names of the bars.
        parts: Names of the parts, from the bottom.
        values: For each series, the size of each part; None without data.
        top: Upper end of the value axis; None fits the data.
        digits: Digits after the decimal point.
    """

    title: str
    axis: str
    series: tuple[str, ...]
    parts: tuple[str, ...]
    values: tuple[tuple[float, ...] | None, ...]
    top: float | None = None
    digits: int = 1

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw."""
        return all(values is None for values in self.values)

    def table(self) -> Table:
        """Return the numbers, one row for each bar."""
        rows = []
        for name, values in zip(lettered(self.series), self.values, strict=True):
            if values is None:
                rows.append((name, *("no data" for _ in self.parts), ""))
            else:
                rows.append((name, *(f"{value:.{self.digits}f}" for value in (*values, sum(values)))))
        return Table(("run", *self.parts, "sum"), tuple(rows))


@dataclass(frozen=True)
class Cell:
    """A share of a heat map: `count` of `of`."""

    count: int
    of: int

    @property
    def percent(self) -> float:
        """The share in percent."""
        return 100 * self.count / self.of


@dataclass(frozen=True)
class HeatMap:
    """Shares by row and series, each with the number that it is a share of.

    Attributes:
        title: Title of the chart.
        axis: Label of the colour scale, with its unit.
        row_head: What a row is, such as "tool".
        rows: Names of the rows.
        series: Names of the columns.
        cells: For each row, the cell of each series; None without data.
    """

    title: str
    axis: str
    row_head: str
    rows: tuple[str, ...]
    series: tuple[str, ...]
    cells: tuple[tuple[Cell | None, ...], ...]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw."""
        return all(cell is None for cells in self.cells for cell in cells)

    def table(self) -> Table:
        """Return the numbers, one row for each cell."""
        rows = []
        for row, cells in zip(self.rows, self.cells, strict=True):
            for name, cell in zip(lettered(self.series), cells, strict=True):
                if cell is None:
                    rows.append((row, name, "no calls", "0", "0"))
                else:
                    rows.append((row, name, f"{cell.percent:.1f}", str(cell.count), str(cell.of)))
        return Table((self.row_head, "run", self.axis, "errors", "calls"), tuple(rows), 2)


@dataclass(frozen=True)
class Violins:
    """Distributions of several series, side by side in groups.

    Attributes:
        title: Title of the chart; empty in a figure of one chart.
        axis: Label of the value axis, with its unit.
        groups: Names of the groups; one empty name if there are no groups.
        series: Names of the series.
        samples: For each series, the distribution of each group.
        head: What a group is, such as "outcome".
        digits: Digits after the decimal point in the table.
    """

    title: str
    axis: str
    groups: tuple[str, ...]
    series: tuple[str, ...]
    samples: tuple[tuple[Distribution, ...], ...]
    head: str
    digits: int = 0

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw."""
        return all(sample.n == 0 for samples in self.samples for sample in samples)

    def table(self) -> Table:
        """Return the number of values, mean and quartiles, one row for each distribution."""
        rows = []
        for at, group in enumerate(self.groups):
            for name, samples in zip(lettered(self.series), self.samples, strict=True):
                sample = samples[at]
                numbers = (sample.mean, sample.min, sample.q1, sample.median, sample.q3, sample.max)
                texts = ("no data" if number is None else f"{number:.{self.digits}f}" for number in numbers)
                rows.append((group, name, str(sample.n), *texts))
        columns = (self.head, "run", "n", "mean", "minimum", "lower quartile", "median", "upper quartile", "maximum")
        return _without_empty_columns(columns, rows, 2)


Chart = Bars | Stacks | HeatMap | Violins
"""One chart of a figure."""


@dataclass(frozen=True)
class Figure:
    """One or more charts with a title and a caption.

    Attributes:
        name: Stem of the file names.
        title: Title in plain words.
        caption: What the figure shows and how to read it.
        charts: The charts, drawn one below the other.
    """

    name: str
    title: str
    caption: str
    charts: tuple[Chart, ...] = field(default_factory=tuple)

    @property
    def empty(self) -> bool:
        """Whether no chart has data."""
        return all(chart.empty for chart in self.charts)


def lettered(series: Sequence[str]) -> list[str]:
    """Return the names of series after their letters, as tables show them."""
    return [f"{letter(place)} {name}" for place, name in enumerate(series)]


def _without_empty_columns(columns: Sequence[str], rows: Sequence[tuple[str, ...]], heads: int) -> Table:
    """Return a table without the columns that have no text in any row."""
    kept = [at for at in range(len(columns)) if any(row[at] for row in rows)]
    heads = sum(at < heads for at in kept)
    return Table(tuple(columns[at] for at in kept), tuple(tuple(row[at] for at in kept) for row in rows), heads)
