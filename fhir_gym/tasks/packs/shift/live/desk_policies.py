"""The rules of the kinds as policies on the server."""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping, Sequence
from datetime import datetime
from typing import Any

from fhir_gym.actions import Action
from fhir_gym.errors import TaskError
from fhir_gym.tasks import IdAllocator
from fhir_gym.tasks.packs.shift.kind import RequestKind
from fhir_gym.tasks.packs.shift.policies import Library, read_library
from fhir_gym.tasks.packs.shift.policy_drawing import draw_library
from fhir_gym.tasks.packs.shift.policy_texts import FILLERS, Rule, Subject
from fhir_gym.types import Json


def desk_subjects(kinds: Mapping[str, RequestKind[Any, Any]], scenes: Mapping[str, Any]) -> list[Subject]:
    """Return the subjects of the policies with the rules of the kinds in a shift."""
    return [subject_of(kinds[key], kinds[key].rule_values(scene)) for key, scene in scenes.items()]


def subject_of(kind: RequestKind[Any, Any], values: Mapping[str, str]) -> Subject:
    """Return the subject of the policy with the rules of a kind.

    Args:
        kind: The kind.
        values: The values in the rules; see `RequestKind.rule_values`.
    """
    # One rule, because the rules of a kind refer to each other, so their order must stay.
    rule = Rule(name=f"{kind.key}-rules", sentence=f"{kind.title}:\n{kind.rules.format_map(values)}")
    return Subject(code=f"desk-{kind.key.lower()}", title=kind.title, rules=(rule,))


def draw_desk_library(
    rng: random.Random, ids: IdAllocator, now: datetime, subjects: Sequence[Subject], total: int
) -> Library:
    """Draw the policies with the rules, and others that no request needs."""
    return draw_library(rng, ids, now, subjects, (), total, fillers=min(len(FILLERS), max(1, total // 6)))


def read_rules(
    kind: RequestKind[Any, Any], values: Mapping[str, str], now: datetime
) -> Generator[Action, Json, Mapping[str, str]]:
    """Read the valid policy with the rules of a kind, and return the values in it.

    Raises:
        TaskError: The valid policy does not contain the rules.
    """
    subject = subject_of(kind, values)
    library = yield from read_library([subject])
    if not library.values(subject.code, "", now):
        raise TaskError(f"the policies do not contain the rules of kind {kind.key}")
    return values
