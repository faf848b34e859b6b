"""A resources server for NeMo Gym's Gymnasium agent. Needs the extra ``nemo-gym`` (Python 3.13)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import Field
from starlette.requests import Request
from typing_extensions import override

from fhir_gym.errors import missing_extra, pip_install

with missing_extra(f"the integration with NeMo Gym needs: {pip_install('nemo-gym')}"):
    from nemo_gym.base_resources_server import BaseResourcesServerConfig
    from nemo_gym.openai_utils import NeMoGymResponse
    from nemo_gym.server_utils import SESSION_ID_KEY
    from resources_servers.gymnasium import GymnasiumServer, extract_text

from fhir_gym.agents.prompts import system_prompt
from fhir_gym.tasks import DEFAULT_SPLIT
from fhir_gym.text_episode import TextEpisode, episode_metrics

__all__ = ["FHIRResourcesServer", "FHIRResourcesServerConfig", "dataset_lines"]


class FHIRResourcesServerConfig(BaseResourcesServerConfig):
    """The options of the server.

    Attributes:
        settings: Fields of `EpisodeConfig`; the default split is ``train``.
    """

    settings: dict[str, Any] = Field(default_factory=dict)


class FHIRResourcesServer(GymnasiumServer):
    """Plays the episodes that the lines of a dataset name. A failure of the FHIR server fails the rollout's request."""

    config: FHIRResourcesServerConfig
    ray_enabled = False

    @override
    def setup_webserver(self) -> Any:
        app = super().setup_webserver()
        app.post("/close")(self._close)
        return app

    async def _close(self, request: Request) -> None:
        await self.close_session(request.session.get(SESSION_ID_KEY))

    @override
    async def reset(self, metadata: dict[str, Any], session_id: str | None = None) -> tuple[str, dict[str, Any]]:
        settings = {"split": DEFAULT_SPLIT, **self.config.settings}
        episode = self.session_state[session_id] = await asyncio.to_thread(TextEpisode, metadata, settings)
        _, task = await asyncio.to_thread(episode.start)
        return str(task["content"]), {"supports_explicit_close": True}

    @override
    async def step(
        self, action: NeMoGymResponse, metadata: dict[str, Any], session_id: str | None = None
    ) -> tuple[str | None, float, bool, bool, dict[str, Any]]:
        step = await asyncio.to_thread(self.session_state[session_id].step, extract_text(action))
        info = episode_metrics(step) if step.done else {}
        return None if step.done else step.observation, step.reward, step.terminated, step.truncated, info

    @override
    def _cleanup_session(self, session_id: str | None) -> None:
        if (episode := self.session_state.pop(session_id, None)) is not None:
            episode.close()


def dataset_lines(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the lines of NeMo Gym's dataset for rows of `fhir_gym.rows`."""
    system = {"role": "system", "content": system_prompt("text")}
    for row in rows:
        yield {"responses_create_params": {"input": [system]}, **row}


if __name__ == "__main__":
    FHIRResourcesServer.run_webserver()
