"""The menu: the templates' actions that an agent can take after what it has seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from typing import Any
from zlib import crc32

from fhir_gym.arguments import require_whole
from fhir_gym.training.menu.actions import fill
from fhir_gym.training.menu.grounding import pointer_value, search_value
from fhir_gym.training.menu.slots import Slot, Variable
from fhir_gym.training.menu.templates import Template, Templates
from fhir_gym.training.menu.view import Pointer, View

PLACES = 64
"""Number of places of a menu."""
_MAX_BINDINGS = 32


@dataclass(frozen=True)
class Candidate:
    """An action on the menu.

    Attributes:
        text: The action.
        template: Number of its template.
        slots: The slot that filled each leaf, in the order of the template's leaves.
        pointers: The pointers that it uses, in the order of the template's variables.
    """

    text: str
    template: int
    slots: tuple[Slot, ...]
    pointers: tuple[Pointer, ...] = field(default=(), repr=False)


class Menu:
    """Menus over a set of templates.

    Args:
        templates: The templates.
        distractors: Number of wrong fillings to add for each template.
    """

    def __init__(self, templates: Templates, distractors: int = 0) -> None:
        self.templates = templates
        self.distractors = require_whole("distractors", distractors, 0)

    def start(self, prompt: str) -> MenuSession:
        """Start an episode.

        Args:
            prompt: The prompt, or the first observation.
        """
        return MenuSession(self.templates, prompt)

    def candidates(self, prompt: str, turns: Sequence[tuple[str, str]] = ()) -> list[Candidate]:
        """Return the menu after some turns.

        Args:
            prompt: The prompt.
            turns: The actions so far and the answers to them.
        """
        session = self.start(prompt)
        for action, observation in turns:
            session.add(action, observation)
        return session.candidates()


class MenuSession:
    """The menus of one episode.

    Attributes:
        view: What the agent has seen.
        templates: The templates, by number.
    """

    def __init__(self, templates: Templates, prompt: str) -> None:
        self.view = View(prompt)
        self.templates = templates.templates
        self._dictionaries = templates.dictionaries
        self._static = [self._fill_static(template) for template in templates.templates]
        self._texts: dict[tuple[Any, ...], str | None] = {}

    def add(self, action: str, observation: str) -> None:
        """Take in an action and the answer to it."""
        self.view.add(action, observation)

    def candidates(self) -> list[Candidate]:
        """Return at most `PLACES` actions, each once and none that was taken before, in an order without meaning."""
        found: dict[str, Candidate] = {}
        done = set(self.view.actions)
        streams = [self._instances(number) for number in range(len(self._static)) if self._static[number] is not None]
        while streams and len(found) < PLACES:
            open_streams = []
            for stream in streams:
                candidate = next(stream, None)
                if candidate is None:
                    continue
                open_streams.append(stream)
                if candidate.text not in found and candidate.text not in done and len(found) < PLACES:
                    found[candidate.text] = candidate
            streams = open_streams
        return sorted(found.values(), key=lambda candidate: (crc32(candidate.text.encode()), candidate.text))

    def _fill_static(self, template: Template) -> list[Any] | None:
        """Return the leaves that the prompt fills, None for the others; None if the prompt lacks a value."""
        values: list[Any] = []
        for slot in template.slots:
            value = None if slot.dynamic else self.view.prompt.value(slot, self._dictionaries)
            if value is None and not slot.dynamic:
                return None
            values.append(value)
        return values

    def _instances(self, number: int) -> Iterator[Candidate]:
        template, static = self.templates[number], self._static[number]
        assert static is not None
        for pointers in self._bindings(template.variables):
            text = self._text(number, template, static, pointers)
            if text is not None:
                yield Candidate(text, number, template.slots, pointers)

    def _bindings(self, variables: Sequence[Variable]) -> Iterator[tuple[Pointer, ...]]:
        options = [self.view.pointers(variable) for variable in variables]
        return islice(product(*options), _MAX_BINDINGS)

    def _text(self, number: int, template: Template, static: list[Any], pointers: tuple[Pointer, ...]) -> str | None:
        searched = any(slot.dynamic and slot.kind != "pointer" for slot in template.slots)
        turn = len(self.view.actions) if searched or "edits" in template.skeleton else -1
        key = (number, turn, *pointers)
        if key not in self._texts:
            values = list(static)
            for at, slot in enumerate(template.slots):
                if slot.dynamic:
                    values[at] = self._dynamic(slot, pointers)
            complete = None not in values
            self._texts[key] = fill(template.skeleton, values, self.view) if complete else None
        return self._texts[key]

    def _dynamic(self, slot: Slot, pointers: tuple[Pointer, ...]) -> Any:
        if slot.kind == "pointer":
            value: Any = pointer_value(pointers[slot.args[0]], slot.args[1])
        else:
            value = search_value(slot, self.view)
        return None if value is None else slot.write(value)
