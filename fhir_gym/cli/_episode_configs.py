"""Episode settings of commands that serve several packs to clients."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fhir_gym.cli._console import progress

if TYPE_CHECKING:
    from fhir_gym.episode_config import EpisodeConfig
    from fhir_gym.fhir import World
    from fhir_gym.tasks import Grading, RewardRule

GradingOption = Annotated[
    Literal["state", "evidence"],
    typer.Option(
        help="What to grade. state: the end state and the answer; evidence: also whether the agent read the records."
    ),
]
RewardOption = Annotated[
    Literal["sparse", "dense"], typer.Option(help="sparse: 1 for success, else 0; dense: share of passed checks.")
]
MaxStepsOption = Annotated[
    int | None, typer.Option(min=1, help="Number of actions after which an episode is truncated.")
]


def open_worlds(names: Iterable[str], stack: ExitStack) -> dict[str, World]:
    """Open each world once; `stack` closes them."""
    from fhir_gym import worlds

    opened: dict[str, World] = {}
    for name in dict.fromkeys(names):
        with progress(f"Building {name}") as update:
            opened[name] = stack.enter_context(worlds.load(name, progress=update))
    return opened


def episode_configs(
    env_ids: Iterable[str],
    world: str | None,
    stack: ExitStack,
    *,
    grading: Grading,
    reward: RewardRule,
    max_steps: int | None,
) -> list[EpisodeConfig]:
    """Return the settings of each pack's episodes with an open world, which `stack` closes.

    Args:
        env_ids: Env ids of the packs; repeated ones count once.
        world: World of all packs; None for the packs' own worlds.
        stack: Where the worlds are entered.
        grading: See `EpisodeConfig`.
        reward: See `EpisodeConfig`.
        max_steps: See `EpisodeConfig`.
    """
    from fhir_gym.episode_config import EpisodeConfig
    from fhir_gym.tasks import get_pack

    names = {env_id: world or get_pack(env_id).world for env_id in env_ids}
    opened = open_worlds(names.values(), stack)
    return [
        EpisodeConfig(env_id, world=opened[name], grading=grading, reward=reward, max_steps=max_steps)
        for env_id, name in names.items()
    ]
