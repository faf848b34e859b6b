"""Episodes that people play in the browser: started, stepped, graded and recorded like those of an agent."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fhir_gym.errors import FhirGymError
from fhir_gym.types import Json

if TYPE_CHECKING:
    from fhir_gym.episode_config import EpisodeConfig
    from fhir_gym.fhir import World
    from fhir_gym.rollouts.plan import EpisodeSpec
    from fhir_gym.rollouts.record import Rollout

MAX_PLAYS = 20
"""Maximum number of plays at a time."""
IDLE_SECONDS = 4 * 3600
"""How long a play is kept after somebody looked at it."""


class PlayError(FhirGymError):
    """A play does not exist any more, or there are too many."""


@dataclass
class Person:
    """The person who plays, as an agent in the record."""

    name: str = "human"
    settings: Mapping[str, Json] = field(default_factory=dict)


class Play:
    """One episode that a person plays. All methods may be called from any thread.

    Attributes:
        is_live: Whether other people write while the person plays.
        last_used: When somebody looked at it last; `Plays` sets it.

    Args:
        id: The id, which nobody can guess.
        config: The settings of the episode.
        spec: The task and the variation.
        clock: Function that returns the time in seconds.
    """

    def __init__(
        self, id: str, config: EpisodeConfig, spec: EpisodeSpec, world: World, clock: Callable[[], float]
    ) -> None:
        from fhir_gym.rollouts.recorder import EpisodeRecorder

        self.id, self.config, self.spec, self.world = id, config, spec, world
        self._lock = threading.Lock()
        self._clock = clock
        self._recorder = EpisodeRecorder(config, spec, Person(), world)
        self.is_live = self._recorder.open().task.is_live
        try:
            self._recorder.start()
        except BaseException:
            self._recorder.close()
            raise
        self._over = False
        self._observed = self.last_used = clock()

    @property
    def over(self) -> bool:
        """Whether the episode has ended and is graded."""
        return self._over

    def record(self) -> Rollout:
        """Return the record of the episode so far; a running episode counts as interrupted."""
        with self._lock:
            return self._recorder.record()

    @property
    def steps(self) -> int:
        """Number of actions so far."""
        return len(self._recorder.turns)

    def act(self, action: str, after: int) -> None:
        """Perform an action.

        Args:
            action: The text of the action.
            after: The number of earlier actions. If there are more by now, the form was sent twice or from an old page,
                and nothing happens.
        """
        from fhir_gym.agents import Reply

        with self._lock:
            if self._over or self.steps != after:
                return
            self._spend()
            self._over = self._recorder.step(Reply(action)).done
        self._close_if_over()

    def give_up(self) -> None:
        """End and grade the episode without an answer."""
        with self._lock:
            if self._over:
                return
            self._spend()
            self._recorder.truncate("unfinished", None)
            self._over = True
        self._close_if_over()

    def close(self) -> None:
        """Close the episode's session."""
        with self._lock:
            self._over = True
            self._recorder.close()

    def _spend(self) -> None:
        """Count the time since the latest observation as the agent's time."""
        now = self._clock()
        self._recorder.agent_time.seconds += now - self._observed
        self._observed = now

    def _close_if_over(self) -> None:
        if self._over:
            self.close()


class Plays:
    """The plays of a viewer. A play that nobody uses is forgotten after a while.

    Args:
        most: Maximum number of plays at a time. To start another, the viewer forgets a finished play.
        idle_seconds: How long a play is kept after somebody looked at it.
        clock: Function that returns the time in seconds.
    """

    def __init__(
        self, most: int = MAX_PLAYS, idle_seconds: float = IDLE_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._idle_seconds, self._clock = most, idle_seconds, clock
        self._plays: dict[str, Play] = {}
        self._starting = 0
        self._lock = threading.Lock()

    def start(self, config: EpisodeConfig, spec: EpisodeSpec, world: World) -> Play:
        """Start a play.

        Raises:
            PlayError: There are too many unfinished plays.
            FhirGymError: The task, the variation or another setting does not exist.
        """
        with self._lock:
            self._forget_old()
            for old in sorted(self._plays.values(), key=lambda old: old.last_used):
                if old.over and len(self._plays) + self._starting >= self._most:
                    del self._plays[old.id]
            if len(self._plays) + self._starting >= self._most:
                raise PlayError(f"{self._most} episodes are being played: finish one of them first")
            self._starting += 1
        play = None
        try:  # without the lock, since preparing a live shift takes seconds
            play = Play(secrets.token_urlsafe(12), config, spec, world, self._clock)
        finally:
            with self._lock:
                self._starting -= 1
                if play is not None:
                    self._plays[play.id] = play
        return play

    def get(self, id: str) -> Play:
        """Return a play.

        Raises:
            PlayError: The play does not exist, or does not exist any more.
        """
        with self._lock:
            self._forget_old()
            if id not in self._plays:
                raise PlayError("this play has expired, or it belongs to another run of the viewer")
            play = self._plays[id]
            play.last_used = self._clock()
            return play

    def all(self) -> list[Play]:
        """Return the plays, the one used last first."""
        with self._lock:
            self._forget_old()
            return sorted(self._plays.values(), key=lambda play: -play.last_used)

    def close(self) -> None:
        """Close all plays."""
        with self._lock:
            while self._plays:
                self._plays.popitem()[1].close()

    def _forget_old(self) -> None:
        """Forget plays that were not used for long."""
        now = self._clock()
        for play in list(self._plays.values()):
            if now - play.last_used > self._idle_seconds:
                self._plays.pop(play.id).close()
