"""Read and write many resources of a FHIR server with few requests, by batch Bundles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fhir_gym.errors import WorldError
from fhir_gym.fhir import World
from fhir_gym.printable import one_line
from fhir_gym.types import Resource, as_object
from fhir_gym.worlds.fhir_client import RETRIES, TRANSIENT, FhirClient, TooLargeError, diagnostics, objects

MOST_ENTRIES = 500
"""Maximum number of entries of a batch."""

MOST_BYTES = 2_000_000
"""Maximum size of the resources in a batch, unless a single resource is larger."""

_CONFLICT = 409  # the server handled another write of the same resource at the same time
_SHOWN = 5
_COUNT_TYPES = 50  # types that one request counts; a count may take longer than a read


class Record(NamedTuple):
    """A resource to read or write: type, id and compact JSON."""

    type: str
    id: str
    body: bytes

    @property
    def url(self) -> str:
        """The URL relative to the base URL."""
        return f"{self.type}/{self.id}"

    def put_entry(self) -> bytes:
        """Return the Bundle entry that writes the resource at its id."""
        return f'{{"request":{{"method":"PUT","url":"{self.url}"}},"resource":'.encode() + self.body + b"}"


def batches(world: World, rids: Sequence[int] | NDArray[np.int64]) -> Iterator[list[tuple[int, Record]]]:
    """Yield the records with these numbers, each with its number, in groups that fit into one batch."""
    for start in range(0, len(rids), MOST_ENTRIES):
        group: list[tuple[int, Record]] = []
        size = 0
        for row in world.rows([int(rid) for rid in rids[start : start + MOST_ENTRIES]]):
            if group and size + len(row.body) > MOST_BYTES:
                yield group
                group, size = [], 0
            group.append((row.rid, Record(row.type, row.id, row.body)))
            size += len(row.body)
        yield group


class BatchClient(FhirClient):
    """Client that reads and writes many resources in one request.

    If the server refuses the size of a batch, or does not answer in time, smaller batches follow.
    """

    _most = MOST_ENTRIES

    def check_types(self, names: Sequence[str]) -> None:
        """Check that the server is an R4 server that can search for these types.

        Raises:
            WorldError: It is not, or a type is missing.
        """
        missing = sorted(set(names) - set(self.types()))
        if missing:
            raise WorldError(f"{self.base} does not support {', '.join(missing[:_SHOWN])}: see {self.base}/metadata")

    def totals(self, names: Sequence[str]) -> dict[str, int]:
        """Return the server's number of resources of each type.

        Raises:
            WorldError: The server reports no total.
        """
        totals_by_type = {}
        for start in range(0, len(names), _COUNT_TYPES):
            some = names[start : start + _COUNT_TYPES]
            entries = [_get_entry(f"{name}?_summary=count") for name in some]
            for name, answer in zip(some, self._exchange_all(entries), strict=True):
                total = _object(answer, "resource").get("total")
                if _status(answer) != 200 or not isinstance(total, int) or isinstance(total, bool):
                    raise WorldError(f"{self.base} reports no total for {name}?_summary=count{self._reason(answer)}")
                totals_by_type[name] = total
        return totals_by_type

    def read_all(self, records: Sequence[Record]) -> list[Resource | None]:
        """Return the server's resource for each record; None if the server has no such resource.

        Raises:
            WorldError: A resource cannot be read.
        """
        answers = self._settled([_get_entry(record.url) for record in records])
        resources: list[Resource | None] = []
        for record, answer in zip(records, answers, strict=True):
            resource = _object(answer, "resource")
            if _status(answer) in (404, 410):
                resources.append(None)
            elif _status(answer) != 200 or not resource:
                raise WorldError(f"{self.base} cannot read {record.url}: {_shown(answer)}{self._reason(answer)}")
            elif (resource.get("resourceType"), resource.get("id")) != (record.type, record.id):
                raise WorldError(f"{self.base} returned another resource for {record.url}")
            else:
                resources.append(resource)
        return resources

    def put_all(self, records: Sequence[Record]) -> None:
        """Write resources at their ids.

        Raises:
            WorldError: The server refuses a resource. The other resources of the batch may have been written.
        """
        answers = self._settled([record.put_entry() for record in records])
        refused = [
            f"{record.url}: {_shown(answer)}{self._reason(answer)}"
            for record, answer in zip(records, answers, strict=True)
            if _status(answer) not in (200, 201)
        ]
        if refused:
            more = f"; and {len(refused) - _SHOWN} more of this batch" if len(refused) > _SHOWN else ""
            raise WorldError(f"{self.base} refuses {'; '.join(refused[:_SHOWN])}{more}")

    def _settled(self, entries: Sequence[bytes]) -> list[Resource]:
        """Return an answer for each entry, after repeating the entries that failed for a passing reason."""
        answers = self._exchange_all(entries)
        attempt = 0
        while again := [at for at, answer in enumerate(answers) if _status(answer) in (*TRANSIENT, _CONFLICT)]:
            pause = RETRIES.pause(attempt)
            if pause is None:
                break
            self.pause(pause)
            attempt += 1
            for at, answer in zip(again, self._exchange_all([entries[at] for at in again]), strict=True):
                answers[at] = answer
        return answers

    def _exchange_all(self, entries: Sequence[bytes]) -> list[Resource]:
        answers: list[Resource] = []
        while len(answers) < len(entries):
            some = entries[len(answers) : len(answers) + self._most]
            try:
                answers += self._exchange_batch(some)
            except TooLargeError:
                if len(some) == 1:
                    raise
                self._most = (len(some) + 1) // 2
        return answers

    def _exchange_batch(self, entries: Sequence[bytes]) -> list[Resource]:
        body = b'{"resourceType":"Bundle","type":"batch","entry":[' + b",".join(entries) + b"]}"
        bundle = self.exchange(self.base, body)
        answers = objects(bundle.get("entry"))
        if bundle.get("resourceType") != "Bundle" or len(answers) != len(entries):
            raise WorldError(
                f"{self.base} did not answer a batch with one entry for each of its {len(entries)} entries"
            )
        if len(entries) > 1 and any(_too_costly(answer) for answer in answers):
            raise TooLargeError(f"{self.base} stopped in the middle of a batch")
        return answers

    def _reason(self, answer: Resource) -> str:
        """Return the server's explanation as the end of an error message."""
        said = diagnostics(_object(answer, "response").get("outcome") or _object(answer, "resource"))
        return f": {self.hide(said)}" if said else ""


def _get_entry(url: str) -> bytes:
    return f'{{"request":{{"method":"GET","url":"{url}"}}}}'.encode()


def _object(value: Resource, name: str) -> Resource:
    """Return a member of an object; an empty object if the member is not an object."""
    return as_object(value.get(name))


def _status(answer: Resource) -> int:
    """Return the status of a response entry, such as "201 Created"; 0 if it has none."""
    text = str(_object(answer, "response").get("status", ""))[:3]
    return int(text) if text.isascii() and text.isdigit() else 0


def _shown(answer: Resource) -> str:
    return one_line(f"status {_object(answer, 'response').get('status')}", 60)


def _too_costly(answer: Resource) -> bool:
    outcome = _object(_object(answer, "response"), "outcome")
    return any(issue.get("code") == "too-costly" for issue in objects(outcome.get("issue")))
