"""Observations for learners: the state and each candidate as a list of active features in arrays of fixed size."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import chain, pairwise
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from fhir_gym.training.menu.menu import PLACES, Candidate, MenuSession
from fhir_gym.training.menu.prompt import Prompt, read_prompt
from fhir_gym.training.menu.templates import Template
from fhir_gym.training.menu.view import Pointer, View

STATE_FEATURES = 4096
"""Number of features of the state; the array ``state`` contains numbers below it."""
CANDIDATE_FEATURES = 8192
"""Number of features of a candidate; the array ``candidates`` contains numbers below it."""
STATE_SIZE = 384
"""Length of the array ``state``; further features are left out."""
CANDIDATE_SIZE = 48
"""Length of one row of the array ``candidates``; further features are left out."""

_WORD = re.compile(r"(?<![\w'/-])[a-z]+(?![\w'/-])")
_CODE = re.compile(r"[A-Za-z][\w-]{0,24}")
_CODED = ("tatus", "code", "mode", "intent", "gender")
_FEW = 4
_MANY = 8
_MAX_STEPS = 15


@cache
def _state_feature(name: str) -> int:
    return 1 + crc32(name.encode()) % (STATE_FEATURES - 1)


@cache
def _candidate_feature(name: str) -> int:
    return 1 + crc32(name.encode()) % (CANDIDATE_FEATURES - 1)


class Features:
    """The observations of one episode.

    Args:
        session: The menus of the episode.
    """

    def __init__(self, session: MenuSession) -> None:
        self._view = session.view
        self._prompt = _prompt_features(self._view.prompt.text)
        self._pointers: dict[tuple[int, Pointer], list[int]] = {}
        self._rows: dict[Candidate, list[int]] = {}
        self._taken: list[Candidate | None] = []
        self._sources: dict[str, set[str]] = {}

    def record(self, candidate: Candidate | None) -> None:
        """Remember the action that was taken; None for an empty place."""
        self._taken.append(candidate)

    def state(self) -> NDArray[np.int16]:
        """Return the features of the prompt's words, the last answer and the actions so far; 0 fills the rest."""
        names = chain(_answer_names(self._view), self._history_names())
        active = list(dict.fromkeys([*self._prompt, *map(_state_feature, names)]))[:STATE_SIZE]
        state = np.zeros(STATE_SIZE, np.int16)
        state[: len(active)] = active
        return state

    def _history_names(self) -> Iterator[str]:
        yield f"step {min(len(self._taken), _MAX_STEPS)}"
        for candidate in self._taken:
            if candidate is not None:
                yield f"done {candidate.template.shape}"
        if self._taken and self._taken[-1] is not None:
            yield f"last {self._taken[-1].template.shape}"
        for seen in self._view.latest.values():
            yield f"seen {seen.type}"

    def candidates(self, menu: Sequence[Candidate]) -> NDArray[np.int16]:
        """Return one row of features for each place; 0 fills the rest of a row, and the rows of empty places."""
        places: list[int] = []
        active: list[int] = []
        self._sources = _sources(self._view)
        for place, candidate in enumerate(menu):
            row = self._row(candidate)[:CANDIDATE_SIZE]
            start = place * CANDIDATE_SIZE
            places += range(start, start + len(row))
            active += row
        rows = np.zeros((PLACES, CANDIDATE_SIZE), np.int16)
        rows.reshape(-1)[places] = active
        return rows

    def _row(self, candidate: Candidate) -> list[int]:
        row = self._rows.get(candidate)
        if row is None:
            row = self._rows[candidate] = self._fixed(candidate)
        last = len(self._view.actions) - 1
        changing: list[int] = []
        for number, pointer in enumerate(candidate.pointers):
            if pointer.seen.turn == last:
                changing.append(_LAST[number])
            for source in self._sources.get(pointer.reference, ()):
                changing.append(_candidate_feature(f"{number} from {source}"))
        return changing + row

    def _fixed(self, candidate: Candidate) -> list[int]:
        """Return the features of a candidate that do not change during the episode."""
        indices = list(_template_features(candidate.template))
        for number, pointer in enumerate(candidate.pointers):
            cached = self._pointers.get((number, pointer))
            if cached is None:
                cached = [_candidate_feature(f"{number} {name}") for name in _pointer_names(pointer, self._view)]
                self._pointers[number, pointer] = cached
            indices += cached
        indices += [_candidate_feature(name) for name in _pair_names(candidate.pointers)]
        if any(slot.kind in ("total", "count", "ids", "refs") for slot in candidate.template.slots):
            empty = candidate.text.endswith("[])")
            indices.append(_candidate_feature(f"size {min(candidate.text.count(','), _FEW)} {empty}"))
        return list(dict.fromkeys(indices))


def _sources(view: View) -> dict[str, set[str]]:
    """Return, for each reference in the latest versions of resources, the types and paths that contain it."""
    sources: dict[str, set[str]] = {}
    for seen in view.latest.values():
        for link in seen.links:
            sources.setdefault(link.reference, set()).add(f"{seen.type}.{link.path}")
    return sources


_LAST = [_candidate_feature(f"{number} last") for number in range(_MANY)]
"""Features of pointers into the last answer."""


@lru_cache(maxsize=4096)
def _prompt_features(text: str) -> tuple[int, ...]:
    """Return the features of a prompt: its words and pairs of words, without names and numbers."""
    words = _WORD.findall(read_prompt(text).body)
    names = [*words, *(f"{left} {right}" for left, right in pairwise(words))]
    return tuple(dict.fromkeys(_state_feature(f"prompt {name}") for name in names))


def _answer_names(view: View) -> Iterator[str]:
    """Yield the features of the last answer."""
    if not view.statuses:
        yield "no answer"
        return
    yield f"status {view.statuses[-1]}"
    if view.last_total is not None:
        yield f"total {min(view.last_total, _FEW)}"
    for seen in view.last:
        yield f"entry {seen.type} {min(seen.position, _FEW)}"
        for name in _code_names(seen.leaves):
            yield f"{seen.type} {name}"


@lru_cache(maxsize=16384)
def _template_features(template: Template) -> tuple[int, ...]:
    """Return the features of a template with its slots: the action's shape, and each leaf with its slot."""
    verb, kind = template.skeleton["verb"], template.skeleton.get("type", "")
    names = [template.shape, f"shape {template.shape}", f"{verb} {kind}"]
    for leaf, slot in zip(template.names, template.slots, strict=True):
        name = slot.name
        if slot.kind == "pointer":
            name = f"{slot.prefix} {template.variables[slot.args[0]].name} {slot.args[1]}"
        names.append(f"{kind} {leaf} {slot.kind} {name}")
    return tuple(dict.fromkeys(_candidate_feature(f"template {name}") for name in names))


def _pointer_names(pointer: Pointer, view: View) -> Iterator[str]:
    """Yield the features of a pointer: its position, its codes, and how its dates and texts relate to the prompt."""
    seen, prompt = pointer.seen, view.prompt
    yield f"type {seen.type} {pointer.reference.partition('/')[0]}"
    yield f"position {min(seen.position, _FEW)}"
    yield f"size {min(seen.size, _MANY)}"
    yield f"mode {seen.mode}"
    yield f"named {pointer.id in prompt.text}"
    yield from _code_names(pointer.leaves)
    yield from _date_names(pointer.leaves, prompt)
    yield from _text_names(pointer.leaves, prompt)
    for earlier in seen.before:
        if earlier.type == seen.type:
            yield from (f"earlier {name}" for name in _code_names(earlier.leaves))
    yield f"first {not any(earlier.type == seen.type for earlier in seen.before)}"


def _code_names(leaves: Sequence[tuple[str, Any]]) -> Iterator[str]:
    """Yield the leaves with a code or a Boolean value."""
    for path, value in leaves:
        if isinstance(value, bool) or (isinstance(value, str) and path.endswith(_CODED) and _CODE.fullmatch(value)):
            yield f"{path}={value}"


def _date_names(leaves: Sequence[tuple[str, Any]], prompt: Prompt) -> Iterator[str]:
    today = prompt.today.isoformat() if prompt.today else ""
    dates = [("now", today), *((f"date {at}", day.isoformat()) for at, day in enumerate(prompt.dates[:2]))]
    dates += [("next", day) for day in prompt.next_dates[:1]]
    for path, value in leaves:
        if isinstance(value, str) and value[4:5] == "-" and value[:4].isdigit():
            day = value[:10]
            for label, other in dates:
                yield f"{path} {label} {(day > other) - (day < other)}"
            if value[11:16]:
                yield f"{path} time {value[11:16] in prompt.times}"


def _text_names(leaves: Sequence[tuple[str, Any]], prompt: Prompt) -> Iterator[str]:
    words = prompt.word_set
    for path, value in leaves:
        if isinstance(value, str) and value[:1].isupper() and not value.isupper() and "/" not in value:
            is_named = value in words if " " not in value else value in prompt.body
            yield f"{path} {'in' if is_named else 'not in'} prompt"


def _pair_names(pointers: Sequence[Pointer]) -> Iterator[str]:
    """Yield which pointers refer to which."""
    for number, pointer in enumerate(pointers):
        for other, target in enumerate(pointers):
            if number != other:
                pair = (target.reference, target.seen.reference)
                paths = [link.path for link in pointer.seen.links if link.reference in pair]
                yield from (f"link {number} {other} {path}" for path in paths)
                if not paths:
                    yield f"no link {number} {other}"
