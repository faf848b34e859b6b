"""Numeric features of a scene's records, computed only from the server's content."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from fhir_gym.fhir import World
from fhir_gym.soundness.answer_variants import leaves
from fhir_gym.soundness.probe.scenes import reference_of
from fhir_gym.tasks.core.ids import id_number
from fhir_gym.types import Json, Resource


class Links:
    """The references between the records of a scene; records are given by their positions.

    Args:
        names: Reference (``Type/id``) to each record.
        flats: Flattened values of each record.
        statuses: Status of each record.
    """

    def __init__(self, names: Sequence[str], flats: Sequence[Flat], statuses: Sequence[str]) -> None:
        places = {name: at for at, name in enumerate(names)}
        self._kinds = [name.partition("/")[0] for name in names]
        self._statuses = statuses
        self._out: list[list[tuple[str, int]]] = [[] for _ in names]
        self._in: list[list[tuple[str, int]]] = [[] for _ in names]
        self._outside = [Counter[str]() for _ in names]
        for at, flat in enumerate(flats):
            for path, values in flat.items():
                for value in values if path.endswith("reference") else ():
                    if not is_reference(value):
                        continue
                    other = places.get(str(value))
                    if other is None:
                        self._outside[at][f"{path} elsewhere"] += 1
                    else:
                        self._out[at].append((path, other))
                        self._in[other].append((f"{self._kinds[at]}.{path}", at))
        self._near = [self._neighbours(at) for at in range(len(names))]

    def _neighbours(self, at: int) -> list[tuple[str, int]]:
        out = [(f"-> {self._kinds[other]}", other) for _, other in self._out[at]]
        return out + [(f"<- {label}", other) for label, other in self._in[at]]

    def counts(self, at: int) -> Counter[str]:
        """Count the records one and two references away from a record, by path and status."""
        counts = Counter({"references": len(self._out[at]), "referrers": len(self._in[at])}) + self._outside[at]
        counts.update(self._ways(self._near[at]))
        ways: dict[str, list[int]] = {}
        for way, other in self._near[at]:
            ways.setdefault(way, []).append(other)
        for way, others in ways.items():
            far = {link for other in others for link in self._near[other] if link[1] != at}
            counts.update({f"{way} {name}": count for name, count in self._ways(far).items()})
        return counts

    def _ways(self, reached: Iterable[tuple[str, int]]) -> Counter[str]:
        """Count records by path and status."""
        by_status = Counter((way, self._statuses[other]) for way, other in reached)
        counts: Counter[str] = Counter()
        for (way, status), count in by_status.items():
            counts[way] += count
            counts[f"{way} = {status}"] += count
        return counts

    def single(self, own: Sequence[int]) -> Mapping[str, list[int | None]]:
        """For each path, map every given record to the first record that it refers to, or to None."""
        rows: dict[str, list[int | None]] = {}
        for place, at in enumerate(own):
            for path, other in self._out[at]:
                targets = rows.setdefault(f"{path} {self._kinds[other]}", [None] * len(own))
                if targets[place] is None:
                    targets[place] = other
        return rows

    def referrers(self, own: Sequence[int]) -> Mapping[str, list[list[int]]]:
        """For each type and path, list the records that refer to each of the given records."""
        rows: dict[str, list[list[int]]] = {}
        for place, at in enumerate(own):
            for label, other in self._in[at]:
                rows.setdefault(label, [[] for _ in own])[place].append(other)
        return rows


Flat = Mapping[str, tuple[Json, ...]]
"""Maps each path of a record to its values; the path contains no list positions."""

_DATE = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d))?\Z")
_REFERENCE = re.compile(r"[A-Z][A-Za-z]+/[A-Za-z0-9\-.]{1,64}\Z")
_MOST_CODES = 30
_DAY = 86_400.0


def flatten(resource: Resource) -> Flat:
    """Flatten a record. Values that the server sets are dropped; tags and profiles are kept."""
    values: dict[str, tuple[Json, ...]] = {}
    for path, value in leaves(resource):
        name = ".".join(part for part in path if isinstance(part, str))
        values[name] = (*values.get(name, ()), value)
    for name, value in resource.get("meta", {}).items():
        if name not in ("versionId", "lastUpdated"):
            values[f"meta.{name}"] = (orjson.dumps(value).decode(),)
    return values


def is_reference(value: Json) -> bool:
    """Whether a value is a relative reference."""
    return isinstance(value, str) and _REFERENCE.match(value) is not None


@lru_cache(maxsize=100_000)
def days(value: str) -> float | None:
    """Convert a date or dateTime to days since 1970; None for other texts."""
    if not _DATE.match(value):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() / _DAY


class Background:
    """Data for comparison that all scenes of a task share: the world's records and the codes seen so far."""

    def __init__(self, world: World) -> None:
        self.today = world.now.timestamp() / _DAY
        self._world = world
        self._usual: dict[str, Counter[tuple[str, Json]]] = {}
        self._codes: dict[str, dict[Json, int]] = {}

    def usual(self, kind: str, path: str, value: Json) -> int:
        """Return the number of the world's records of a type that have this value at this path."""
        if kind not in self._usual:
            counted = (
                (path, values[0])
                for text in self._world.resources(kind)
                for path, values in flatten(orjson.loads(text)).items()
            )
            self._usual[kind] = Counter(counted)
        return self._usual[kind][path, value]

    def code(self, path: str, value: Json) -> float:
        """The category number of a value, equal in all scenes; NaN once the path has too many distinct values."""
        codes = self._codes.setdefault(path, {})
        if value not in codes and len(codes) < _MOST_CODES:
            codes[value] = len(codes)
        return codes.get(value, float("nan"))

    def is_closed(self, path: str) -> bool:
        """Whether a path has few distinct values and is therefore categorical; names, for example, are not."""
        return len(self._codes.get(path, ())) < _MOST_CODES


Column: TypeAlias = NDArray[np.float64]
Columns: TypeAlias = dict[str, Column]
"""Maps each feature name to one value per candidate record."""

_SERIAL = ("system", "url", "use", "reference", "code", "status", "display", "unit")
"""Last segments of paths with common values; equal values there do not relate two records."""
_LEAST_SHARED = 4
_MOST_GROUPS = 6
_STATUS = ("status", "clinicalStatus.coding.code", "active")


def candidates(records: Sequence[Resource], kind: str, background: Background) -> tuple[list[str], Columns]:
    """Compute the features of the candidates of one type.

    Args:
        records: All records of the scene in order of creation.
        kind: Resource type of the candidates.
        background: Data for comparison that all scenes of the task share.

    Returns:
        The candidates' references, and their features.
    """
    scene = _Scene(records, background)
    own = scene.by_kind[kind]
    columns = dict(scene.columns(kind))
    columns |= scene.references(own)
    columns |= scene.linked(own)
    columns |= {f"scene {name}": np.full(len(own), float(count)) for name, count in scene.counts().items()}
    return [scene.names[at] for at in own], columns


class _Scene:
    """The flattened records of a scene and their links."""

    def __init__(self, records: Sequence[Resource], background: Background) -> None:
        self.records, self.background = records, background
        self.names = [reference_of(record) for record in records]
        self.flats = [flatten(record) for record in records]
        self.by_kind: dict[str, list[int]] = {}
        for at, record in enumerate(records):
            self.by_kind.setdefault(record["resourceType"], []).append(at)
        self.row = {at: row for members in self.by_kind.values() for row, at in enumerate(members)}
        self.links = Links(self.names, self.flats, [_status(flat) for flat in self.flats])
        self._columns: dict[str, Columns] = {}
        self._holders = _holders(self.flats)

    def counts(self) -> Mapping[str, int]:
        return {f"{kind} count": len(members) for kind, members in self.by_kind.items()}

    def columns(self, kind: str) -> Columns:
        """Features of the records of one type, without those that depend on references."""
        if kind not in self._columns:
            members = self.by_kind[kind]
            flats = [self.flats[at] for at in members]
            columns = _order([self.records[at] for at in members], members)
            columns |= _sizes([self.records[at] for at in members], flats)
            columns |= _values(kind, flats, self.background)
            columns |= _agreement(flats)
            columns["values shared with other types"] = np.array([self._shared(at, kind) for at in members])
            self._columns[kind] = {f"{kind} {name}": column for name, column in columns.items()}
        return self._columns[kind]

    def _shared(self, at: int, kind: str) -> float:
        values = _distinctive(self.flats[at])
        others = (self._holders[value] for value in values)
        return float(sum(self.records[other]["resourceType"] != kind for some in others for other in some))

    def references(self, own: Sequence[int]) -> Columns:
        """Counts and ranks: for each path and status, how many records are one or two references away."""
        counted = [self.links.counts(at) for at in own]
        columns: Columns = {}
        for name in sorted({name for counts in counted for name in counts}):
            counts = np.array([float(counts[name]) for counts in counted])
            columns |= {f"{name}": counts} | _ranks(name, counts, np.ones((len(own), len(own)), bool))
            columns[f"{name} as many"] = _same(counts)
        return columns

    def linked(self, own: Sequence[int]) -> Columns:
        """Features of the records that a candidate refers to, and extreme features of those that refer to it."""
        columns: Columns = {}
        for path, targets in self.links.single(own).items():
            columns |= self._of_targets(path, targets)
            further = self.links.single([at for at in targets if at is not None])
            for next_path, next_targets in further.items():
                reached = iter(next_targets)
                aligned = [None if at is None else next(reached) for at in targets]
                columns |= self._of_targets(f"{path} > {next_path}", aligned)
        for label, referrers in self.links.referrers(own).items():
            columns |= self._of_referrers(label, referrers)
        return columns

    def _of_targets(self, path: str, targets: Sequence[int | None]) -> Columns:
        columns: Columns = {}
        for kind in dict.fromkeys(self.records[at]["resourceType"] for at in targets if at is not None):
            own_columns = self.columns(kind)
            rows = [self.row[at] if at is not None and self._is(at, kind) else -1 for at in targets]
            of_rows = np.vstack([np.array(list(own_columns.values())).T, np.full(len(own_columns), np.nan)])[rows]
            columns |= {f"{path} > {name}": of_rows[:, place] for place, name in enumerate(own_columns)}
        return columns

    def _is(self, at: int, kind: str) -> bool:
        return bool(self.records[at]["resourceType"] == kind)

    def _of_referrers(self, label: str, referrers: Sequence[Sequence[int]]) -> Columns:
        kind = next(self.records[at]["resourceType"] for some in referrers for at in some)
        everyone = np.ones((len(referrers), len(referrers)), bool)
        columns: Columns = {}
        for name, column in self.columns(kind).items():
            if not name.endswith((" value", " position")):
                continue
            for what, sign in (("highest", 1.0), ("lowest", -1.0)):
                of_rows = np.array([_extreme(sign, column[[self.row[at] for at in some]]) for some in referrers])
                columns |= {f"{label} {what} {name}": of_rows} | _ranks(f"{label} {what} {name}", of_rows, everyone)
        return columns


def _extreme(sign: float, values: Column) -> float:
    """Return the highest value for sign 1 and the lowest for sign -1; NaN if all values are missing."""
    present = values[~np.isnan(values)]
    return sign * float((sign * present).max()) if present.size else float("nan")


def _status(flat: Flat) -> str:
    return next((str(flat[name][0]) for name in _STATUS if name in flat), "no status")


def _holders(flats: Sequence[Flat]) -> Mapping[Json, list[int]]:
    """Map each distinctive value to the positions of the records that contain the value."""
    rows: dict[Json, list[int]] = {}
    for at, flat in enumerate(flats):
        for value in _distinctive(flat):
            rows.setdefault(value, []).append(at)
    return rows


def _distinctive(flat: Flat) -> set[Json]:
    return {
        value
        for path, values in flat.items()
        if not path.endswith(_SERIAL)
        for value in values
        if isinstance(value, str) and len(value) >= _LEAST_SHARED
    }


def _order(records: Sequence[Resource], positions: Sequence[int]) -> Columns:
    """Ranks of the records by creation, id, update time and version."""
    everyone = np.ones((len(records), len(records)), bool)
    ids = [str(record["id"]) for record in records]
    numbers = [id_number(id) for id in ids]
    metas = [record.get("meta", {}) for record in records]
    updated = [days(str(meta.get("lastUpdated", ""))) for meta in metas]
    ways = {
        "position": np.array(positions, float),
        "id number": np.array([np.nan if number is None else float(number) for number in numbers]),
        "id text": _text_order(ids),
        "lastUpdated": np.array([np.nan if moment is None else moment for moment in updated]),
        "version": np.array([float(meta.get("versionId", 1)) for meta in metas]),
    }
    columns = {"position": ways["position"]}
    for name, values in ways.items():
        columns |= _ranks(name, values, everyone)
    return columns


def _text_order(texts: Sequence[str]) -> Column:
    places = {text: place for place, text in enumerate(sorted(set(texts)))}
    return np.array([float(places[text]) for text in texts])


def _sizes(records: Sequence[Resource], flats: Sequence[Flat]) -> Columns:
    everyone = np.ones((len(records), len(records)), bool)
    columns: Columns = {}
    for name, sizes in {
        "text length": [sum(len(str(value)) for values in flat.values() for value in values) for flat in flats],
        "leaves": [sum(map(len, flat.values())) for flat in flats],
        "paths": [len(flat) for flat in flats],
        "elements": [len(record) for record in records],
    }.items():
        counts = np.array(sizes, float)
        columns |= {name: counts, f"{name} as many": _same(counts)} | _ranks(name, counts, everyone)
    return columns


def _values(kind: str, flats: Sequence[Flat], background: Background) -> Columns:
    """For each path: the frequency, category, number and rank of the record's value."""
    columns: Columns = {}
    paths = sorted({path for flat in flats for path in flat})
    groups = list(_groups(flats, paths))
    everyone = np.ones((len(flats), len(flats)), bool)
    for path in paths:
        values = [flat.get(path, ()) for flat in flats]
        counts = Counter(values)
        same = np.array([float(counts[value]) for value in values])
        columns[f"{path} same"] = same
        columns[f"{path} share"] = same / len(flats)
        if groups:
            equal = _equal(values)
            columns |= {f"{path} same in {name}": _count(equal & group) for name, group in groups}
        usual = [background.usual(kind, path, value[0]) if value else -1 for value in values]
        columns[f"{path} usual"] = np.log1p(np.array(usual, float) + 1)
        if any(len(value) > 1 for value in values):
            columns[f"{path} items"] = np.array([float(len(value)) for value in values])
        if any(value and is_reference(value[0]) for value in values):
            continue
        numbers = _numbers(values)
        if numbers is None:
            texts = _text_order([str(value[0]) if value else "" for value in values])
            columns |= _ranks(path, texts, everyone)
            codes = [background.code(f"{kind} {path}", value[0]) if value else -1.0 for value in values]
            columns[f"{path} category"] = np.array(codes)
            continue
        columns |= _ranks(path, numbers, everyone)
        for name, group in groups:
            columns |= _ranks(f"{path} in {name}", numbers, group)
        columns |= _moments(path, values, numbers, background)
    return columns


def _moments(path: str, values: Sequence[tuple[Json, ...]], numbers: Column, background: Background) -> Columns:
    """The values of a numeric path; for dates, the days from the present, the weekday and the hour."""
    if not any(value and isinstance(value[0], str) for value in values):
        return {f"{path} value": numbers}
    return {
        f"{path} value": numbers - background.today,
        f"{path} weekday": np.floor(numbers) % 7,
        f"{path} hour": numbers % 1 * 24,
    }


def _numbers(values: Sequence[tuple[Json, ...]]) -> Column | None:
    """The first value of each record at a path, as a number; None if a value is a text or boolean."""
    numbers: list[float] = []
    for at_path in values:
        value = at_path[0] if at_path else None
        number = days(value) if isinstance(value, str) else value
        if isinstance(number, bool) or (number is None and value is not None):
            return None
        numbers.append(np.nan if number is None else float(number))
    return np.array(numbers)


def _groups(flats: Sequence[Flat], paths: Sequence[str]) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield for each grouping which records are in the same group.

    Records are grouped by reference, code or status, and by combinations of a reference with a code or status.
    """
    groups: dict[str, NDArray[np.bool_]] = {}
    for path in paths:
        values = [flat.get(path, ()) for flat in flats]
        is_subject = any(value and is_reference(value[0]) for value in values)
        if (is_subject or path in _STATUS or path.endswith("code.coding.code")) and len(set(values)) > 1:
            groups[path] = _equal(values)
    singles = dict(list(groups.items())[:_MOST_GROUPS])
    yield from singles.items()
    several = [name for name in singles if not name.endswith("reference")]
    for subject in (name for name in singles if name.endswith("reference")):
        for other in several:
            yield f"{subject} and {other}", singles[subject] & singles[other]


def _equal(values: Sequence[object]) -> NDArray[np.bool_]:
    places: dict[object, int] = {}
    codes = np.array([places.setdefault(value, len(places)) for value in values])
    return np.asarray(codes[:, None] == codes[None, :])


def _agreement(flats: Sequence[Flat]) -> Columns:
    """Distance to the other records: the number of paths with different values."""
    count = len(flats)
    everyone = np.ones((count, count), bool)
    equal = [_equal([flat.get(path, ()) for flat in flats]) for path in sorted({p for flat in flats for p in flat})]
    telling = [equality for equality in equal if count < equality.sum() < count * count]
    columns: Columns = {}
    for name, some in (("all", equal), ("shared", telling)):
        if not some or count == 1:
            continue
        apart = np.sum([~equality for equality in some], axis=0).astype(float)
        total, others = apart.sum(1) / (count - 1), apart + np.diag(np.full(count, np.inf))
        nearest = np.sort(others, axis=1)
        columns |= {
            f"{name} leaves: mean difference": total,
            f"{name} leaves: mean difference, scaled": (total - total.mean()) / (total.std() or 1.0),
            f"{name} leaves: nearest": nearest[:, 0],
            f"{name} leaves: second nearest": nearest[:, min(1, count - 2)],
            f"{name} leaves: farthest": apart.max(1),
        }
        columns |= {f"{name} leaves: neighbours at {most}": _count(others <= most) for most in (1, 2, 3)}
        columns[f"{name} leaves: neighbours at nearest"] = _count(others <= others.min())
        for label in (f"{name} leaves: mean difference", f"{name} leaves: nearest"):
            columns |= _ranks(label, columns[label], everyone)
        usual = np.sum([equality.sum(1) == equality.sum(1).max() for equality in some], axis=0).astype(float)
        columns |= {f"{name} leaves: usual values": usual} | _ranks(f"{name} leaves: usual values", usual, everyone)
    return columns


def _ranks(name: str, values: Column, among: NDArray[np.bool_]) -> Columns:
    """Ranks of the values within a group: from the lowest, from the highest, and as a fraction from 0 to 1."""
    below = _count((values[:, None] > values[None, :]) & among)
    above = _count((values[:, None] < values[None, :]) & among)
    unknown = np.isnan(values)
    below[unknown] = above[unknown] = np.nan
    return {
        f"{name} rank from lowest": below,
        f"{name} rank from highest": above,
        f"{name} rank": below / np.maximum(below + above, 1),
    }


def _same(values: Column) -> Column:
    return _count(values[:, None] == values[None, :])


def _count(matrix: NDArray[np.bool_]) -> Column:
    return np.asarray(matrix.sum(axis=1), np.float64)
