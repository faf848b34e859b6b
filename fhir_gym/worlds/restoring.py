"""Restore the resources of a FHIR server that an interrupted episode has changed."""

from __future__ import annotations

from dataclasses import dataclass

from fhir_gym.errors import WorldError
from fhir_gym.fhir import Credentials, World
from fhir_gym.fhir.adapters.remote import RemoteSession
from fhir_gym.fhir.adapters.remote_interactions import ResourceStates
from fhir_gym.worlds.comparing import Comparison

_SHOWN = 5


@dataclass(frozen=True)
class RestoreReport:
    """The result of restoring a server.

    Attributes:
        world: Name of the world.
        server: Base URL of the server.
        resources: Type and id of each resource that was restored or deleted.
        left: The changes that could not be undone; empty unless `force`.
    """

    world: str
    server: str
    resources: tuple[str, ...]
    left: tuple[str, ...] = ()


def restore(
    world: World,
    url: str,
    *,
    comparison: Comparison | None = None,
    force: bool = False,
    credentials: Credentials | None = None,
) -> RestoreReport:
    """Undo the changes that an interrupted episode has left on a server.

    The next episode on the server does this too. Without a comparison, this machine must have run the episode, because
    its journal of the server lists the changes to undo.

    Args:
        world: The world of the episode.
        url: Base URL of the server.
        comparison: The result of `compare`: its differences are undone instead of those in the journal. Resources that
            only the server has are deleted.
        force: Whether to forget what cannot be undone, unreadable notes and the notes of other worlds, instead of
            raising. Everything else is undone in both cases.
        credentials: Headers and certificate authority; None if the server needs no credentials.

    Raises:
        InfraError: The server is in use, does not answer, does not contain the world, or cannot be restored.
        WorldError: The comparison does not list all differences, or a difference
            cannot be undone.
    """
    states = None if comparison is None else _states(world, comparison)
    session = RemoteSession(url, world, credentials=credentials, undo=states, force=force)
    session.close()
    wrong = [f"{state.type}/{state.id}" for state in states or () if f"{state.type}/{state.id}" not in session.restored]
    if wrong and not force:
        more = f" and {len(wrong) - _SHOWN:,} more" if len(wrong) > _SHOWN else ""
        raise WorldError(f"{session.base_url} still differs in {', '.join(wrong[:_SHOWN])}{more}")
    return RestoreReport(world.name, session.base_url, session.restored, session.left)


def _states(world: World, comparison: Comparison) -> list[ResourceStates]:
    """Return the world's states of the resources that differ."""
    number = sum(comparison.counts.values())
    if number > len(comparison.differences):
        raise WorldError(
            f"{comparison.server} has {number:,} differences, too many to restore: "
            "upload the world to an empty server instead"
        )
    names = [difference.resource.partition("/") for difference in comparison.differences]
    with world.session() as session:
        return [ResourceStates(kind, id, session.read(kind, id)) for kind, _, id in names]
