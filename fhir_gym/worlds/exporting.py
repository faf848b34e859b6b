"""Export a world as NDJSON files or as transaction Bundles."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from fhir_gym.errors import WorldError
from fhir_gym.fhir import World
from fhir_gym.files import atomic_write
from fhir_gym.worlds.batches import batches
from fhir_gym.worlds.loading import Progress
from fhir_gym.worlds.uploading import UploadPlan

ExportFormat = Literal["ndjson", "transaction"]
"""Format of an export: one NDJSON file for each type as in FHIR Bulk Data, or transaction Bundles to post in order."""


def export(
    world: World, folder: str | Path, *, format: ExportFormat = "ndjson", progress: Progress | None = None
) -> list[Path]:
    """Write the resources of a world to files in a new folder.

    Args:
        world: The world.
        folder: The folder; it must not exist or must be empty. It appears when all files are complete.
        format: `ndjson` writes `Type.ndjson` for each type. `transaction` writes `0001.json` and so on; each Bundle
            refers only to resources of its own and earlier Bundles.
        progress: Called with the number of written resources and the total.

    Returns:
        The files, sorted.

    Raises:
        WorldError: The folder is not empty, or is not writable.
    """
    target = Path(folder).expanduser()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise WorldError(f"cannot export to {target}: it exists and is not an empty folder")
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    done = 0

    def told(number: int) -> None:
        nonlocal done
        done += number
        if progress:
            progress(done, world.manifest.total)

    try:
        partial.mkdir(parents=True)
        names = (_ndjson if format == "ndjson" else _transactions)(world, partial, told)
        partial.rename(target)
    except OSError as error:
        raise WorldError(f"cannot export to {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return [target / name for name in sorted(names)]


def _ndjson(world: World, folder: Path, told: Callable[[int], None]) -> list[str]:
    names = []
    for resource_type in world.manifest.counts:
        names.append(f"{resource_type}.ndjson")
        with atomic_write(folder / names[-1], WorldError) as file:
            for body in world.resources(resource_type):
                file.write(body + b"\n")
        told(world.manifest.counts[resource_type])
    return names


def _transactions(world: World, folder: Path, told: Callable[[int], None]) -> list[str]:
    names = []
    for number, entries in enumerate(_bundles(world), 1):
        names.append(f"{number:04}.json")
        size = 0
        with atomic_write(folder / names[-1], WorldError) as file:
            file.write(b'{"resourceType":"Bundle","type":"transaction","entry":[\n')
            for size, entry in enumerate(entries, 1):
                file.write((b",\n" if size > 1 else b"") + entry)
            file.write(b"\n]}\n")
        told(size)
    return names


def _bundles(world: World) -> Iterator[Iterator[bytes]]:
    """Yield the entries of each Bundle. All resources of a partial step share a Bundle, because they form cycles."""
    steps = UploadPlan(world).steps
    cyclic = {step.start for step in steps if step.partial}
    for step in steps:
        if step.partial:
            continue
        groups = ((record.put_entry() for _, record in group) for group in batches(world, step.rids))
        if step.start in cyclic:
            yield (entry for group in groups for entry in group)
        else:
            yield from groups
