"""Checks shared by many tasks: a resource was created, or was updated without other changes."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from fhir_gym.tasks.grading.checks import Check
from fhir_gym.tasks.grading.comparison import differences
from fhir_gym.tasks.grading.end_state import FinishedEpisode
from fhir_gym.types import Resource


def new_resource(end: FinishedEpisode, resource_type: str, answer: str | None = None) -> Resource:
    """Return the created resource of a type; an empty object if the agent created none.

    If the agent created several, this is the resource with the id `answer`, or else the first resource. The check
    *nothing else changed* refuses the others.
    """
    new = end.created(resource_type)
    return next((one for one in new if one["id"] == answer), new[0] if new else {})


def created_check(end: FinishedEpisode, resource_type: str) -> Check:
    """Return an ``exists`` check that the agent created a resource of a type."""
    new = [f"{resource_type}/{one['id']}" for one in end.created(resource_type)]
    name = f"{resource_type} created"
    return Check(name=name, passed=bool(new), expected=f"a new {resource_type}", actual=new, level="exists")


def update_checks(
    end: FinishedEpisode,
    resource_type: str,
    id: str,
    *,
    changing: Collection[str],
    may_add: Collection[str] = (),
    may_go: Collection[str] = (),
    called: str = "",
) -> Iterator[Check]:
    """Yield checks that a resource was updated and that only the given elements changed.

    The task itself must check the new values; see `FinishedEpisode.after_update`.

    Args:
        end: The end state.
        resource_type: Type of the resource.
        id: Id of the resource.
        changing: Elements that must change.
        may_add: Elements that may be added.
        may_go: Elements that may be removed.
        called: Name of the resource in the checks ("old slot"); None for its type.
    """
    changed, called = end.updated(resource_type, id), called or resource_type
    before, after = changed or ({}, {})
    target = f"{resource_type}/{id}"
    there = changed is not None
    yield Check(
        name=f"{called} updated", passed=there, expected=target, actual=target if there else None, level="exists"
    )
    rest = differences(before, after, changing=changing, may_add=may_add, may_go=may_go, base_url=end.base_url)
    yield Check(name=f"rest of {called} unchanged", passed=there and not rest, expected={}, actual=rest)
