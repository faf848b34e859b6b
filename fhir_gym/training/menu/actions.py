"""Split an action into a skeleton with holes and the values of the holes (leaves), and put it together again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

import orjson

from fhir_gym.actions import GRAMMAR, Action
from fhir_gym.training.menu.view import View

Leaf = tuple[str, Any]
"""Name and value of a leaf. A leaf that stands for several values has a list as value."""
Parts = tuple[dict[str, Any], list[Leaf]]
"""A skeleton and its leaves."""
_SEVERAL = 2
_HOLES = frozenset({"$", "$several"})


class Added(list[str]):
    """References that an update adds to a list.

    Attributes:
        known: The references that the list already has.
    """

    def __init__(self, references: Sequence[str], known_references: Sequence[str] = ()) -> None:
        super().__init__(references)
        self.known = frozenset(known_references)


class _Splitter:
    """Replace values by holes and collect them."""

    def __init__(self) -> None:
        self.leaves: list[Leaf] = []

    def hole(self, name: str, value: Any) -> dict[str, Any]:
        self.leaves.append((name, value))
        return {"$several" if isinstance(value, list) else "$": len(self.leaves) - 1}

    def split(self, value: Any, name: str) -> Any:
        if isinstance(value, dict) and not value.keys() & _HOLES:
            return {key: self.split(item, f"{name}.{key}" if name else key) for key, item in value.items()}
        if isinstance(value, list):
            return [self.split(item, f"{name}[{index}]") for index, item in enumerate(value)]
        return self.hole(name, value)


def split_action(text: str, view: View) -> list[Parts]:
    """Return the ways to split an action into skeleton and leaves; empty for an action that no template can express.

    Args:
        text: The action.
        view: What the agent had seen before it.
    """
    action = GRAMMAR.parse(text)
    if not isinstance(action, Action):
        return []
    if action.kind == "FINISH":
        return _split_answer(action.answer or [])
    path, _, query = action.url.partition("?")
    parts = path.strip("/").split("/")
    if "://" in action.url or len(parts) > _SEVERAL:
        return []
    try:
        body = orjson.loads(action.body) if action.body else None
    except orjson.JSONDecodeError:
        return []
    splitter = _Splitter()
    skeleton: dict[str, Any] = {"verb": action.kind, "type": parts[0]}
    if len(parts) == _SEVERAL:
        skeleton["path"] = splitter.hole("path", "/".join(parts))
    if query:
        pairs = parse_qsl(query, keep_blank_values=True)
        skeleton["query"] = [[name, splitter.hole(f"?{name}", value)] for name, value in pairs]
    if action.kind == "PUT":
        return _split_update(skeleton, splitter, "/".join(parts), body, view) if isinstance(body, dict) else []
    if action.body:
        skeleton["body"] = splitter.split(body, "")
    return [(skeleton, splitter.leaves)]


def _split_answer(answer: list[Any]) -> list[Parts]:
    parts: list[Parts] = []
    if len(answer) <= _SEVERAL:
        splitter = _Splitter()
        parts.append(({"verb": "FINISH", "answer": splitter.split(answer, "answer")}, splitter.leaves))
    if all(isinstance(item, str) for item in answer):
        parts.append(({"verb": "FINISH", "answer": [{"$several": 0}]}, [("answer", answer)]))
    if answer and isinstance(answer[0], int) and all(isinstance(item, str) for item in answer[1:]):
        leaves: list[Leaf] = [("answer[0]", answer[0]), ("answer", answer[1:])]
        parts.append(({"verb": "FINISH", "answer": [{"$": 0}, {"$several": 1}]}, leaves))
    return parts


def _split_update(
    skeleton: dict[str, Any], splitter: _Splitter, reference: str, after: dict[str, Any], view: View
) -> list[Parts]:
    seen = view.latest.get(reference)
    if seen is None:
        return []
    edits: list[list[Any]] = []
    for operation, path, value in _differences(seen.data, after, []):
        steps = _general(path, value, after) if operation == "set" else path
        name = ".".join(str(step) for step in steps)
        if operation == "remove":
            edit: list[Any] = [operation, steps]
        elif operation == "append" and all(isinstance(item, dict) and set(item) == {"reference"} for item in value):
            references = [str(item.get("reference")) for item in _get(seen.data, path) or () if isinstance(item, dict)]
            edit = [operation, steps, splitter.hole(name, Added([item["reference"] for item in value], references))]
        else:
            edit = [operation, steps, splitter.split(value, name)]
        if edit[:2] not in [earlier[:2] for earlier in edits]:
            edits.append(edit)
    skeleton["edits"] = edits
    return [(skeleton, splitter.leaves), *_single_append(skeleton, splitter.leaves)]


def _single_append(skeleton: dict[str, Any], leaves: list[Leaf]) -> list[Parts]:
    """Return the split in which one appended reference is a leaf of its own, besides being a list of one."""
    changed = [
        (name, value[0]) if isinstance(value, list) and len(value) == 1 else (name, value) for name, value in leaves
    ]
    if changed == leaves:
        return []
    text = json.dumps(skeleton)
    for index in range(len(leaves)):
        if changed[index] != leaves[index]:
            text = text.replace(f'{{"$several": {index}}}', f'[{{"reference": {{"$": {index}}}}}]')
    return [(json.loads(text), changed)]


def _differences(before: Any, after: Any, path: list[Any]) -> list[tuple[str, list[Any], Any]]:
    if isinstance(before, dict) and isinstance(after, dict):
        differing: list[tuple[str, list[Any], Any]] = []
        for key, value in after.items():
            if key not in before:
                differing.append(("append" if isinstance(value, list) else "set", [*path, key], value))
            else:
                differing += _differences(before[key], value, [*path, key])
        return differing + [("remove", [*path, key], None) for key in before if key not in after]
    if isinstance(before, list) and isinstance(after, list):
        if len(after) > len(before) and after[: len(before)] == before:
            return [("append", path, after[len(before) :])]
        if len(after) == len(before):
            pairs = enumerate(zip(before, after, strict=True))
            return [change for index, (old, new) in pairs for change in _differences(old, new, [*path, index])]
    return [] if before == after else [("set", path, after)]


def _general(path: list[Any], value: Any, after: dict[str, Any]) -> list[Any]:
    """Replace a list index in a path: ``*`` if all elements get the value, ``@Type`` if only one refers to the type."""
    at = next((index for index, step in enumerate(path) if isinstance(step, int)), None)
    if at is None:
        return path
    items, rest = _get(after, path[:at]), path[at + 1 :]
    if all(_get(item, rest) == value for item in items):
        return [*path[:at], "*", *rest]
    types = [_types(item) for item in items]
    for name in sorted(types[path[at]]):
        if sum(name in names for names in types) == 1:
            return [*path[:at], f"@{name}", *rest]
    return path


def _get(value: Any, path: Sequence[Any]) -> Any:
    for step in path:
        if isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        elif isinstance(value, dict):
            value = value.get(step)
        else:
            return None
    return value


def _types(value: Any) -> set[str]:
    """Return the types that references in a value refer to."""
    if isinstance(value, dict):
        reference = value.get("reference")
        own = {reference.split("/")[0]} if isinstance(reference, str) else set()
        return own.union(*(_types(item) for item in value.values()))
    return set().union(*(_types(item) for item in value)) if isinstance(value, list) else set()


def fill(skeleton: dict[str, Any], values: Sequence[Any], view: View) -> str | None:
    """Return the action of a skeleton and its leaves as text; None if it cannot be performed or changes nothing."""
    verb = skeleton["verb"]
    if verb == "FINISH":
        return f"FINISH({json.dumps(_filled(skeleton['answer'], values), ensure_ascii=False)})"
    path = _filled(skeleton["path"], values) if "path" in skeleton else skeleton["type"]
    if path.partition("/")[0] != skeleton["type"]:
        return None
    text = f"{verb} /{path}"
    if "query" in skeleton:
        text += "?" + urlencode([(name, _filled(hole, values)) for name, hole in skeleton["query"]])
    if "edits" in skeleton:
        seen = view.latest.get(path)
        body = None if seen is None else _edited(seen.data, skeleton["edits"], values)
        return None if body is None else f"{text}\n{body}"
    if "body" in skeleton:
        text += "\n" + orjson.dumps(_filled(skeleton["body"], values)).decode()
    return text


def _filled(skeleton: Any, values: Sequence[Any]) -> Any:
    if isinstance(skeleton, dict):
        if len(skeleton) == 1 and "$" in skeleton:
            return values[skeleton["$"]]
        return {key: _filled(item, values) for key, item in skeleton.items()}
    if isinstance(skeleton, list):
        filled: list[Any] = []
        for item in skeleton:
            if isinstance(item, dict) and "$several" in item:
                filled += values[item["$several"]]
            else:
                filled.append(_filled(item, values))
        return filled
    return skeleton


def _edited(before: dict[str, Any], edits: list[list[Any]], values: Sequence[Any]) -> str | None:
    """Return the body with edits; None if a path does not exist or nothing changes."""
    original = orjson.dumps(before)
    body = orjson.loads(original)
    for operation, path, *hole in edits:
        value: Any = None
        if hole:
            value = _filled(hole[0], values)
            if isinstance(hole[0], dict) and "$several" in hole[0]:
                value = [{"reference": item} for item in values[hole[0]["$several"]]]
        if not _edit(body, operation, path, value):
            return None
    text = orjson.dumps(body)
    return None if text == original else text.decode()


def _edit(target: Any, operation: str, path: Sequence[Any], value: Any) -> bool:
    step, rest = path[0], path[1:]
    if isinstance(target, list):
        chosen = _chosen(target, step)
        if not rest:
            for index in chosen:
                target[index] = value
            return bool(chosen)
        return bool(chosen) and all(_edit(target[index], operation, rest, value) for index in chosen)
    if not isinstance(target, dict):
        return False
    if rest:
        return step in target and _edit(target[step], operation, rest, value)
    if operation == "remove":
        return target.pop(step, None) is not None
    if operation == "set":
        target[step] = value
        return True
    items = target.setdefault(step, [])
    new = [item for item in value if item not in items] if isinstance(items, list) else []
    if new:
        items.extend(new)
    return bool(new)


def _chosen(items: list[Any], step: Any) -> list[int]:
    if step == "*":
        return list(range(len(items)))
    if isinstance(step, str) and step.startswith("@"):
        return [index for index, item in enumerate(items) if step[1:] in _types(item)]
    return [step] if isinstance(step, int) and step < len(items) else []


def meaning(text: str) -> Any:
    """Return an action as data that is equal for actions of the same meaning."""
    action = GRAMMAR.parse(text)
    if not isinstance(action, Action):
        return text
    path, _, query = action.url.partition("?")
    body = json.loads(action.body) if action.body else None
    return action.kind, path.strip("/"), sorted(parse_qsl(query, keep_blank_values=True)), body, action.answer
