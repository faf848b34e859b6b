"""The OpenEnv server: an ASGI application, and `serve` for `fhir-gym openenv serve`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import uvicorn
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import ConcurrencyConfig, EnvironmentMetadata
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from typing_extensions import override

from fhir_gym import __version__
from fhir_gym.arguments import require_name, require_whole
from fhir_gym.episode import Episode
from fhir_gym.episode_config import EpisodeConfig
from fhir_gym.errors import FhirGymError, InfraError, UnknownNameError, in_one_line
from fhir_gym.http_server import bind
from fhir_gym.integrations.openenv.catalog import MAX_LISTED, TaskCatalog, TaskSpec
from fhir_gym.integrations.openenv.models import ENV_NAME, FHIRAction, FHIRObservation, FHIRState
from fhir_gym.tasks import DEFAULT_SPLIT
from fhir_gym.types import Phrasing

_OPTIONS = ("seed", "episode_id", "split", "index", "env_id", "task", "variation", "phrasing")


class FHIREnvironment(Environment[FHIRAction, FHIRObservation, FHIRState]):
    """One session: one episode at a time on its own copy of the records.

    The methods `list_splits` to `get_task_range` are OpenEnv's Task API.

    Args:
        catalog: The tasks, which all sessions share.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, catalog: TaskCatalog) -> None:
        super().__init__()
        self._catalog = catalog
        self._random = np.random.default_rng()
        self._episode: Episode | None = None
        self._state = FHIRState()
        self._closed = False

    @override
    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str | None = DEFAULT_SPLIT,
        index: int | None = None,
        env_id: str | None = None,
        task: str | None = None,
        variation: int | None = None,
        phrasing: Phrasing | None = None,
        **unknown: Any,
    ) -> FHIRObservation:
        """Start an episode. Without an index or a task, the seed draws one.

        Args:
            seed: Seed of the session's draws; None to continue them.
            episode_id: The client's name for the episode, which `state` repeats.
            split: The split: ``"train"``, ``"test"`` or ``"heldout_tasks"``; None for all variations.
            index: Index in the split, as the Task API counts.
            env_id: Env id of the task's pack, needed if the server has several packs; without a task, of the pack to
                draw from.
            task: Key of a task.
            variation: Number of the task's variation, which must belong to the split; None to draw it.
            phrasing: Index of the prompt's wording, ``brief`` or ``paraphrase``; None for the wording that each
                variation draws.
            **unknown: Refused.

        Raises:
            FhirGymError: A value is invalid.
            IndexError: The split has no such index.
            InfraError: The FHIR server does not answer, or cannot be prepared.
        """
        for name in unknown:
            raise UnknownNameError("reset option", name, _OPTIONS)
        if self._closed:
            raise FhirGymError("this session is over, because it was idle or the server stops: connect again")
        if seed is not None:
            self._random = np.random.default_rng(require_whole("seed", seed, 0))
        spec = self._choose(split, index, env_id, task, variation)
        state = FHIRState(episode_id=episode_id, env_id=spec.env_id, task=spec.task, variation=spec.variation)
        config = self._catalog.config(spec.env_id, split)
        if phrasing is not None:
            config = replace(config, phrasing=phrasing)
        self._end()  # a running FHIR server serves one episode at a time
        self._episode = Episode(config, task=spec.task, variation=spec.variation)
        text, info = self._episode.start(), self._episode.info()
        state.phrasing = info["phrasing"]
        self._state = state
        return FHIRObservation(text=text, metadata={"env_id": spec.env_id} | info)

    @override
    def step(self, action: FHIRAction, timeout_s: float | None = None, **unknown: Any) -> FHIRObservation:
        """Perform one action.

        Args:
            action: The action.
            timeout_s: Ignored: the server's own limits bound every request.
            **unknown: Ignored, as OpenEnv's clients may send more than an environment needs.

        Raises:
            FhirGymError: No episode is running.
            InfraError: The server itself failed. The episode is over and has no reward.
        """
        if self._episode is None:
            raise FhirGymError("no episode is running in this session: call reset over the same WebSocket")
        try:
            step = self._episode.step(action.text)
        except Exception as error:
            self._end()
            raise error if isinstance(error, FhirGymError) else InfraError(in_one_line(error)) from error
        self._state.step_count = step.info["step"]
        ends = {"env_id": self._state.env_id, "terminated": step.terminated, "truncated": step.truncated}
        if step.done:
            self._end()
        return FHIRObservation(text=step.observation, reward=step.reward, done=step.done, metadata=ends | step.info)

    @property
    @override
    def state(self) -> FHIRState:
        return self._state

    @override
    def get_metadata(self) -> EnvironmentMetadata:
        packs = ", ".join(self._catalog.configs)
        about = f"An agent works on health records through the API of a FHIR R4 server. Packs of tasks: {packs}."
        return EnvironmentMetadata(name=ENV_NAME, description=about, version=__version__)

    @override
    def close(self) -> None:
        self._closed = True
        self._end()

    def list_splits(self) -> list[str]:
        """Return the names of the splits that have tasks."""
        return list(self._catalog.splits)

    def num_tasks(self, split: str) -> int:
        """Return the number of variations in a split."""
        return self._catalog.count(split)

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """Return the variation at an index."""
        return self._catalog.describe(split, index)

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """Return the first `MAX_LISTED` variations of a split."""
        return self.get_task_range(split, 0, min(MAX_LISTED, self._catalog.count(split)))

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        """Return the variations of a slice.

        Raises:
            FhirGymError: The slice has more than `MAX_LISTED` variations.
        """
        indexes = range(self._catalog.count(split))[start:stop]
        if len(indexes) > MAX_LISTED:
            raise FhirGymError(f"{len(indexes):,} tasks are too many for one answer; ask for at most {MAX_LISTED:,}")
        return [self._catalog.describe(split, index) for index in indexes]

    def _choose(
        self, split: str | None, index: int | None, env_id: str | None, task: str | None, variation: int | None
    ) -> TaskSpec:
        if env_id is not None:
            require_name("environment", env_id, self._catalog.configs)
        if task is None:
            if variation is not None:
                raise FhirGymError("a variation belongs to a task: name the task too")
            if index is not None and env_id is not None:
                raise FhirGymError("give either an index or an env_id, not both")
            drawn = int(self._random.integers(self._catalog.count(split, env_id))) if index is None else index
            return self._catalog.get(split, drawn, env_id)
        if index is not None:
            raise FhirGymError("give either an index or a task, not both")
        env_id, key = self._catalog.find(env_id, task)
        config = self._catalog.config(env_id, split)
        config.choose_tasks(key)
        if variation is None:
            variation = config.variations[int(self._random.integers(len(config.variations)))]
        (variation,) = config.require_variations([variation])
        return TaskSpec(env_id, key, variation)

    def _end(self) -> None:
        if self._episode is not None:
            self._episode.close()
            self._episode = None


_SHUTDOWN_SECONDS = 2
"""Time that running requests have to finish when the server stops."""
_MAX_CONNECTIONS = 1_024


def make_app(catalog: TaskCatalog, *, max_sessions: int = 64, session_timeout: float = 600.0) -> Starlette:
    """Return OpenEnv's ASGI application for the tasks of a catalogue.

    Args:
        catalog: The tasks. The caller closes the catalogue after the server.
        max_sessions: Maximum number of sessions at the same time.
        session_timeout: Seconds without a call after which a session is closed. OpenEnv looks for idle sessions every
            5 seconds, or every quarter of this time if that is longer.

    Raises:
        FhirGymError: A limit is not positive, or sessions would share a FHIR server.
    """
    require_whole("max_sessions", max_sessions, 1)
    if not session_timeout > 0:
        raise FhirGymError(f"session_timeout must be positive, not {session_timeout}")
    if max_sessions > 1 and any(config.fhir_server for config in catalog.configs.values()):
        raise FhirGymError("a running FHIR server can serve only one episode at a time: set max_sessions to 1")
    app: Starlette = create_app(
        partial(FHIREnvironment, catalog),
        FHIRAction,
        FHIRObservation,
        env_name=ENV_NAME,
        state_cls=FHIRState,
        concurrency_config=ConcurrencyConfig(max_concurrent_envs=max_sessions, session_timeout=session_timeout),
    )
    app.add_exception_handler(FhirGymError, _refusal)
    return app


def serve(
    configs: Sequence[EpisodeConfig],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    max_sessions: int = 64,
    session_timeout: float = 600.0,
    ready: Callable[[str], object] | None = None,
) -> None:
    """Serve tasks to OpenEnv clients until the process is interrupted.

    Args:
        configs: The settings of the episodes, one config for each pack.
        host: The address to bind.
        port: The port to bind; 0 selects a free port.
        max_sessions: Maximum number of sessions at the same time.
        session_timeout: Seconds without a call after which a session is closed.
        ready: Function that is called with the server's URL as soon as clients can connect.

    Raises:
        FhirGymError: An argument is invalid, or the address cannot be bound.
    """
    with TaskCatalog(configs) as catalog, bind(host, port) as listener:
        app = make_app(catalog, max_sessions=max_sessions, session_timeout=session_timeout)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            limit_concurrency=_MAX_CONNECTIONS,
        )
        if ready is not None:
            shown = f"[{host}]" if ":" in host else host
            ready(f"http://{shown}:{listener.getsockname()[1]}")
        uvicorn.Server(config).run(sockets=[listener])


def _refusal(request: Request, error: Exception) -> JSONResponse:
    """Answer a plain HTTP request that failed; errors in WebSocket sessions are OpenEnv's own messages."""
    return JSONResponse({"detail": str(error)}, 503 if isinstance(error, InfraError) else 400)
