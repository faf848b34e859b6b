"""Import a user's data as a world: scan all records first, and write them only if all are valid."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from fhir_gym.errors import WorldError
from fhir_gym.fhir import Credentials, World, WorldBuilder, index
from fhir_gym.fhir.store.builder import UnusableResourceError, check_present
from fhir_gym.printable import one_line
from fhir_gym.types import Json, Resource
from fhir_gym.worlds.bundles import bundle_records
from fhir_gym.worlds.cache import build_lock, remove_leftovers, sweep
from fhir_gym.worlds.catalogue import check_name, imported_path
from fhir_gym.worlds.downloading import Download
from fhir_gym.worlds.fhir_client import FhirClient
from fhir_gym.worlds.files import Format, SourceRecord, find_files, format_of, read_lines
from fhir_gym.worlds.import_scan import ImportScan, RefusedError, infer_now
from fhir_gym.worlds.loading import Progress, require_replaceable

_STEP = 100


@dataclass(frozen=True)
class ImportReport:
    """Result of an import.

    Attributes:
        source: Path or URL of the source.
        files: Number of files read; 0 for a server.
        counts: Number of resources by type.
        doubles: Number of exact duplicates, which are skipped.
        dangling: Number of dangling references (the world does not have their targets); the world keeps these
            references.
        examples: A few of these references, as `Type/id -> Type/id`.
        altered: Number of resources that the server stores with dropped or changed elements.
        altered_examples: A few of these resources.
        dropped: Number of resources that lost an unknown element, by path, such as `Patient.shoeSize`.
        changed: Number of resources with a changed element, by path.
        now: Current time of the world.
        now_source: How the current time was determined.
        notes: Further remarks, one sentence each.
    """

    source: str
    files: int
    counts: dict[str, int]
    doubles: int
    dangling: int
    examples: tuple[str, ...]
    altered: int
    altered_examples: tuple[str, ...]
    dropped: dict[str, int]
    changed: dict[str, int]
    now: datetime
    now_source: str
    notes: tuple[str, ...] = ()


def import_files(
    source_dir: str | Path,
    *,
    format: Format | None = None,
    out: str | Path | None = None,
    name: str | None = None,
    replace: bool = False,
    now: datetime | None = None,
    progress: Progress | None = None,
    on_report: Callable[[ImportReport], None] | None = None,
) -> World:
    """Import the NDJSON files of a FHIR bulk export, or JSON files with one Bundle each, such as Synthea's, as a world.

    Reads every file of the format below the folder in sorted order, also with `.gz` appended, and ignores other files.
    If any record is invalid, nothing is imported and the error lists up to 20 of the problems. References between
    Bundles by `urn:uuid:` or by identifier (`Practitioner?identifier=…`) are resolved; dangling references are kept.

    Args:
        source_dir: A folder or one file.
        format: `ndjson` or `bundles`; by default the format of the files (see `format_of`).
        out: World file to write; by default a file in the cache, where `load(name)` finds it.
        name: Name of the world; by default the name of the folder or file.
        replace: Whether to replace an existing world.
        now: Current time of the world; by default the first quarter of an hour after the newest clinical date.
        progress: Called with the number of written resources and the total.
        on_report: Called with the report before the world is returned.

    Raises:
        WorldError: There is nothing to import, a record is invalid, the world exists, or the file is not writable.
    """
    source = Path(source_dir).expanduser()
    target = _Target.of(out, name or _name_of(source), replace, now)
    is_ndjson = (format or format_of(source)) == "ndjson"
    files = [(path, _shown(path, source)) for path in find_files(source, ".ndjson" if is_ndjson else ".json")]

    def records() -> Iterator[SourceRecord]:
        if not is_ndjson:
            return bundle_records(files)
        return chain.from_iterable(read_lines(path, shown) for path, shown in files)

    return _Import(str(source), len(files), records, now, progress, on_report).into(target)


def import_server(
    url: str,
    *,
    types: Sequence[str] | None = None,
    out: str | Path | None = None,
    name: str | None = None,
    replace: bool = False,
    now: datetime | None = None,
    credentials: Credentials | None = None,
    page_size: int = 500,
    progress: Progress | None = None,
    on_report: Callable[[ImportReport], None] | None = None,
) -> World:
    """Import all resources of a FHIR server as a world.

    Fetched pages are stored next to the target. After an error or a crash, the same call resumes with the next page.
    At the end, the number of fetched resources of each type is compared with the server's total.

    Args:
        url: Base URL of the server, such as `http://localhost:8080/fhir`.
        types: Resource types to import; by default all searchable types of its CapabilityStatement.
        out: World file to write; by default a file in the cache, where `load(name)` finds it.
        name: Name of the world; by default derived from the URL.
        replace: Whether to replace an existing world.
        now: Current time of the world; by default the first quarter of an hour after the newest clinical date.
        credentials: Headers and certificate authority; None if the server needs no credentials.
        page_size: Requested page size; a server may send smaller pages.
        progress: Called with the number of processed resources (first fetched, then written) and the total.
        on_report: Called with the report before the world is returned.

    Raises:
        UnknownNameError: A resource type does not exist.
        WorldError: The server is not an R4 server or fails for more than half a minute, resources are invalid, totals
            differ, or the world is not writable.
    """
    client = FhirClient(url, credentials=credentials)
    try:
        target = _Target.of(out, name or client.name, replace, now)
        folder = target.path.with_name(f".{target.path.name}.spool")
        with _leaving_nothing_empty(folder), build_lock(folder / "spool"):
            download = Download(client, folder, types, page_size, progress)
            download.run()
            source = _Import(
                client.base, 0, download.records, now, progress, on_report, download.verify, download.notes
            )
            try:
                world = source.into(target)
            except RefusedError:  # the server's data must be corrected first, so the fetched pages are useless
                download.journal.remove()
                raise
            download.journal.remove()
    finally:
        client.close()
    return world


@contextmanager
def _leaving_nothing_empty(folder: Path) -> Iterator[None]:
    """If an import fails before its first page, delete the journal's folder and the folders created for it."""
    new_parents = [parent for parent in folder.parents if not parent.exists()]
    try:
        yield
    except BaseException:
        if not any(path.stat().st_size for path in folder.glob("*.ndjson")):
            shutil.rmtree(folder, ignore_errors=True)
            for parent in new_parents:
                with suppress(OSError):  # the folder is no longer empty
                    parent.rmdir()
        raise


def _shown(path: Path, source: Path) -> str:
    return path.name if path == source else str(path.relative_to(source))


@dataclass
class _Import:
    """An import, which reads the records twice: first to scan them, then to write them."""

    source: str
    files: int
    records: Callable[[], Iterator[SourceRecord]]
    now: datetime | None
    progress: Progress | None
    on_report: Callable[[ImportReport], None] | None
    verify: Callable[[ImportScan], None] | None = None
    notes: Callable[[], tuple[str, ...]] = tuple

    def into(self, target: _Target) -> World:
        """Write the world and open it."""
        scan = self._scan()
        now, why = (self.now, "as given") if self.now else infer_now(scan)
        with build_lock(target.path) if target.cached else nullcontext():
            if target.cached:
                target.check_free()  # another process may have imported the world in the meantime
                remove_leftovers(target.path)
            with WorldBuilder(target.path, name=target.name, seed=None, now=now) as builder:
                report = self._write(builder, scan, now, why)
        if self.on_report:
            self.on_report(report)
        return World.open(target.path)

    def _scan(self) -> ImportScan:
        scan = self._scanned(ImportScan())
        if scan.problems:
            scan = self._scanned(ImportScan(thorough=True))
        scan.raise_problems()
        if self.verify:
            self.verify(scan)
        if not scan.total:
            raise WorldError(f"cannot import {self.source}: it has no resources")
        return scan

    def _scanned(self, scan: ImportScan) -> ImportScan:
        for seen, record in enumerate(self.records()):
            if self.progress and seen % _STEP == 0:
                self.progress(seen, 0)
            scan.add(record)
        return scan

    def _write(self, builder: WorldBuilder, scan: ImportScan, now: datetime, why: str) -> ImportReport:
        missing, altered = _Examples(), ElementChanges()
        written: set[str] = set()
        for record in self.records():
            resource: Resource = record.value
            identity = f"{resource['resourceType']}/{resource['id']}"
            if identity in written:
                continue
            if self.progress and len(written) % _STEP == 0:
                self.progress(len(written), scan.total)
            written.add(identity)
            stored = _add(builder, scan, record.place, resource)
            if stored is None:
                continue
            altered.add(resource, stored)
            for _, target in index.references(stored):
                if target not in scan.known:
                    missing.add(f"{identity} -> {target}")
        scan.raise_problems()
        if self.progress:
            self.progress(scan.total, scan.total)
        return ImportReport(
            source=self.source,
            files=self.files,
            counts=dict(sorted(scan.counts.items())),
            doubles=scan.doubles,
            dangling=missing.count,
            examples=tuple(missing.examples),
            altered=altered.resources,
            altered_examples=tuple(altered.examples),
            dropped=dict(altered.dropped.most_common()),
            changed=dict(altered.changed.most_common()),
            now=now.astimezone(UTC),
            now_source=why,
            notes=self.notes(),
        )


@dataclass(frozen=True)
class _Target:
    """Path and name of the world to write."""

    path: Path
    name: str
    cached: bool
    replace: bool

    @classmethod
    def of(cls, out: str | Path | None, name: str, replace: bool, now: datetime | None) -> _Target:
        """Build and check a target before any record is read.

        Raises:
            WorldError: The name or the current time is invalid, or the target exists and must not be replaced.
        """
        check_name(name)
        if now is not None:
            check_present(now)
        path = Path(out).expanduser() if out is not None else imported_path(name)
        if out is None:
            sweep(path.parent)
        target = cls(path, name, out is None, replace)
        target.check_free()
        return target

    def check_free(self) -> None:
        """Raise WorldError if the target exists and must not be replaced."""
        if self.path.is_file() and not self.replace:
            what = f"the world {self.name!r}" if self.cached else str(self.path)
            raise WorldError(f"{what} already exists; replace it with --replace (replace=True in Python)")
        require_replaceable(self.path)


class _Examples:
    """A counter that keeps the first few items."""

    def __init__(self) -> None:
        self.count = 0
        self.examples: list[str] = []

    def add(self, example: str) -> None:
        self.count += 1
        if len(self.examples) < 5:
            self.examples.append(example)


def _add(builder: WorldBuilder, scan: ImportScan, place: str, resource: Resource) -> Resource | None:
    """Store a resource; add an invalid resource to the scan's problems. Other failures, such as a full disk, raise."""
    try:
        return builder.add(resource)
    except UnusableResourceError as error:
        scan.add_problem(place, str(error))
        return None


def _name_of(source: Path) -> str:
    stem = source.resolve().name.split(".")[0] if source.is_file() else source.resolve().name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:100] or "imported"


_EXAMPLES = 5
_PATHS = 1000  # maximum number of distinct paths to count; only malformed data has more paths


class ElementChanges:
    """Counts of changed resources, with examples, and of dropped and changed elements by path."""

    def __init__(self) -> None:
        self.resources = 0
        self.examples: list[str] = []
        self.dropped: Counter[str] = Counter()
        self.changed: Counter[str] = Counter()

    def add(self, source: Resource, stored: Resource) -> None:
        """Compare an imported resource with its stored form, except for `meta`, which the server fills in."""
        before, after = _content(source), _content(stored)
        if before == after:
            return
        kind = str(stored["resourceType"])
        self.resources += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(f"{kind}/{stored['id']}")
        gone = Counter(_paths(kind, before)) - Counter(_paths(kind, after))
        for path, times in gone.items():
            if times > gone[path.rpartition(".")[0]]:  # otherwise the element was dropped with its parent
                _count(self.dropped, path)
        if not gone:
            for name in before.keys() & after.keys():
                if before[name] != after[name]:
                    _count(self.changed, f"{kind}.{name}")


def _content(resource: Resource) -> dict[str, Json]:
    return {key: value for key, value in resource.items() if key != "meta"}


def _paths(path: str, value: Json) -> Iterator[str]:
    """Yield the path of every element in a value; all items of a list have the same path."""
    if isinstance(value, list):
        for item in value:
            yield from _paths(path, item)
    elif isinstance(value, dict):
        for name, inner in value.items():
            for item in inner if isinstance(inner, list) else (inner,):
                yield f"{path}.{name}"
                yield from _paths(f"{path}.{name}", item)


def _count(paths: Counter[str], path: str) -> None:
    path = one_line(path, 200)
    if path in paths or len(paths) < _PATHS:
        paths[path] += 1
