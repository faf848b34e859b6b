"""An agent's view of an episode: the prompt, the resources in the server's answers, and its own actions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson

from fhir_gym.actions import GRAMMAR, Action
from fhir_gym.observations import read_response
from fhir_gym.training.menu.prompt import Prompt, read_prompt
from fhir_gym.training.menu.templates import Variable
from fhir_gym.types import objects_in

_DATED = re.compile(r"\d{4}-\d\d-\d\d")
_SKIPPED = frozenset({"meta", "text", "resourceType", "id"})


@dataclass(frozen=True, eq=False)
class Link:
    """A reference in a resource.

    Attributes:
        path: Path of the reference without list indices.
        reference: The reference, such as ``Patient/12``.
        element: The innermost list element that holds the reference; the resource itself if there is none.
    """

    path: str
    reference: str
    element: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Seen:
    """One version of a resource in an answer.

    Attributes:
        type: Resource type.
        id: Resource id.
        data: The resource.
        turn: Number of the turn with the answer, from 0.
        position: Position among the answer's entries.
        size: Number of entries of the answer; 0 if the answer is the resource itself.
        mode: Search mode of the entry, or the verb of the action.
        entries: All entries of the answer, which are the same list for each of them.
    """

    type: str
    id: str
    data: dict[str, Any]
    turn: int
    position: int = 0
    size: int = 0
    mode: str = ""
    entries: Sequence[Seen] = field(default=(), repr=False)

    @property
    def reference(self) -> str:
        """The relative reference to the resource."""
        return f"{self.type}/{self.id}"

    @property
    def before(self) -> Sequence[Seen]:
        """The entries before this one in the same answer."""
        return self.entries[: self.position]

    @cached_property
    def leaves(self) -> list[tuple[str, Any]]:
        """Path without list indices, and value, of each leaf."""
        return list(leaves_of({k: v for k, v in self.data.items() if k not in _SKIPPED}))

    @cached_property
    def links(self) -> list[Link]:
        """The references in the resource."""
        return list(_links(self.data, "", self.data))

    @cached_property
    def dates(self) -> list[tuple[str, str]]:
        """Path and value of the leaves with a date or a time."""
        return [(path, value) for path, value in self.leaves if isinstance(value, str) and _DATED.match(value)]


@dataclass(frozen=True, eq=False)
class Pointer:
    """A resource, or a reference in a resource, that can fill a slot.

    Attributes:
        seen: The resource that is pointed to, or that holds the reference.
        reference: The reference that the pointer stands for.
        element: The part of the resource around the reference; the resource itself for a pointer to it.
    """

    seen: Seen
    reference: str
    element: dict[str, Any]

    @property
    def id(self) -> str:
        """The id in the reference."""
        return self.reference.rpartition("/")[2]

    @cached_property
    def leaves(self) -> list[tuple[str, Any]]:
        """Path and value of each leaf around the pointer."""
        return self.seen.leaves if self.element is self.seen.data else list(leaves_of(self.element))


@dataclass(frozen=True, eq=False)
class SearchResult:
    """The latest answer to a search for a type.

    Attributes:
        total: Number of matches.
        entries: The matches in the answer.
    """

    total: int
    entries: tuple[Seen, ...]


class View:
    """An agent's view of an episode.

    Args:
        prompt: The prompt, without the action format.

    Attributes:
        actions: The actions so far.
        statuses: The HTTP status of each answer; 0 if no request was sent.
        latest: The latest version of each resource, by reference.
        searches: The latest search result, by type.
        last: The resources in the last answer.
        last_total: The total of the last answer, if it is a Bundle with one.
        versions: By type, the number of turns after which resources or search results of the type last changed.
    """

    def __init__(self, prompt: str) -> None:
        self.prompt: Prompt = read_prompt(prompt)
        self.actions: list[str] = []
        self.statuses: list[int] = []
        self.latest: dict[str, Seen] = {}
        self.searches: dict[str, SearchResult] = {}
        self.last: tuple[Seen, ...] = ()
        self.last_total: int | None = None
        self.versions: dict[str, int] = {}
        self._pointers: dict[Variable, tuple[int, list[Pointer]]] = {}

    def add(self, action: str, observation: str) -> None:
        """Record an action and the answer to it."""
        turn = len(self.actions)
        self.actions.append(action)
        self.last, self.last_total = (), None
        response = read_response(observation)
        self.statuses.append(response.status if response else 0)
        if response is None or not response.body:
            return
        try:
            data = orjson.loads(response.body)
        except orjson.JSONDecodeError:
            return
        if isinstance(data, dict) and data.get("resourceType") == "Bundle":
            self._add_bundle(action, data, turn)
        elif _is_resource(data):
            self.last = (Seen(data["resourceType"], data["id"], data, turn, mode=action.partition(" ")[0]),)
        history = bool(self.last) and data.get("type") == "history"
        for seen in reversed(self.last) if history else self.last:  # a history begins with the newest version
            self.latest[seen.reference] = seen
            self.versions[seen.type] = turn + 1

    def _add_bundle(self, action: str, bundle: dict[str, Any], turn: int) -> None:
        total = bundle.get("total")
        entries = [entry for entry in objects_in(bundle.get("entry")) if _is_resource(entry.get("resource"))]
        resources: list[Seen] = []
        for position, entry in enumerate(entries):
            data, search = entry["resource"], entry.get("search")
            mode = search.get("mode", "") if isinstance(search, dict) else ""
            resources.append(
                Seen(data["resourceType"], data["id"], data, turn, position, len(entries), mode, resources)
            )
        self.last, self.last_total = tuple(resources), total if isinstance(total, int) else None
        searched = searched_type(action)
        if searched:
            matches = tuple(seen for seen in resources if seen.type == searched)
            self.versions[searched] = turn + 1
            self.searches[searched] = SearchResult(total if isinstance(total, int) else len(matches), matches)

    def pointers(self, variable: Variable) -> list[Pointer]:
        """Return the possible targets of a variable, in the order of the answers."""
        version = self.versions.get(variable.type, 0)
        cached = self._pointers.get(variable)
        if cached is None or cached[0] != version:
            cached = version, list(self._find(variable)) if version else []
            self._pointers[variable] = cached
        return cached[1]

    def _find(self, variable: Variable) -> Iterator[Pointer]:
        seen_references = set()
        for seen in self.latest.values():
            if seen.type != variable.type:
                continue
            if not variable.path:
                yield Pointer(seen, seen.reference, seen.data)
                continue
            for link in seen.links:
                link_key = (link.reference, id(link.element))
                fits = link.path == variable.path and _target(link.reference) == variable.target
                if fits and link_key not in seen_references:
                    seen_references.add(link_key)
                    yield Pointer(seen, link.reference, link.element)


def searched_type(action: str) -> str:
    """Return the resource type that an action searches; empty if it is no search."""
    parsed = GRAMMAR.parse(action)
    if not isinstance(parsed, Action) or parsed.kind != "GET":
        return ""
    path = parsed.url.partition("?")[0].strip("/")
    return path if path.isalpha() else ""


def leaves_of(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path without list indices, and value, of each leaf."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves_of(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for item in value:
            yield from leaves_of(item, path)
    else:
        yield path, value


def _links(value: Any, path: str, element: dict[str, Any]) -> Iterator[Link]:
    if isinstance(value, dict):
        reference = value.get("reference")
        if isinstance(reference, str) and "/" in reference:
            yield Link(path, reference, element)
        for key, item in value.items():
            yield from _links(item, f"{path}.{key}" if path else key, element)
    elif isinstance(value, list):
        for item in value:
            yield from _links(item, path, item if isinstance(item, dict) else element)


def _is_resource(data: Any) -> bool:
    return isinstance(data, dict) and isinstance(data.get("resourceType"), str) and isinstance(data.get("id"), str)


def _target(reference: str) -> str:
    return reference.rpartition("/")[0].rpartition("/")[2]
