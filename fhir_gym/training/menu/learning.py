"""Learn templates from rollouts: try every kind of slot on every leaf and keep the fewest that explain the actions."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fhir_gym.errors import TrainingError
from fhir_gym.rollouts import Rollout
from fhir_gym.training.menu.actions import Parts, split_action
from fhir_gym.training.menu.grounding import explain_value
from fhir_gym.training.menu.prompt import Prompt
from fhir_gym.training.menu.templates import Slot, Source, Template, Templates, Value, Variable, require_training
from fhir_gym.training.menu.view import Pointer, View

MIN_SUPPORT = 2
"""Number of actions that a template must explain."""
_COMPARED = re.compile(r"(ge|gt|le|lt|eq|sa|eb)(?=\d{4}-)")
_DATED = re.compile(r"\d{4}-\d\d-\d\d")
_KINDS = ("const", "reference", "date", "number", "word_value", "total", "ids", "refs", "count", "pointer", "text")
_MIN_SHARE = 0.04
_MIN_CONSTANTS = 3
_MAX_WORDS = 20
_MIN_GROUP = 4
_CHECKED = 200

Dictionaries = dict[str, dict[str, Value]]
Explained = dict[Slot, list[Pointer | None]]


@dataclass
class _Split:
    """One way to split an action, and the slots that explain each leaf."""

    skeleton: dict[str, Any]
    names: tuple[str, ...]
    values: list[Any]
    leaves: list[Explained] = field(default_factory=list)


@dataclass
class _Occurrence:
    """One action of a rollout."""

    place: tuple[str, ...]
    prompt: Prompt
    splits: list[_Split]


@dataclass(frozen=True)
class _Variant:
    """A skeleton with a slot for each leaf."""

    shape: str
    slots: tuple[Slot, ...]
    variables: tuple[Variable, ...]


def learn_templates(rollouts: Iterable[Rollout]) -> Templates:
    """Learn templates from successful rollouts of training variations.

    Only prompts, actions and the server's answers are read.

    Args:
        rollouts: Rollouts of training variations, such as those of the agent ``gold``. Failed ones are ignored.

    Raises:
        TrainingError: A rollout is of a test variation, no rollout succeeded, or no two actions share a template.
    """
    kept = [rollout for rollout in rollouts if _checked(rollout).success]
    if not kept:
        raise TrainingError("there are no successful rollouts to learn templates from")
    dictionaries = _dictionaries(kept)
    occurrences = [occurrence for rollout in kept for occurrence in _occurrences(rollout, dictionaries)]
    shapes: dict[str, list[tuple[int, _Split]]] = defaultdict(list)
    for number, occurrence in enumerate(occurrences):
        for split in occurrence.splits:
            shapes[json.dumps(split.skeleton, sort_keys=True)].append((number, split))
    covers: dict[_Variant, set[int]] = {}
    for shape, members in shapes.items():
        chosen = _choose_slots([(occurrences[number], split) for number, split in members], dictionaries)
        covers |= _variants(shape, members, chosen)
    templates = _cover(covers, {shape: members[0][1] for shape, members in shapes.items()})
    if not templates:
        raise TrainingError(
            f"too few successful rollouts ({len(kept)}) to learn templates from; use more variations of each task"
        )
    used = {slot.args[0] for template in templates for slot in template.slots if slot.kind == "word_value"}
    return Templates(
        templates=tuple(templates),
        dictionaries={name: words for name, words in dictionaries.items() if name in used},
        sources=tuple(_source(rollout) for rollout in kept),
    )


def _source(rollout: Rollout) -> Source:
    task = rollout.task
    return Source(env_id=rollout.env_id, task=task.key, variation=task.variation, phrasing=task.phrasing)


def _checked(rollout: Rollout) -> Rollout:
    require_training([_source(rollout)])
    return rollout


def _actions(rollout: Rollout) -> Iterator[tuple[View, list[Parts]]]:
    view = View(rollout.prompt)
    for turn in rollout.turns:
        yield view, split_action(turn.action, view)
        view.add(turn.action, turn.observation)


def _occurrences(rollout: Rollout, dictionaries: Dictionaries) -> Iterator[_Occurrence]:
    task = rollout.task
    for turn, (view, parts) in enumerate(_actions(rollout)):
        splits = []
        for skeleton, leaves in parts:
            split = _Split(skeleton, tuple(name for name, _ in leaves), [value for _, value in leaves])
            split.leaves = [_explain(name, value, view, dictionaries) for name, value in leaves]
            splits.append(split)
        yield _Occurrence((rollout.env_id, task.key, str(task.phrasing), str(turn)), view.prompt, splits)


def _explain(name: str, value: Any, view: View, dictionaries: Dictionaries) -> Explained:
    """Return every slot that gives a leaf its value, with the pointers that it could use."""
    explained: Explained = defaultdict(list)
    if not isinstance(value, list):
        if not _DATED.search(str(value)):
            explained[Slot("const", (value,))].append(None)
        words = dictionaries.get(_leaf_path(name))
        slot = Slot("word_value", (_leaf_path(name),))
        if words and view.prompt.value(slot, dictionaries) == value:
            explained[slot].append(None)
    for prefix, core in _cores(value):
        if isinstance(core, str | int) and not isinstance(core, bool):
            for slot in view.prompt.explain(core):
                explained[Slot(slot.kind, slot.args, prefix, slot.capital)].append(None)
        for slot, pointer in explain_value(core, view):
            explained[Slot(slot.kind, slot.args, prefix)].append(pointer)
    return explained


def _cores(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a value with the constant text before it: a comparison (``ge``) or a code system."""
    yield "", value
    if isinstance(value, str):
        compared = _COMPARED.match(value)
        if compared:
            yield compared.group(), value[compared.end() :]
        system, bar, code = value.partition("|")
        if bar and code:
            yield system + bar, code


def _leaf_path(name: str) -> str:
    """Return the name of a leaf without list indices."""
    return re.sub(r"\[\d+\]|\.\d+(?=\.|$)", "", name)


def _dictionaries(rollouts: Sequence[Rollout]) -> Dictionaries:
    """Learn, for each leaf, which words of a prompt mean which value, if the prompts do not contain the values."""
    seen: dict[str, list[tuple[Value, Prompt]]] = defaultdict(list)
    for rollout in rollouts:
        for view, parts in _actions(rollout):
            for name, value in parts[0][1] if parts else ():
                if isinstance(value, str):
                    seen[_leaf_path(name)].append((value, view.prompt))
    dictionaries: Dictionaries = {}
    for name, pairs in seen.items():
        values = Counter(value for value, _ in pairs)
        hidden = sum(str(value).rpartition("|")[2] not in prompt.text for value, prompt in pairs)
        if 1 < len(values) <= _MAX_WORDS and hidden >= 0.9 * len(pairs):
            words = _words(pairs)
            if words:
                dictionaries[name] = words
    return dictionaries


def _words(pairs: Sequence[tuple[Value, Prompt]]) -> dict[str, Value]:
    """Return words that occur in prompts of one value only, the fewest that occur in all of its prompts."""
    by_word: dict[str, Counter[Value]] = defaultdict(Counter)
    for value, prompt in pairs:
        for word in set(prompt.words):
            by_word[word][value] += 1
    pure = {word: next(iter(counts)) for word, counts in by_word.items() if len(counts) == 1 and word.islower()}
    values_by_word: dict[str, Value] = {}
    for value in sorted({str(value) for value, _ in pairs}):
        prompts = [set(prompt.words) for pair_value, prompt in pairs if pair_value == value]
        while prompts:
            options = Counter(word for words in prompts for word in words if pure.get(word) == value)
            if not options:
                break
            word, count = min(options.items(), key=lambda item: (-item[1], item[0]))
            if count < MIN_SUPPORT:
                break
            values_by_word[word] = value
            prompts = [words for words in prompts if word not in words]
    return values_by_word


def _choose_slots(members: Sequence[tuple[_Occurrence, _Split]], dictionaries: Dictionaries) -> list[list[Slot]]:
    """Choose for each leaf of a shape the fewest slots that explain its values, the best first."""
    prompts = [occurrence.prompt for occurrence, _ in members]
    chosen = []
    for at in range(len(members[0][1].names)):
        explained = [split.leaves[at] for _, split in members]
        values = [split.values[at] for _, split in members]
        if _varies([occurrence.place for occurrence, _ in members], values):
            explained = [
                {s: p for s, p in explanations.items() if s.kind != "const"} or explanations
                for explanations in explained
            ]
        chosen.append(_choose(explained, values, prompts, dictionaries))
    return chosen


def _varies(places: Sequence[tuple[str, ...]], values: Sequence[Any]) -> bool:
    """Return whether most tasks give a leaf different values at the same turn and in the same phrasing."""
    by_shape: dict[tuple[str, ...], list[Any]] = defaultdict(list)
    for place, value in zip(places, values, strict=True):
        by_shape[place].append(value)
    large = [group for group in by_shape.values() if len(group) >= _MIN_GROUP]
    return 2 * sum(any(value != group[0] for value in group) for group in large) > len(large)


def _choose(
    explained: Sequence[Explained], values: Sequence[Any], prompts: Sequence[Prompt], dictionaries: Dictionaries
) -> list[Slot]:
    counts: Counter[Slot] = Counter(slot for explanations in explained for slot in explanations)
    enough = max(MIN_SUPPORT, _MIN_SHARE * len(explained))
    usable = {slot for slot, count in counts.items() if slot.kind != "const" or count >= max(_MIN_CONSTANTS, enough)}
    ranked = sorted(usable, key=lambda slot: (-counts[slot], _KINDS.index(slot.kind), slot.name))
    wrong = {slot: _wrong(slot, values, prompts, dictionaries) for slot in ranked[:_CHECKED]}
    remaining = list(explained)
    chosen: list[Slot] = []
    while remaining:
        left = Counter(slot for explanations in remaining for slot in explanations if slot in usable)
        if not left:
            break
        scores = {slot: count - 0.5 * wrong.get(slot, 0) for slot, count in left.items()}
        slot = min(left, key=lambda slot: (-scores[slot], _KINDS.index(slot.kind), len(slot.name), slot.name))
        if left[slot] < MIN_SUPPORT:
            break
        chosen.append(slot)
        remaining = [explanations for explanations in remaining if slot not in explanations]
    return chosen


def _wrong(slot: Slot, values: Sequence[Any], prompts: Sequence[Prompt], dictionaries: Dictionaries) -> int:
    """Return how many values a slot would fill wrongly from the prompt."""
    if slot.dynamic or slot.kind == "const":
        return 0
    filled = (prompt.value(slot, dictionaries) for prompt in prompts)
    return sum(
        filled_value is not None and filled_value != value for filled_value, value in zip(filled, values, strict=True)
    )


def _variants(
    shape: str, members: Sequence[tuple[int, _Split]], chosen: Sequence[Sequence[Slot]]
) -> dict[_Variant, set[int]]:
    """Return the combinations of chosen slots that explain actions, with the numbers of these actions."""
    covers: dict[_Variant, set[int]] = defaultdict(set)
    for number, split in members:
        slots = [
            next((slot for slot in ranked if slot in explanations), None)
            for ranked, explanations in zip(chosen, split.leaves, strict=True)
        ]
        if None not in slots:
            covers[_bind(shape, [slot for slot in slots if slot], split)].add(number)
    return covers


def _bind(shape: str, slots: Sequence[Slot], split: _Split) -> _Variant:
    """Give leaves that point to the same resource the same variable."""
    variables: list[tuple[Variable, str]] = []
    bound = []
    for slot, chosen_slot in zip(slots, split.leaves, strict=True):
        if slot.kind != "pointer":
            bound.append(slot)
            continue
        variable, attribute = slot.args
        options = [(variable, pointer.reference) for pointer in chosen_slot[slot] if pointer is not None]
        used = next((option for option in options if option in variables), options[0])
        if used not in variables:
            variables.append(used)
        bound.append(Slot("pointer", (variables.index(used), attribute), slot.prefix))
    return _Variant(shape, tuple(bound), tuple(variable for variable, _ in variables))


def _cover(covers: Mapping[_Variant, set[int]], splits: Mapping[str, _Split]) -> list[Template]:
    """Return the fewest variants that explain all actions, the most common first."""
    remaining = {variant: set(numbers) for variant, numbers in covers.items()}
    templates: list[Template] = []
    while remaining:
        best = min(remaining, key=lambda variant: (-len(remaining[variant]), repr(variant)))
        support = remaining.pop(best)
        if len(support) < MIN_SUPPORT:
            break
        split = splits[best.shape]
        templates.append(Template(split.skeleton, split.names, best.slots, best.variables, len(covers[best])))
        for numbers in remaining.values():
            numbers -= support
    return templates
