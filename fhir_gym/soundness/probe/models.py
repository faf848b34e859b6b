"""The learners of the probe: their models, and how they guess the answer and the target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fhir_gym.errors import MissingExtraError
from fhir_gym.soundness.probe.features import Background, Columns, candidates, flatten
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
    for _, some in groupby(scenes, key=lambda scene: scene.number):
        same = list(some)  # they have the same records
        references, columns = candidates(same[0].records, kind, background)
        places = {name: at for at, name in enumerate(references)}
        rows = slice(row, row + len(references))
        for scene in same:
            qualifying = np.array([places[name] for name in scene.qualifying if name in places], np.intp)
            groups.append(Group(rows, places[scene.target], qualifying))
        parts.append((rows, columns))
        row = rows.stop
    everything = sorted({name for _, columns in parts for name in columns})
    names = [name for name in everything if name.endswith(" category") <= background.is_closed(_path(name))]
    values = np.full((row, len(names)), np.nan)
    column_of = {name: at for at, name in enumerate(names)}
    for rows, columns in parts:
        for name, column in columns.items():
            if name in column_of:
                values[rows, column_of[name]] = column
    kept = list(_informative(values))
    return Table(tuple(names[at] for at in kept), values[:, kept], tuple(groups))


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


SEED = 13
_SETTINGS = {
    "max_iter": 80,
    "learning_rate": 0.08,
    "max_leaf_nodes": 6,
    "l2_regularization": 3.0,
    "max_bins": 64,
    "early_stopping": False,
}
"""Settings for small trees. With a few hundred scenes, larger trees overfit and miss weak leaks."""


def require_sklearn() -> None:
    """Check that scikit-learn is installed.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    _learner()


def predict_probabilities(
    train: NDArray[np.float64], labels: NDArray[np.int8], test: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Predict the probability of label 1 for each test row. The result is all zeros if training is impossible.

    Args:
        train: Training rows.
        labels: Training labels, 0 or 1.
        test: Test rows.
    """
    has_values = ~np.isnan(train).all(axis=0)  # scikit-learn cannot bin an empty column
    if not has_values.any() or labels.min() == labels.max():
        return np.zeros(len(test))
    return np.asarray(_fitted(train[:, has_values], labels, max_features=0.5).predict_proba(test[:, has_values])[:, 1])


def predict_classes(train: NDArray[np.float64], classes: list[str], test: NDArray[np.float64]) -> tuple[list[str], Any]:
    """Predict the probability of each class for each test row."""
    labels = sorted(set(classes))
    if not train.shape[1] or len(labels) == 1:
        shares = [classes.count(label) / len(classes) for label in labels]
        return labels, np.tile(shares, (len(test), 1))
    model = _fitted(train, np.array([labels.index(answer) for answer in classes]))
    return labels, model.predict_proba(test)


def _fitted(train: NDArray[np.float64], labels: NDArray[Any], **settings: Any) -> Any:
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        return _learner()(**_SETTINGS, **settings, random_state=SEED).fit(train, labels)


def _learner() -> Any:
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier
    except ImportError:
        raise MissingExtraError("the probe needs scikit-learn: pip install scikit-learn") from None
    return HistGradientBoostingClassifier


Rows: TypeAlias = NDArray[np.float64]

_MOST_CLASSES = 12
_OTHER = "another answer"
_MOST_VALUES = 8
"""For each path, only this many of the most frequent values are counted separately."""
_COUNTED = ("code", "status", "intent", "type", "active", "gender")


def predict_answers(train: Rows, answers: Sequence[str], test: Rows) -> list[str]:
    """Train on the training scenes and predict the answers of the test scenes.

    Args:
        train: Counts of the training scenes; see `count_records`.
        answers: Right answers of the training scenes, as classes.
        test: Counts of the test scenes.
    """
    usual = [answer for answer, _ in Counter(answers).most_common(_MOST_CLASSES)]
    labels, chances = predict_classes(train, [answer if answer in usual else _OTHER for answer in answers], test)
    if _OTHER in labels and len(labels) > 1:
        chances[:, labels.index(_OTHER)] = -1  # never predict the class of rare answers
    return [labels[at] for at in np.argmax(chances, axis=1)]


def count_records(scenes: Sequence[Scene]) -> Rows:
    """Return one row of record and value counts per scene."""
    by_records = {id(scene.records): scene for scene in scenes}  # the scenes of one variation share their records
    counts_by_records = {key: _counts(scene) for key, scene in by_records.items()}
    counted = [counts_by_records[id(scene.records)] for scene in scenes]
    common = Counter(name for counts in counted for name in counts)
    names = sorted(name for name, number in common.items() if number >= len(scenes) / 50)
    table = np.array([[float(counts.get(name, 0)) for name in names] for counts in counted])
    return table[:, (table != table[:1]).any(axis=0)] if names else np.zeros((len(scenes), 0))


def _counts(scene: Scene) -> Mapping[str, int]:
    """Count the records of each type, the values at each path, and how often values repeat."""
    counts: Counter[str] = Counter({"records": len(scene.records)})
    shared: dict[str, Counter[str]] = {}
    for record in scene.records:
        kind = record["resourceType"]
        counts[kind] += 1
        for path, values in flatten(record).items():
            counts["values"] += len(values)
            counts[f"{kind} values"] += len(values)
            counts[f"{kind} {path}"] += 1
            if path.endswith(_COUNTED):
                counts[f"{kind} {path} {values[0]}"] += 1
            shared.setdefault(f"{kind} {path}", Counter())[str(values)] += 1
    for name, holders in shared.items():
        counts[f"{name} distinct"] = len(holders)
        for place, (_, number) in enumerate(holders.most_common(_MOST_VALUES)):
            if number > 1:
                counts[f"{name} repeated {place}"] = number
    return counts


_MOST_EXACT = 12
"""The rule "exactly this value" is tried for the whole numbers from 0 up to this number (exclusive)."""
_WAYS = ("highest", "lowest", *(f"exactly {number}" for number in range(_MOST_EXACT)))

Hits: TypeAlias = list[bool]
"""One value per scene: whether the target was predicted."""
Scores: TypeAlias = NDArray[np.float64]


def scores(train: Table, test: Table, *, within: bool = False) -> Scores:
    """Train on one table and score the candidates of another.

    Args:
        train: Training scenes with their targets.
        test: Test scenes with the same features.
        within: Whether to train only on the qualifying candidates.

    Returns:
        One score per row of `test`: the predicted probability that the row is the target.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    rows = train.qualifying_rows() if within else train.rows()
    return predict_probabilities(train.values[rows], train.labels()[rows], test.values)


def hits(test: Table, scored: Scores, *, among_all: bool = False) -> Hits:
    """Determine in which scenes the target has the highest score. A seeded random choice breaks ties.

    Args:
        test: The scenes.
        scored: One score per row.
        among_all: Whether to choose among all candidates, not only among the qualifying ones.
    """
    lot = np.random.default_rng(SEED)
    shares = []
    for group in test.groups:
        own = scored[group.rows]
        asked = lot.permutation(np.arange(len(own)) if among_all else group.qualifying)
        shares.append(bool(asked[np.argmax(own[asked])] == group.target))
    return shares


def rule_hits(train: Table, test: Table) -> Hits:
    """Choose the single feature that predicts the training targets best; determine in which scenes it finds the target.

    This learner is simpler than `scores` and overfits less, so it needs fewer scenes to find small leaks. It selects
    among the candidates of each scene by themselves: several scenes may have the same rows and other candidates. A
    seeded random choice breaks ties.

    Args:
        train: Training scenes with their targets.
        test: Test scenes with the same features.
    """
    lot = np.random.default_rng(SEED)
    way, feature = _best(train, 1)[0][:2] if train.names else (0, None)
    shares = []
    for group in test.groups:
        asked = lot.permutation(group.qualifying)
        values = test.values[group.rows][asked]
        picked = np.zeros(len(asked)) if feature is None else _picks(values[:, [feature]])[way][:, 0]
        shares.append(bool(asked[np.argmax(picked)] == group.target))
    return shares


def single_features(table: Table) -> list[tuple[str, float]]:
    """The single features that predict the target most often, with their success rates.

    The rules for each feature are "the highest", "the lowest" and "exactly this value" (such as rank 3). If a rule
    selects several candidates, a hit counts as a fraction.
    """
    return [(f"{table.names[feature]}: {_WAYS[way]}", share) for way, feature, share in _best(table, 3)]


def _best(table: Table, most: int) -> list[tuple[int, int, float]]:
    """The best combinations of a rule and a feature, with their success rates."""
    shares = np.mean([_chances(table, group) for group in table.groups], axis=0)
    places = np.argsort(-shares, axis=None, kind="stable")[:most]
    pairs = [np.unravel_index(place, shares.shape) for place in places]
    return [(int(way), int(feature), float(shares[way, feature])) for way, feature in pairs]


def _chances(table: Table, group: Group) -> Scores:
    """For each rule and feature, the probability that it selects the target."""
    picked = _picks(table.values[group.rows][group.qualifying])
    target = int(np.flatnonzero(group.qualifying == group.target)[0])
    count = picked.sum(axis=1)
    return np.where(count == 0, group.fair, picked[:, target] / np.maximum(count, 1))


def _picks(values: Scores) -> NDArray[np.bool_]:
    """For each rule and feature, which candidates it selects."""
    return np.array(
        [
            values == np.where(np.isnan(values), -np.inf, values).max(axis=0),
            values == np.where(np.isnan(values), np.inf, values).min(axis=0),
            *(values == number for number in range(_MOST_EXACT)),
        ]
    )
