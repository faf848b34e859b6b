"""The end state of an episode, which the checks examine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from fhir_gym.actions import Action
from fhir_gym.fhir import World
from fhir_gym.fhir.messages import Request, Response
from fhir_gym.tasks.grading.answers import answer_count, answer_id
from fhir_gym.tasks.grading.comparison import parse_reference
from fhir_gym.tasks.grading.responses import ParsedResponses
from fhir_gym.types import Json, Resource

if TYPE_CHECKING:
    from fhir_gym.fhir import Change, Session
    from fhir_gym.tasks.grading.responses import ParsedResponses


def returned_resources(
    logged: Iterable[LoggedRequest], names: Collection[str] | None = None, parsed: ParsedResponses | None = None
) -> dict[str, Resource]:
    """Map references to the resources that the agent's reads and searches returned, up to the verdict's size limit.

    If several responses returned a resource (for example one with `_elements`), its elements are merged. The latest
    value of an element wins.

    Args:
        logged: The agent's requests with their responses.
        names: References of interest; None for all resources. The result may lack other resources.
        parsed: Responses that are parsed already.
    """
    parsed = parsed or ParsedResponses()
    ids = None if names is None else [_in_json(reference) for reference in names]
    resources: dict[str, Resource] = {}
    for by_verdict in read_by_verdicts(logged):
        if ids is None or any(id in by_verdict.response.content for id in ids):
            for reference, resource in parsed.parse(by_verdict.response).returned_resources.items():
                earlier = resources.get(reference, {})
                resources[reference] = resource if earlier.keys() <= resource.keys() else {**earlier, **resource}
    return resources


def _in_json(reference: str) -> bytes:
    """The id of a reference as JSON text. Every response that contains the record contains this text."""
    return f'"{reference.rpartition("/")[2]}"'.encode()


OpenScratchSession: TypeAlias = "Callable[[Sequence[Resource]], AbstractContextManager[Session]]"
"""Function that opens a writable session with the start state of an episode and additional records."""
PlaceRecords: TypeAlias = "Callable[[Iterable[Resource]], Mapping[str, Resource]]"
"""Function that returns counterfactuals as the start state would contain them, by their original references."""

_MOST_READ = 6 * 1024 * 1024
"""Maximum total size of the responses that a verdict reads, in bytes; a model's context window holds less."""
_MOST_OF_REQUEST = 128 * 1024
"""In a long episode, the maximum total size is this size for each request."""
_LEAST = 24 * 1024
"""Minimum size in bytes at which a response counts, because short responses also cost time."""
_LEAST_OF_ENTRY = 6 * 1024
"""Minimum size in bytes for each response inside a Bundle."""


class View(Protocol):
    """The server's content at one moment."""

    def read(self, resource_type: str, id: str) -> Resource | None:
        """Read one resource; None if it does not exist."""
        ...

    def search(self, resource_type: str, **params: Any) -> list[Resource]:
        """Search, and return all matches."""
        ...


class BeforeView:
    """The server's content at the start of the episode.

    A read reverts the episode's changes to the resource. A search runs on a separate session with the start state.

    Args:
        setup: The seeded resources.
        after: The server at the end of the episode.
        changes: The changes that the episode made.
    """

    def __init__(self, world: World, setup: Sequence[Resource], after: View, changes: tuple[Change, ...]) -> None:
        self._world = world
        self._setup = setup
        self._after = after
        self._changed = {(change.resource_type, change.id): change.before for change in changes}

    def read(self, resource_type: str, id: str) -> Resource | None:
        """Read one resource; None if it did not exist."""
        if (resource_type, id) in self._changed:
            return self._changed[resource_type, id]
        return self._after.read(resource_type, id)

    def search(self, resource_type: str, **params: Any) -> list[Resource]:
        """Search, and return all matches."""
        with self._world.session() as scratch:
            scratch.load(self._setup, normal=True)
            return scratch.search(resource_type, **params)


class RemoteView:
    """The content of a server elsewhere, which is not asked for seeded resources that did not change.

    Args:
        setup: The seeded resources.
        changes: The changes that the episode made.
    """

    def __init__(self, server: View, setup: Sequence[Resource], changes: Iterable[Change]) -> None:
        changed = {(change.resource_type, change.id) for change in changes}
        seeded = {(resource["resourceType"], resource["id"]): resource for resource in setup}
        self._unchanged = {key: resource for key, resource in seeded.items() if key not in changed}
        self.search = server.search
        self._read = server.read

    def read(self, resource_type: str, id: str) -> Resource | None:
        """Read one resource; None if it does not exist."""
        return self._unchanged.get((resource_type, id)) or self._read(resource_type, id)


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request of the agent and its response.

    Attributes:
        action: The parsed action.
        request: The request to the server.
        response: The server's response.
    """

    action: Action
    request: Request
    response: Response


@dataclass(frozen=True, slots=True)
class TimedRequest:
    """One request in an episode in which other people write too.

    Attributes:
        logged: The request and its response.
        at: Simulated time of the request.
        event: What happened, in a word, if somebody else sent the request (``withdrawn``); empty for the agent's.
    """

    logged: LoggedRequest
    at: datetime
    event: str = ""


def read_by_verdicts(logged: Iterable[LoggedRequest]) -> list[LoggedRequest]:
    """The requests whose responses the verdict reads; in a normal episode, these are all requests.

    A response is skipped if the total size would exceed 6 MiB, or 128 KiB per request if that is more. A response
    counts as at least 24 KiB, and as at least 6 KiB for each response inside a Bundle.
    """
    logged = list(logged)
    left, requests = max(_MOST_READ, _MOST_OF_REQUEST * len(logged)), []
    for request in logged:
        size = max(len(request.response.content), _LEAST, _LEAST_OF_ENTRY * len(request.response.done))
        if size <= left:
            left -= size
            requests.append(request)
    return requests


@dataclass(frozen=True, slots=True)
class FinishedEpisode:
    """The end state of an episode.

    Attributes:
        answer: The list in ``FINISH``; None if the episode ended without ``FINISH``.
        requests: The agent's requests in order.
        before: The server's content at the start, including the seeded resources.
        after: The server's content at the end.
        changes: The changes from `before` to `after`.
        base_url: Base URL of the server.
        said: The agent's texts and the observations in order.
        open_scratch: Function that opens a writable session with the start state of the episode and additional records.
        placed: Function that returns counterfactuals by their references, with ids and update times of stored records.
        timeline: The requests of the agent and of simulated people in order; empty for tasks without a simulation.
        parsed: Responses that are parsed already, to share them between episodes.
    """

    answer: list[Json] | None
    requests: tuple[LoggedRequest, ...]
    before: View
    after: View
    changes: tuple[Change, ...]
    world: World
    base_url: str = field(default="http://localhost:8080/fhir")
    said: tuple[tuple[str, str], ...] = ()
    open_scratch: OpenScratchSession | None = None
    placed: PlaceRecords | None = None
    timeline: tuple[TimedRequest, ...] = ()
    parsed: ParsedResponses | None = None

    def created(self, resource_type: str) -> list[Resource]:
        """The created resources of a type, in the order of `changes`."""
        return [dict(c.after) for c in self._of("created", resource_type) if c.after is not None]

    def updated(self, resource_type: str, id: str) -> tuple[Resource, Resource] | None:
        """A resource before and after its update; None for a resource that was not updated."""
        for change in self._of("updated", resource_type):
            if change.id == id and change.before is not None and change.after is not None:
                return change.before, change.after
        return None

    def after_update(self, resource_type: str, id: str) -> Resource:
        """A resource after its update; an empty object for a resource that was not updated."""
        changed = self.updated(resource_type, id)
        return changed[1] if changed else {}

    def answer_ids(self, *types: str) -> list[str | None]:
        """The ids in the answer, one per type; None for a missing or invalid item."""
        items = self.answer or []
        return [answer_id(items[n], type_, self.base_url) if n < len(items) else None for n, type_ in enumerate(types)]

    def answer_id_set(self, resource_type: str, start: int = 0) -> list[str]:
        """The distinct, sorted ids of a type in the answer, from the item at `start` on.

        This method skips invalid items. The answer form (`IdSetAnswer`, `CountedIdsAnswer`) refuses an answer with
        invalid items or repeated ids.
        """
        ids = (answer_id(item, resource_type, self.base_url) for item in (self.answer or [])[start:])
        return sorted({id for id in ids if id is not None})

    def answer_count(self) -> int | None:
        """The first item of the answer as a count; None if the item is not a count."""
        return answer_count(self.answer[0]) if self.answer else None

    def refers(self, value: Json) -> str | None:
        """A Reference as ``Type/id``; None if the Reference does not point to this server."""
        reference = parse_reference(value, self.base_url)
        return "/".join(reference) if reference else None

    def idle(self) -> FinishedEpisode:
        """The end state that an agent reaches with ``FINISH([])`` as its only action."""
        return replace(
            self, answer=[], requests=(), after=self.before, changes=(), said=(("FINISH([])", ""),), timeline=()
        )

    def _of(self, kind: str, resource_type: str) -> Iterator[Change]:
        return (c for c in self.changes if c.kind == kind and c.resource_type == resource_type)
