"""The menu: the templates' actions that an agent can take after what it has seen."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice, product
from typing import Any
from zlib import crc32

from fhir_gym.arguments import require_whole
from fhir_gym.training.menu.actions import fill
from fhir_gym.training.menu.grounding import pointer_value, search_value
from fhir_gym.training.menu.prompt import Prompt
from fhir_gym.training.menu.templates import Slot, Template, Templates, Value, Variable
from fhir_gym.training.menu.view import Pointer, View

_MAX_OPTIONS = 24
"""Number of distractors to prepare for each template."""
_INDICES = range(3)
_FIXED = ("resourceType", "system", "unit")


def derive_distractors(templates: Templates) -> tuple[tuple[Template, ...], ...]:
    """Return for each template the templates that differ from it in one slot, in an order without meaning.

    The other slot is one that fits the leaf: another constant of a leaf of that name, another date, reference or text
    of the prompt, another date of the same resource, a pointer to another resource of the type, or another condition
    on the resources that a search found.
    """
    pool = _Pool(templates)
    derived = []
    for template in templates.templates:
        options: dict[tuple[int, str], Template] = {}
        for at, slot in enumerate(template.slots):
            for other in pool.others(template, at, slot):
                options[at, other.slots[at].name] = other
        shapes = {own_template.shape + repr(own_template.slots) for own_template in templates.templates}
        new = [option for option in options.values() if option.shape + repr(option.slots) not in shapes]
        derived.append(tuple(sorted(new, key=_rank)[:_MAX_OPTIONS]))
    return tuple(derived)


def _rank(template: Template) -> tuple[int, str]:
    text = template.shape + repr(template.slots)
    return crc32(text.encode()), text


class _Pool:
    """The slots and constants of all templates, grouped by the slots that they can replace."""

    def __init__(self, templates: Templates) -> None:
        self._dictionaries: Mapping[str, Mapping[str, Value]] = templates.dictionaries
        self._constants: dict[str, set[Value]] = defaultdict(set)
        self._slots: dict[str, set[Slot]] = defaultdict(set)
        self._variables: dict[str, set[Variable]] = defaultdict(set)
        for template in templates.templates:
            for name, slot in zip(template.names, template.slots, strict=True):
                if slot.kind == "const" and isinstance(slot.args[0], str):
                    self._constants[_key(name)].add(slot.args[0])
                elif slot.kind != "pointer":
                    self._slots[slot.kind].add(slot)
            for variable in template.variables:
                self._variables[variable.target or variable.type].add(variable)

    def others(self, template: Template, at: int, slot: Slot) -> Iterator[Template]:
        """Yield the templates with another slot at a leaf."""
        if slot.kind == "pointer":
            yield from self._other_pointers(template, at, slot)
        else:
            for other in self._other_slots(template.names[at], slot):
                if other != slot:
                    yield _with(template, at, other)

    def _other_slots(self, name: str, slot: Slot) -> Iterator[Slot]:
        if slot.kind in ("const", "word_value"):
            yield from self._other_constants(name, slot)
        elif slot.kind in ("reference", "number"):
            at = 0 if slot.kind == "number" else 1
            yield from (replace(slot, args=(*slot.args[:at], index, *slot.args[at + 1 :])) for index in _INDICES)
        elif slot.kind in ("date", "text"):
            for other in sorted(self._slots[slot.kind], key=_slot_name):
                if _form(other) == _form(slot):
                    yield replace(other, prefix=slot.prefix, capital=slot.capital)
        else:
            for kind in ("total", "count") if slot.kind in ("total", "count") else (slot.kind,):
                yield from sorted(self._slots[kind], key=_slot_name)

    def _other_constants(self, name: str, slot: Slot) -> Iterator[Slot]:
        if slot.kind == "word_value":
            values = {str(value) for value in self._dictionaries[slot.args[0]].values()}
        else:
            values = set() if name.endswith(_FIXED) else {str(value) for value in self._constants[_key(name)]}
        yield from (Slot("const", (value,), slot.prefix) for value in sorted(values))

    def _other_pointers(self, template: Template, at: int, slot: Slot) -> Iterator[Template]:
        number, attribute = slot.args
        variable = template.variables[number]
        if attribute not in ("ref", "id"):
            for name in ("start", "end", "requestedPeriod.start", "requestedPeriod.end"):
                if name != attribute and (name.startswith("requested") == attribute.startswith("requested")):
                    yield _with(template, at, replace(slot, args=(number, name)))
            return
        if at == 0 and "edits" in template.skeleton:
            return
        kind = variable.target or variable.type
        for index in _INDICES:
            yield _with(template, at, Slot("reference", (kind, index, attribute), slot.prefix))
        for other in sorted(self._variables[kind], key=lambda candidate: candidate.name):
            if other != variable:
                added = Slot("pointer", (len(template.variables), attribute), slot.prefix)
                yield replace(_with(template, at, added), variables=(*template.variables, other))


def _with(template: Template, at: int, slot: Slot) -> Template:
    return replace(template, slots=(*template.slots[:at], slot, *template.slots[at + 1 :]))


def _form(slot: Slot) -> object:
    """Return the properties that two interchangeable dates or texts share: with or without a time, the context."""
    return slot.args[4] is not None if slot.kind == "date" else slot.args[0]


def _slot_name(slot: Slot) -> str:
    return slot.name


def _key(name: str) -> str:
    """Return the last part of a leaf's name."""
    return re.split(r"[.?\]]", name)[-1]


PLACES = 64
"""Number of places of a menu."""
_MAX_BINDINGS = 32
_MAX_PROMPTS = 16_384


@dataclass(frozen=True, eq=False)
class Candidate:
    """An action on the menu.

    Attributes:
        text: The action.
        template: Its template, or the template of a distractor.
        pointers: The pointers that it uses, in the order of the template's variables.
    """

    text: str
    template: Template
    pointers: tuple[Pointer, ...] = field(default=(), repr=False)

    @property
    def description(self) -> list[str]:
        """How each leaf was filled, such as ``?status <- const active``, and what the pointers refer to."""
        leaves = zip(self.template.names, self.template.slots, strict=True)
        filled = [f"{name} <- {slot.description}" for name, slot in leaves]
        return filled + [f"pointer {at}: {pointer.reference}" for at, pointer in enumerate(self.pointers)]


class Menu:
    """Menus over a set of templates.

    Args:
        distractors: Number of wrong fillings to add for each template.

    Attributes:
        slots: The slots of all templates and distractors that the prompt fills.
        plans: The templates, prepared for filling.
        wrong_plans: For each template, its distractors.
        dependent: By resource type, the templates whose values depend on answers with the type.
    """

    def __init__(self, templates: Templates, distractors: int = 0) -> None:
        self.templates = templates
        self.distractors = require_whole("distractors", distractors, 0)
        derived = derive_distractors(templates) if distractors else ((),) * len(templates.templates)
        every = [*templates.templates, *(template for group in derived for template in group)]
        self.slots = tuple(dict.fromkeys(s for template in every for s in template.slots if not s.dynamic))
        numbers = {slot: number for number, slot in enumerate(self.slots)}
        self.plans = tuple(_Plan.of(template, numbers) for template in templates.templates)
        self.wrong_plans = tuple(tuple(_Plan.of(template, numbers) for template in group) for group in derived)
        self.dependent: dict[str, list[_Plan]] = {}
        for plan in [*self.plans, *(plan for group in self.wrong_plans for plan in group)]:
            for name in plan.types:
                self.dependent.setdefault(name, []).append(plan)
        self._known: dict[str, tuple[Value, ...]] = {}

    @classmethod
    def shared(cls, templates: Templates, distractors: int = 0) -> Menu:
        """Return a menu that all users of the same `Templates` object in this process share."""
        return _shared_menu(templates, distractors)

    def start(self, prompt: str, distractors: int | None = None) -> MenuSession:
        """Start an episode.

        Args:
            prompt: The prompt, or the first observation.
            distractors: Number of distractors of each template in this episode, at most that of the menu; None for
                that of the menu.
        """
        return MenuSession(self, prompt, self.distractors if distractors is None else distractors)

    def values(self, prompt: Prompt) -> tuple[Value, ...]:
        """Return the values of all templates' slots for a prompt, in the order of `slots`."""
        cached = self._known.get(prompt.text)
        if cached is None:
            if len(self._known) >= _MAX_PROMPTS:
                self._known.clear()
            cached = tuple(prompt.value(slot, self.templates.dictionaries) for slot in self.slots)
            self._known[prompt.text] = cached
        return cached

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


@lru_cache(maxsize=4)
def _shared_menu(templates: Templates, distractors: int) -> Menu:
    return Menu(templates, distractors)


@dataclass(frozen=True, eq=False)
class _Plan:
    """A template, prepared for filling.

    Attributes:
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

    def __init__(self, menu: Menu, prompt: str, distractors: int) -> None:
        self._distractors = distractors
        self.view = View(prompt)
        values = menu.values(self.view.prompt)
        self._menu = menu
        self._open: list[_Plan] = []
        self._wrong: list[list[_Plan]] = []
        self._static: dict[_Plan, list[Any]] = {}
        start = crc32(self.view.prompt.text.encode())
        for plan, wrong in zip(menu.plans, menu.wrong_plans, strict=True):
            if self._fits(plan, values):
                self._open.append(plan)
                fitting = [wrong_plan for wrong_plan in wrong if self._fits(wrong_plan, values)]
                at = start % max(1, len(fitting))
                self._wrong.append(fitting[at:] + fitting[:at])
        self._filled: dict[_Plan, list[Candidate]] = {}

    def _fits(self, plan: _Plan, values: Sequence[Value]) -> bool:
        """Return whether the prompt has all values that the template takes from it, and keep them."""
        static: list[Any] = [None if number < 0 else values[number] for number in plan.static]
        if any(value is None and plan.static[at] >= 0 for at, value in enumerate(static)):
            return False
        self._static[plan] = static
        return True

    def add(self, action: str, observation: str) -> None:
        """Record an action and the answer to it."""
        self.view.add(action, observation)
        turn = len(self.view.actions)
        for name, version in self.view.versions.items():
            for plan in self._menu.dependent[name] if version == turn and name in self._menu.dependent else ():
                self._filled.pop(plan, None)

    def candidates(self) -> list[Candidate]:
        """Return at most `PLACES` different actions that the agent has not taken yet, in an order without meaning."""
        done = set(self.view.actions)
        by_text: dict[str, Candidate] = {}
        filled = [self._candidates(plan) for plan in self._open]
        _take_turns(filled, by_text, done)
        if self._distractors and len(by_text) < PLACES:
            right = {candidate.text for candidates in filled for candidate in candidates}
            wrong = [
                self._wrong_candidates(group, right) for group, good in zip(self._wrong, filled, strict=True) if good
            ]
            _take_turns(wrong, by_text, done)
        return sorted(by_text.values(), key=lambda candidate: (crc32(candidate.text.encode()), candidate.text))

    def _wrong_candidates(self, plans: Sequence[_Plan], right: Container[str]) -> list[Candidate]:
        """Return distractors of one template."""
        by_text: dict[str, Candidate] = {}
        for plan in plans:
            options = [candidate for candidate in self._candidates(plan) if candidate.text not in right]
            if options:
                chosen = options[crc32(plan.template.shape.encode()) % len(options)]
                by_text.setdefault(chosen.text, chosen)
            if len(by_text) == self._distractors:
                break
        return list(by_text.values())

    def _candidates(self, plan: _Plan) -> list[Candidate]:
        """Return the fillings of a template; they change only with the answers that they depend on."""
        cached = self._filled.get(plan)
        if cached is None:
            cached = self._filled[plan] = list(self._fillings(plan, self._static[plan]))
        return cached

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
                yield Candidate(text, template, pointers)

    def _dynamic(self, slot: Slot, pointers: tuple[Pointer, ...]) -> Any:
        if slot.kind == "pointer":
            value: Any = pointer_value(pointers[slot.args[0]], slot.args[1])
        else:
            value = search_value(slot, self.view)
        return None if value is None else slot.write(value)


def _take_turns(groups: Sequence[Sequence[Candidate]], chosen: dict[str, Candidate], done: Collection[str]) -> None:
    """Add candidates of each group in turn, until the menu is full."""
    turn = 0
    while groups := [candidates for candidates in groups if turn < len(candidates)]:
        for candidates in groups:
            candidate = candidates[turn]
            if candidate.text not in done and len(chosen) < PLACES:
                chosen.setdefault(candidate.text, candidate)
        turn += 1
