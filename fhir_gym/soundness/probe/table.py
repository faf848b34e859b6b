"""The candidates of all scenes as one feature matrix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from fhir_gym.soundness.probe.features import Background, Columns, candidates
from fhir_gym.soundness.probe.scenes import Scene


@dataclass(frozen=True, slots=True)
class Group:
    """The candidates of one scene. Scenes of one variation have the same rows.

    Attributes:
        rows: Row numbers of the candidates in the table.
        target: Position of the target in `rows`.
        qualifying: Positions of the qualifying candidates in `rows`.
    """

    rows: slice
    target: int
    qualifying: NDArray[np.intp]

    @property
    def fair(self) -> float:
        """Success rate of a random guess among the qualifying candidates."""
        return 1 / len(self.qualifying)


@dataclass(frozen=True, slots=True)
class Table:
    """The candidates of several scenes and their features.

    Attributes:
        names: Names of the features.
        values: Matrix with one row per candidate and one column per feature; NaN marks a missing value.
        groups: The scenes.
    """

    names: tuple[str, ...]
    values: NDArray[np.float64]
    groups: tuple[Group, ...]

    def labels(self) -> NDArray[np.int8]:
        """One label per row: 1 for targets of any group, 0 for other candidates."""
        labels = np.zeros(len(self.values), np.int8)
        for group in self.groups:
            labels[group.rows.start + group.target] = 1
        return labels

    def part(self, groups: Sequence[Group]) -> Table:
        """The table restricted to some scenes; the row numbers stay the same."""
        return Table(self.names, self.values, tuple(groups))

    def rows(self) -> NDArray[np.intp]:
        """The row numbers of all candidates, each once."""
        return np.unique(np.concatenate([np.arange(group.rows.start, group.rows.stop) for group in self.groups]))

    def qualifying_rows(self) -> NDArray[np.intp]:
        """The row numbers of the qualifying candidates, each once."""
        return np.unique(np.concatenate([group.rows.start + group.qualifying for group in self.groups]))


def build_table(scenes: Iterable[Scene], kind: str, background: Background) -> Table:
    """Build the table with all records of one type as candidates. Scenes with the same records share their rows.

    Constant and duplicate columns are dropped.

    Args:
        scenes: Scenes with a target of this type; those of one variation follow each other.
        kind: The resource type.
        background: Data for comparison that all scenes share.
    """
    parts: list[tuple[slice, Columns]] = []
    groups: list[Group] = []
    row = 0
    for _, some in groupby(scenes, key=lambda one: one.number):
        same = list(some)  # they have the same records
        found, columns = candidates(same[0].records, kind, background)
        places = {name: at for at, name in enumerate(found)}
        rows = slice(row, row + len(found))
        for scene in same:
            qualifying = np.array([places[name] for name in scene.qualifying if name in places], np.intp)
            groups.append(Group(rows, places[scene.target], qualifying))
        parts.append((rows, columns))
        row = rows.stop
    everything = _all_names(columns for _, columns in parts)
    names = [name for name in everything if _is_category(name) <= background.is_closed(_path(name))]
    values = np.full((row, len(names)), np.nan)
    column_of = {name: at for at, name in enumerate(names)}
    for rows, columns in parts:
        for name, column in columns.items():
            if name in column_of:
                values[rows, column_of[name]] = column
    kept = list(_informative(values))
    return Table(tuple(names[at] for at in kept), values[:, kept], tuple(groups))


def _all_names(parts: Iterable[Columns]) -> list[str]:
    return sorted({name for columns in parts for name in columns})


def _is_category(name: str) -> bool:
    return name.endswith(" category")


def _path(name: str) -> str:
    """Extract the path from the name of a category column: ``Slot status`` from ``… > Slot status category``."""
    return name.removesuffix(" category").rpartition(" > ")[2]


def _informative(values: NDArray[np.float64]) -> Iterator[int]:
    seen: set[bytes] = set()
    for at in range(values.shape[1]):
        column = values[:, at]
        text = column.tobytes()
        if text not in seen and not np.all(np.isnan(column) | (column == column[0])):
            seen.add(text)
            yield at
