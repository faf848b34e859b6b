"""Extract the index rows of a resource.

The paths of a resource type form one tree. So the extraction visits each element of a resource at most once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

from fhir_gym.fhir.fhirpath.search_paths import PathStep, SearchPath
from fhir_gym.fhir.index.specs import index_spec
from fhir_gym.fhir.index.values import DAY_MS, WRITERS, RowBuffer, Writer, compartment_key, relative_reference, truth
from fhir_gym.types import Json, Resource

_Walk = Callable[[Json, RowBuffer], None]
"""A function that writes the rows of an element's value (possibly a list) and of all values below it."""

IndexRows: TypeAlias = dict[str, list[tuple[Any, ...]]]
"""Index rows by table name."""


@dataclass(slots=True)
class _Node:
    """A node in the tree of paths: the writers of the values at this node, and the steps to the child nodes."""

    writers: list[tuple[Writer, int]] = field(default_factory=list)
    steps: dict[PathStep, _Node] = field(default_factory=dict)

    def reach(self, steps: tuple[PathStep, ...]) -> _Node:
        node = self
        for step in steps:
            node = node.steps.setdefault(step, _Node())
        return node

    def walks(self) -> dict[str, _Walk]:
        """Return the functions for the child elements, by name."""
        by_type: dict[str, tuple[_Walk, ...]] = {}
        for step, node in self.steps.items():
            by_type[step.key] = (*by_type.get(step.key, ()), _walk(step, node))
        return {key: walks[0] if len(walks) == 1 else _each(walks) for key, walks in by_type.items()}


@dataclass(frozen=True, slots=True)
class _Extractor:
    """Extracts the rows of some paths of a type.

    Attributes:
        root: The functions for the resource's elements, by name.
        compartment: Path of the reference to the compartment.
        when: Path id of the date that token rows also contain; 0 if there is no such date.
        beside: Whether the date is extracted only for the token rows and gets no date rows.
        absent: Path ids of booleans that are indexed as false if they are absent.
    """

    root: tuple[tuple[str, _Walk], ...]
    compartment: SearchPath | None
    when: int
    beside: bool
    absent: tuple[int, ...]


@lru_cache(maxsize=1024)
def _extractor(resource_type: str, pids: frozenset[int] | None) -> _Extractor:
    spec = index_spec(resource_type)
    when = spec.when.pids[0] if spec.when else 0
    indexed = [(kind, path, pid) for kind, path, pid in spec.indexed if pids is None or pid in pids]
    beside = pids is not None and when not in pids
    if beside and any(kind == "token" for kind, *_ in indexed):
        indexed += [(kind, path, pid) for kind, path, pid in spec.indexed if pid == when]
    top = _Node()
    for kind, path, pid in indexed:
        top.reach(path.steps).writers.append((truth if path.truth else _writer(kind, path), pid))
    absent = tuple(dict.fromkeys(pid for _, path, pid in indexed if path.truth))
    return _Extractor(tuple(top.walks().items()), spec.compartment, when, beside, absent)


def _walk(step: PathStep, node: _Node) -> _Walk:
    """Return the function for a node of the tree."""
    if len(node.writers) == 1 and not (node.steps or step.where or step.first):
        return _leaf(*node.writers[0])
    single = _single(node)
    if step.where:
        single = _conditional(step.where, single)
    first = step.first

    def walk(value: Json, rows: RowBuffer) -> None:
        if isinstance(value, list):
            for item in value[:1] if first else value:
                walk(item, rows)
        elif value is not None:
            single(value, rows)

    return walk


def _leaf(write: Writer, pid: int) -> _Walk:
    """Return the function for the most frequent kind of node: a leaf with one writer."""

    def walk(value: Json, rows: RowBuffer) -> None:
        if isinstance(value, list):
            for item in value:
                walk(item, rows)
        elif value is not None:
            write(value, pid, rows)

    return walk


def _each(walks: tuple[_Walk, ...]) -> _Walk:
    def walk(value: Json, rows: RowBuffer) -> None:
        for part in walks:
            part(value, rows)

    return walk


def _conditional(where: tuple[str, str], walk: _Walk) -> _Walk:
    key, text = where

    def conditional(value: Json, rows: RowBuffer) -> None:
        if isinstance(value, dict) and value.get(key) == text:
            walk(value, rows)

    return conditional


def _single(node: _Node) -> _Walk:
    """Return the function for a single value."""
    writers = tuple(node.writers)
    below = tuple(node.walks().items())

    def single(value: Json, rows: RowBuffer) -> None:
        for write, pid in writers:
            write(value, pid, rows)
        if isinstance(value, dict):
            for key, walk in below:
                if key in value:
                    walk(value[key], rows)

    return single


def _writer(kind: str, path: SearchPath) -> Writer:
    writer = WRITERS[kind, path.type]
    return _bound_code(path.system) if kind == "token" and path.system else writer


def _bound_code(system: str) -> Writer:
    def write(value: Json, pid: int, rows: RowBuffer) -> None:
        if isinstance(value, str) and value:
            rows.token[pid, value, system] = None

    return write


def index_rows(resource: Resource, rid: int) -> IndexRows:
    """Return all index rows of a resource by table, ready for `INSERT`."""
    return index_rows_of(resource["resourceType"], [(rid, resource)])


def index_rows_of(
    resource_type: str, resources: Iterable[tuple[int, Resource]], pids: frozenset[int] | None = None
) -> IndexRows:
    """Return the index rows of resources of one type by table, ready for `INSERT`.

    `pids` are the path ids to index; None means all.
    """
    extractor = _extractor(resource_type, pids)
    compartment = extractor.compartment
    rows = RowBuffer()
    tokens: list[tuple[Any, ...]] = []
    dates: list[tuple[Any, ...]] = []
    for rid, resource in resources:
        rows.begin(rid, _compartment(resource, compartment) if compartment else 0)
        for key, walk in extractor.root:
            if key in resource:
                walk(resource[key], rows)
        if extractor.absent:
            _absent(extractor.absent, rows)
        if rows.token:
            tokens += _token_rows(rows, extractor.when)
        dates += rows.date
    return {
        "token": tokens,
        "string": [*rows.string],
        "date": [row for row in dates if row[0] != extractor.when] if extractor.beside else dates,
        "quantity": [*rows.quantity],
        "reference": [*rows.reference],
        "uri": [*rows.uri],
    }


def _absent(pids: tuple[int, ...], rows: RowBuffer) -> None:
    """Index absent booleans as false."""
    written = {key[0] for key in rows.token}
    for pid in pids:
        if pid not in written:
            rows.token[pid, "false", ""] = None


def _compartment(resource: Resource, path: SearchPath) -> int:
    value: Json = resource
    for step in path.steps:
        value = value.get(step.key) if isinstance(value, dict) else None
    text = value.get("reference") if isinstance(value, dict) else None
    target = relative_reference(text) if isinstance(text, str) else None
    return compartment_key(*target) if target else 0


def _token_rows(rows: RowBuffer, when: int) -> list[tuple[Any, ...]]:
    """Return token rows with the resource's date. If a value has several systems, its rows are numbered."""
    at = None
    for pid, _, low, _, high, *_ in rows.date:
        if pid == when and high - low < DAY_MS:
            at = low
            break
    seen: dict[tuple[int, str], int] = {}
    token_rows = []
    rid, compartment = rows.rid, rows.compartment
    for pid, value, system in rows.token:
        n = seen.get((pid, value), 0)
        seen[pid, value] = n + 1
        token_rows.append((pid, value, compartment, rid, n, system, at))
    return token_rows


def references(resource: Resource) -> list[tuple[str, str]]:
    """Return the references in elements that a search parameter indexes.

    Returns:
        The path as in the search parameter (``Patient.managingOrganization``), and the reference as written (relative
        or not), in the order of the paths.
    """
    targets: dict[tuple[str, str], None] = {}
    for kind, path, _ in index_spec(resource["resourceType"]).indexed:
        if kind == "reference" and path.type == "Reference":
            for value in _values(resource, path.steps):
                if isinstance(value, dict) and isinstance(text := value.get("reference"), str):
                    targets[path.source, text] = None
    return list(targets)


def _values(value: Json, steps: tuple[PathStep, ...]) -> Iterator[Json]:
    if isinstance(value, list):
        for item in value:
            yield from _values(item, steps)
    elif not steps:
        yield value
    elif isinstance(value, dict):
        step, below = steps[0], value.get(steps[0].key)
        for item in (below[:1] if step.first else below) if isinstance(below, list) else (below,):
            if item is not None and _holds(item, step):
                yield from _values(item, steps[1:])


def _holds(value: Json, step: PathStep) -> bool:
    return not step.where or (isinstance(value, dict) and value.get(step.where[0]) == step.where[1])
