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
from fhir_gym.training.menu.slots import Slot
from fhir_gym.training.menu.templates import Template, Templates
from fhir_gym.training.menu.view import Pointer, View

PLACES = 64
"""Number of places of a menu."""
_MAX_BINDINGS = 32


@dataclass(frozen=True, eq=False)
class Candidate:
    """An action on the menu.

    Attributes:
        text: The action.
        template: Its template.
        slots: The slot that filled each leaf, in the order of the template's leaves.
        pointers: The pointers that it uses, in the order of the template's variables.
    """

    text: str
    template: Template
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
        self.slots = tuple(dict.fromkeys(s for one in templates.templates for s in one.slots if not s.dynamic))
        numbers = {slot: number for number, slot in enumerate(self.slots)}
        self.plans = tuple(_Plan.of(template, numbers) for template in templates.templates)

    def start(self, prompt: str) -> MenuSession:
        """Start an episode.

        Args:
            prompt: The prompt, or the first observation.
        """
        return MenuSession(self, prompt)

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


@dataclass(frozen=True)
class _Plan:
    """A template, prepared for filling.

    Attributes:
        template: The template.
        static: For each leaf the number of its slot among those that the prompt fills; -1 for the other slots.
        types: The resource types that the values depend on.
    """

    template: Template
    static: tuple[int, ...]
    types: tuple[str, ...]

    @classmethod
    def of(cls, template: Template, numbers: dict[Slot, int]) -> _Plan:
        searched = [slot.args[0] for slot in template.slots if slot.dynamic and slot.kind != "pointer"]
        types = [variable.type for variable in template.variables] + searched
        if "edits" in template.skeleton:
            types.append(template.skeleton["type"])
        return cls(template, tuple(numbers.get(slot, -1) for slot in template.slots), tuple(dict.fromkeys(types)))


class MenuSession:
    """The menus of one episode.

    Attributes:
        view: What the agent has seen.
    """

    def __init__(self, menu: Menu, prompt: str) -> None:
        self.view = View(prompt)
        dictionaries = menu.templates.dictionaries
        values = [self.view.prompt.value(slot, dictionaries) for slot in menu.slots]
        self._open: list[tuple[_Plan, list[Any]]] = []
        for plan in menu.plans:
            static = [None if number < 0 else values[number] for number in plan.static]
            if all(value is not None or plan.static[at] < 0 for at, value in enumerate(static)):
                self._open.append((plan, static))
        self._filled: dict[int, tuple[tuple[int, ...], list[Candidate]]] = {}

    def add(self, action: str, observation: str) -> None:
        """Take in an action and the answer to it."""
        self.view.add(action, observation)

    def candidates(self) -> list[Candidate]:
        """Return at most `PLACES` actions, each once and none that was taken before, in an order without meaning."""
        done = set(self.view.actions)
        found: dict[str, Candidate] = {}
        filled = [self._candidates(number) for number in range(len(self._open))]
        for turn in range(max(map(len, filled), default=0)):
            for candidates in filled:
                if turn < len(candidates) and len(found) < PLACES:
                    candidate = candidates[turn]
                    if candidate.text not in done:
                        found.setdefault(candidate.text, candidate)
        return sorted(found.values(), key=lambda candidate: (crc32(candidate.text.encode()), candidate.text))

    def _candidates(self, number: int) -> list[Candidate]:
        """Return the fillings of a template; they change only with the answers that they depend on."""
        plan, static = self._open[number]
        versions = tuple([self.view.versions.get(name, 0) for name in plan.types])
        known = self._filled.get(number)
        if known is None or known[0] != versions:
            known = versions, list(self._fillings(plan, static))
            self._filled[number] = known
        return known[1]

    def _fillings(self, plan: _Plan, static: list[Any]) -> Iterator[Candidate]:
        template = plan.template
        options = [self.view.pointers(variable) for variable in template.variables]
        for pointers in islice(product(*options), _MAX_BINDINGS):
            values = list(static)
            for at, slot in enumerate(template.slots):
                if plan.static[at] < 0:
                    values[at] = self._dynamic(slot, pointers)
            text = None if None in values else fill(template.skeleton, values, self.view)
            if text is not None:
                yield Candidate(text, template, template.slots, pointers)

    def _dynamic(self, slot: Slot, pointers: tuple[Pointer, ...]) -> Any:
        if slot.kind == "pointer":
            value: Any = pointer_value(pointers[slot.args[0]], slot.args[1])
        else:
            value = search_value(slot, self.view)
        return None if value is None else slot.write(value)
