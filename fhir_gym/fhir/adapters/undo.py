"""Undo writes to a running server: a journal on disk, and the order in which resources get their states back."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from fhir_gym.errors import InfraError
from fhir_gym.fhir import serialization
from fhir_gym.fhir.adapters.remote_client import RemoteClient
from fhir_gym.fhir.adapters.remote_interactions import ResourceStates
from fhir_gym.fhir.interactions.references import find_references
from fhir_gym.fhir.messages import JSON, Request, Response
from fhir_gym.fhir.world import World
from fhir_gym.printable import one_line
from fhir_gym.types import Json, Resource, as_object


def batches_by_reference(resources: Sequence[Resource], size: int) -> list[list[Resource]]:
    """Divide resources into batches so that each refers only to resources of its own or an earlier batch.

    Args:
        resources: The resources.
        size: Maximum size of a batch; only resources whose references form a larger cycle make a larger batch.
    """
    if len(resources) <= size:
        return [list(resources)] if resources else []
    batches: list[list[Resource]] = [[]]
    for group in _groups({f"{resource['resourceType']}/{resource['id']}": resource for resource in resources}):
        if batches[-1] and len(batches[-1]) + len(group) > size:
            batches.append([])
        batches[-1] += group
    return batches


def _groups(by_key: dict[str, Resource]) -> list[list[Resource]]:
    """Return the resources in the order of their references; those in a cycle share a group."""
    leader = {key: key for key in by_key}
    targets = {
        key: [reference.value["reference"] for reference in find_references(resource)]
        for key, resource in by_key.items()
    }
    while True:
        graph: dict[str, set[str]] = {leading: set() for leading in leader.values()}
        for key, referred in targets.items():
            graph[leader[key]] |= {leader[to] for to in referred if to in leader and leader[to] != leader[key]}
        try:
            order = [*TopologicalSorter(graph).static_order()]
            break
        except CycleError as error:
            cycle = set(error.args[1])
            first = min(cycle)
            leader = {key: first if leading in cycle else leading for key, leading in leader.items()}
    groups: dict[str, list[Resource]] = {leading: [] for leading in order}
    for key, resource in by_key.items():
        groups[leader[key]].append(resource)
    return [*groups.values()]


_BATCH = 500
"""Resources in one transaction."""


def put_back(client: RemoteClient, changed: Sequence[tuple[ResourceStates, Resource | None]]) -> list[str]:
    """Restore changed resources, delete new resources, and remove labels that a PUT would keep.

    If the server refuses to undo a change, the others are undone all the same.

    Args:
        client: The server.
        changed: The resources with their earlier states, each with its current state.

    Returns:
        Descriptions of the changes that the server refused to undo.

    Raises:
        FhirServerError: The server does not answer.
    """
    updates: list[dict[str, Any]] = []
    new: list[Resource] = []
    for old, now in changed:
        url = f"{old.type}/{old.id}"
        if old.before is None:
            new.append(now or {"resourceType": old.type, "id": old.id})
        else:
            body = {name: value for name, value in old.before.items() if name != "meta"} | _labels(old.before)
            updates.append({"resource": body, "request": {"method": "PUT", "url": url}})
            _remove_labels(client, url, _added(_labels(old.before), _labels(now or {})))
    deletions = [
        [_deletion(resource) for resource in reversed(batch)] for batch in reversed(batches_by_reference(new, _BATCH))
    ]
    if len(changed) <= _BATCH:
        batches = [[entry for batch in deletions for entry in batch] + updates]
    else:  # the updates come first, because they remove references to what is deleted
        batches = [*(updates[start : start + _BATCH] for start in range(0, len(updates), _BATCH)), *deletions]
    return [refusal for entries in batches for refusal in _undo(client, entries)]


def _undo(client: RemoteClient, entries: list[dict[str, Any]]) -> list[str]:
    """Run entries as a transaction. If the server refuses it, run each entry alone, as long as that helps."""
    if not entries:
        return []
    response = _post(client, "", {"resourceType": "Bundle", "type": "transaction", "entry": entries})
    if response.status == 200:
        return []
    refusals = [response.text[:300]]
    while entries:
        response = _post(client, "", {"resourceType": "Bundle", "type": "batch", "entry": entries})
        answers = client.json(response).get("entry") if response.status == 200 else None
        if not isinstance(answers, list) or len(answers) != len(entries):
            return [*refusals, response.text[:300]]
        refused = [(entry, answer) for entry, answer in zip(entries, answers, strict=True) if not _is_done(answer)]
        refusals = [
            f"{entry['request']['url']}: {serialization.dumps(answer)[:300].decode('utf-8', 'replace')}"
            for entry, answer in refused
        ]
        if len(refused) == len(entries):
            return refusals
        entries = [entry for entry, _ in refused]
    return []


def _is_done(answer: Json) -> bool:
    response = as_object(answer).get("response")
    return isinstance(response, dict) and str(response.get("status")).startswith("2")


def _deletion(resource: Resource) -> dict[str, Any]:
    return {"request": {"method": "DELETE", "url": f"{resource['resourceType']}/{resource['id']}"}}


def _remove_labels(client: RemoteClient, url: str, meta: Resource) -> None:
    if meta:
        parameter = {"name": "meta", "valueMeta": meta}
        _post(client, f"/{url}/$meta-delete", {"resourceType": "Parameters", "parameter": [parameter]})


def _post(client: RemoteClient, path: str, resource: Resource) -> Response:
    request = Request("POST", path, headers={"content-type": JSON}, body=serialization.dumps(resource))
    return client.send(request, repeatable=True)  # a second time, it changes nothing


def content(resource: Resource | None) -> bytes:
    """Return the content to compare, without version and time and with labels in a fixed order; empty for None."""
    if resource is None:
        return b""
    labels = {
        name: sorted(map(serialization.dumps, values)) for name, values in _labels(resource).get("meta", {}).items()
    }
    return serialization.dumps({**resource, "meta": None}) + repr(labels).encode()


def _labels(resource: Resource) -> Resource:
    kept = {k: v for k, v in resource.get("meta", {}).items() if k in ("profile", "security", "tag")}
    return {"meta": kept} if kept else {}


def _added(before: Resource, now: Resource) -> Resource:
    """Return the labels that were added."""
    old = before.get("meta", {})
    added = {name: [v for v in values if v not in old.get(name, [])] for name, values in now.get("meta", {}).items()}
    return {name: values for name, values in added.items() if values}


_ENDING = ".undo.jsonl"
_FORMAT = 2
_UNUSABLE = (ValueError, TypeError, KeyError, IndexError, AttributeError)
"""Errors of reading a file that the session did not write."""


@dataclass(frozen=True, slots=True)
class SentWrite:
    """A write that the session has sent.

    Attributes:
        request: Method and path.
        creates: Whether the write may create resources with ids from the server.
        time: The server's time before the write; None if the server has no system-level history.
        doubt: How the server's answer differs from the request; empty if there is no answer.
    """

    request: str
    creates: bool
    time: str | None
    doubt: str = ""

    @property
    def problem(self) -> str:
        """Why the effect of the write is unknown."""
        return f"the server {self.doubt}" if self.doubt else f"{self.request} has an unknown outcome"


class UndoJournal:
    """The record of one world's changes on one server.

    Args:
        folder: The folder of the server, whose lock the caller holds.
        server: Base URL of the server.
        discard: Whether to delete the file first.
        force: Whether to drop what is unusable in the file, and the files of other worlds.

    Attributes:
        states: The resources that the writes in the file may have changed, with their states before.
        unanswered: The writes in the file whose answer is unknown or differs from the request.

    Raises:
        InfraError: The file is unusable; or the server has changes of an interrupted episode with another world.
    """

    def __init__(self, folder: Path, world: World, server: str, *, discard: bool = False, force: bool = False) -> None:
        digest = world.manifest.content_hash
        name = re.sub(r"[^A-Za-z0-9.]+", "-", world.name)[:60]
        self.path = folder / f"{name}-{digest[:16]}{_ENDING}"
        self._head = {"format": _FORMAT, "world": world.name, "content_hash": digest}
        self._size = self._floor = 0
        self.states: list[ResourceStates] = []
        self.unanswered: list[SentWrite] = []
        self._way_out = f"`fhir-gym servers restore {world.name} {server} --force` forgets what cannot be undone"
        for other in folder.glob(f"*{_ENDING}"):
            if other != self.path:
                other.unlink() if force else _refuse(other, server, self._way_out)
        try:
            if discard:
                self.path.unlink(missing_ok=True)
            for number, line in enumerate(_lines(self.path)):
                try:
                    self._take(number, serialization.loads(line))
                except _UNUSABLE:
                    if not force:
                        raise
        except (OSError, *_UNUSABLE) as error:
            raise self._unusable(error) from error
        self._known: set[tuple[str, str]] = set()

    def note(self, write: SentWrite, states: Sequence[ResourceStates]) -> None:
        """Note a write before it is sent. When this method returns, the note is on disk."""
        new = [state for state in states if state.key not in self._known]
        undo = [[state.type, state.id, state.before] for state in new]
        line = {"write": write.request, "creates": write.creates, "time": write.time, "undo": undo}
        self._append(line, sync=bool(new or write.creates))
        self._known |= {state.key for state in new}

    def answered(self, created: Sequence[tuple[str, str]] = ()) -> None:
        """Note that the answer to the last write is known, and which resources the write created.

        The note need not be on disk: without it, the history of the types lists the created resources.
        """
        self._append({"created": [list(key) for key in created]}, sync=False)
        self._known |= set(created)

    def doubt(self, difference: str) -> None:
        """Note that the answer to the last write differs from the request, so the history must show its effect."""
        self._append({"doubt": difference}, sync=False)

    @property
    def position(self) -> int:
        """The end of the file, for `truncate`."""
        return self._size

    def truncate(self, position: int, kept: Sequence[ResourceStates]) -> None:
        """Drop the notes after a position, because their writes are undone.

        Args:
            position: The position.
            kept: The states of the writes before the position.
        """
        self._size = max(position, self._floor)
        try:
            if self._size:
                os.truncate(self.path, self._size)
            else:
                self.path.unlink(missing_ok=True)
        except OSError as error:
            raise self._unusable(error) from error
        self._known = {(states.type, states.id) for states in kept}

    def keep(self) -> None:
        """Let `truncate` keep the notes so far, so that the next session with this journal undoes the writes again."""
        self._floor = self._size

    def _append(self, line: Mapping[str, Any], *, sync: bool) -> None:
        new = not self._size
        lines = [self._head, line] if new else [line]
        try:
            with self.path.open("wb" if new else "ab") as file:
                file.write(b"".join(serialization.dumps(resource) + b"\n" for resource in lines))
                file.flush()
                if sync:
                    os.fsync(file.fileno())
                self._size = file.tell()
            if new:
                _sync_folder(self.path.parent)
        except OSError as error:
            raise self._unusable(error) from error

    def _take(self, number: int, line: Mapping[str, Any]) -> None:
        """Add a line of the file to the attributes."""
        if not number:
            if line != self._head:
                raise ValueError("it belongs to something else")
        elif "write" in line:
            states = [_state(*state) for state in line["undo"]]
            if line["time"] is not None:
                datetime.fromisoformat(line["time"])
            self.unanswered.append(SentWrite(line["write"], line["creates"], line["time"]))
            self.states += states
        elif "doubt" in line:
            self.unanswered[-1] = replace(self.unanswered[-1], doubt=line["doubt"])
        else:
            self.states += [_state(kind, id, None) for kind, id in line["created"]]
            self.unanswered.pop()

    def _unusable(self, error: Exception) -> InfraError:
        reason = (error.strerror if isinstance(error, OSError) else None) or one_line(str(error), 200)
        return InfraError(f"cannot use the undo journal {self.path}: {reason}; {self._way_out}")


def _state(resource_type: str, id: str, before: Resource | None) -> ResourceStates:
    if not (isinstance(resource_type, str) and isinstance(id, str) and (before is None or isinstance(before, dict))):
        raise TypeError("a state is not a resource")
    return ResourceStates(resource_type, id, before)


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a journal. An incomplete last line is dropped, because its write was not sent."""
    text = path.read_bytes() if path.exists() else b""
    yield from text[: text.rfind(b"\n") + 1].splitlines()


def _refuse(other: Path, server: str, way_out: str) -> None:
    """Refuse a server that an interrupted episode with another world has changed."""
    try:
        lines = [*_lines(other)]
        name = one_line(str(serialization.loads(lines[0])["world"]), 60) if len(lines) > 1 else None
    except (OSError, *_UNUSABLE) as error:
        text = f"cannot use the undo journal {other}: {one_line(str(error), 200)}; {way_out}"
        raise InfraError(text) from error
    if name is not None:
        raise InfraError(
            f"{server} has changes of an interrupted episode with the world {name!r}: run "
            f"`fhir-gym servers restore {name} {server}` first; if the server's data was replaced since, {way_out}"
        )


def _sync_folder(folder: Path) -> None:
    """Wait until a new file of a folder is on disk; Windows needs no such step."""
    if sys.platform != "win32":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
