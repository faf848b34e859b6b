"""Compare the resources of a world with those of a FHIR server, and restore what an interrupted episode has changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

from fhir_gym.errors import WorldError
from fhir_gym.fhir import Credentials, World, serialization
from fhir_gym.fhir.adapters.remote import RemoteSession
from fhir_gym.fhir.adapters.remote_interactions import ResourceStates
from fhir_gym.printable import one_line
from fhir_gym.types import Json, Resource
from fhir_gym.worlds.batches import BatchClient, Record, batches
from fhir_gym.worlds.bundles import rewrite_references
from fhir_gym.worlds.loading import Progress

_PAGE = 500
_MOST_SHOWN = 1000
_LABELS = ("profile", "security", "tag")
_OWN = ("versionId", "lastUpdated")


@dataclass(frozen=True)
class Difference:
    """One resource that differs.

    Attributes:
        kind: `missing` from the server, `extra` on the server, or `different` content.
        resource: Type and id.
        path: First path whose value differs; empty unless the content differs.
    """

    kind: Literal["missing", "extra", "different"]
    resource: str
    path: str = ""


@dataclass(frozen=True)
class Comparison:
    """The result of comparing a world with a server.

    Attributes:
        world: Name of the world.
        server: Base URL of the server.
        compared: Number of resources in the world.
        counts: Number of differences of each kind.
        differences: The first differences.
    """

    world: str
    server: str
    compared: int
    counts: dict[str, int]
    differences: tuple[Difference, ...]

    @property
    def equal(self) -> bool:
        """Whether the server has exactly the world's resources, as far as the world's types go."""
        return not any(self.counts.values())


def compare(
    world: World,
    url: str,
    *,
    credentials: Credentials | None = None,
    extra: bool = True,
    most: int = _MOST_SHOWN,
    progress: Progress | None = None,
) -> Comparison:
    """Compare the resources of a world with those that a server has of the same types.

    Elements that servers set themselves are not compared: `meta.versionId`, `meta.lastUpdated`, the part of
    `meta.source` after `#`, the order of labels in `meta`, and the server's own base URL in references.

    Args:
        world: The world.
        url: Base URL of the server.
        credentials: Headers and certificate authority; None if the server needs no credentials.
        extra: Whether resources that only the server has are differences.
        most: Maximum number of differences to return; all are counted.
        progress: Called with the number of compared resources and the total.

    Raises:
        WorldError: The server is not an R4 server, or fails for more than half a minute.
    """
    client = BatchClient(url, credentials=credentials)
    try:
        client.check_types(list(world.manifest.counts))
        return compare_with(client, world, extra=extra, most=most, progress=progress)
    finally:
        client.close()


def compare_with(
    client: BatchClient, world: World, *, extra: bool = True, most: int = _MOST_SHOWN, progress: Progress | None = None
) -> Comparison:
    """Compare a world with the server of a client; see `compare`."""
    counts: Counter[str] = Counter({"missing": 0, "extra": 0, "different": 0})
    shown: list[Difference] = []
    for difference in _differences(client, world, extra, progress):
        counts[difference.kind] += 1
        if len(shown) < most:
            shown.append(difference)
    return Comparison(world.name, client.base, world.manifest.total, dict(counts), tuple(shown))


def _differences(client: BatchClient, world: World, extra: bool, progress: Progress | None) -> Iterator[Difference]:
    total, done = world.manifest.total, 0
    present: Counter[str] = Counter()
    for group in batches(world, range(1, total + 1)):
        records = [record for _, record in group]
        for record, resource in zip(records, client.read_all(records), strict=True):
            if resource is None:
                yield Difference("missing", record.url)
                continue
            present[record.type] += 1
            path = first_difference(client, record, resource)
            if path is not None:
                yield Difference("different", record.url, path)
        done += len(group)
        if progress:
            progress(done, total)
    if extra:
        types = list(world.manifest.counts)
        for name, number in client.totals(types).items():
            if number > present[name]:
                yield from _extra(client, world, name, number - present[name])


def _extra(client: BatchClient, world: World, resource_type: str, number: int) -> Iterator[Difference]:
    """Yield the resources of a type that only the server has; stop when their number is reached."""
    seen: set[str] = set()
    pages: set[str] = set()
    url: str | None = f"{client.base}/{resource_type}?_elements=id&_count={_PAGE}"
    while url is not None:
        pages.add(url)
        page = client.page(url, resource_type)
        for resource in page.resources:
            id = str(resource.get("id"))
            if id not in seen and not world.holds(resource_type, id):
                seen.add(id)
                yield Difference("extra", one_line(f"{resource_type}/{id}", 200))
                if len(seen) == number:
                    return
        url = page.next
        if url in pages or len(pages) > world.manifest.counts[resource_type] + number:
            raise WorldError(f"paging through {resource_type} of {client.base} does not end")
    if len(seen) < number:
        raise WorldError(
            f"{client.base} reports {number:,} other resources of {resource_type}, but its pages have {len(seen):,}"
        )


def first_difference(client: BatchClient, record: Record, resource: Resource) -> str | None:
    """Return the first path whose value differs between a world's and a server's resource; None if they are equal."""
    rewrite_references(resource, partial(_relative, f"{client.base}/"))
    expected = serialization.loads(record.body)
    path = _path(record.type, _without_own(expected), _without_own(resource))
    return path and one_line(path, 300)


def _relative(own: str, target: str) -> str:
    return target.removeprefix(own)


def _without_own(resource: Json) -> Json:
    """Return a resource without the elements that servers set."""
    if not isinstance(resource, dict):
        return resource
    meta = resource.get("meta")
    if not isinstance(meta, dict):
        return resource
    kept = {name: value for name, value in meta.items() if name not in _OWN}
    for name in _LABELS:
        if isinstance(kept.get(name), list):
            kept[name] = sorted(kept[name], key=serialization.dumps)
    if isinstance(kept.get("source"), str):
        kept["source"] = kept["source"].partition("#")[0]
    kept = {name: value for name, value in kept.items() if value}
    others = {name: value for name, value in resource.items() if name != "meta"}
    return {**others, "meta": kept} if kept else others


def _path(path: str, expected: Json, stored: Json) -> str | None:
    if isinstance(expected, dict) and isinstance(stored, dict):
        for name in [*expected, *(name for name in stored if name not in expected)]:
            if name not in expected or name not in stored:
                return f"{path}.{name}"
            inner = _path(f"{path}.{name}", expected[name], stored[name])
            if inner is not None:
                return inner
        return None
    if isinstance(expected, list) and isinstance(stored, list):
        for at, (value, other) in enumerate(zip(expected, stored, strict=False)):
            inner = _path(f"{path}[{at}]", value, other)
            if inner is not None:
                return inner
        return None if len(expected) == len(stored) else f"{path}[{min(len(expected), len(stored))}]"
    return None if serialization.dumps(expected) == serialization.dumps(stored) else path


_SHOWN = 5


@dataclass(frozen=True)
class RestoreReport:
    """The result of restoring a server.

    Attributes:
        world: Name of the world.
        server: Base URL of the server.
        resources: Type and id of each resource that was restored or deleted.
        left: The changes that could not be undone; empty unless `force`.
    """

    world: str
    server: str
    resources: tuple[str, ...]
    left: tuple[str, ...] = ()


def restore(
    world: World,
    url: str,
    *,
    comparison: Comparison | None = None,
    force: bool = False,
    credentials: Credentials | None = None,
) -> RestoreReport:
    """Undo the changes that an interrupted episode has left on a server.

    The next episode on the server does this too. Without a comparison, this machine must have run the episode, because
    its journal of the server lists the changes to undo.

    Args:
        world: The world of the episode.
        url: Base URL of the server.
        comparison: The result of `compare`: its differences are undone instead of those in the journal. Resources that
            only the server has are deleted.
        force: Whether to forget what cannot be undone, unreadable notes and the notes of other worlds, instead of
            raising. Everything else is undone in both cases.
        credentials: Headers and certificate authority; None if the server needs no credentials.

    Raises:
        InfraError: The server is in use, does not answer, does not contain the world, or cannot be restored.
        WorldError: The comparison does not list all differences, or a difference
            cannot be undone.
    """
    states = None if comparison is None else _states(world, comparison)
    session = RemoteSession(url, world, credentials=credentials, undo=states, force=force)
    session.close()
    wrong = [f"{state.type}/{state.id}" for state in states or () if f"{state.type}/{state.id}" not in session.restored]
    if wrong and not force:
        more = f" and {len(wrong) - _SHOWN:,} more" if len(wrong) > _SHOWN else ""
        raise WorldError(f"{session.base_url} still differs in {', '.join(wrong[:_SHOWN])}{more}")
    return RestoreReport(world.name, session.base_url, session.restored, session.left)


def _states(world: World, comparison: Comparison) -> list[ResourceStates]:
    """Return the world's states of the resources that differ."""
    number = sum(comparison.counts.values())
    if number > len(comparison.differences):
        raise WorldError(
            f"{comparison.server} has {number:,} differences, too many to restore: "
            "upload the world to an empty server instead"
        )
    names = [difference.resource.partition("/") for difference in comparison.differences]
    with world.session() as session:
        return [ResourceStates(kind, id, session.read(kind, id)) for kind, _, id in names]
