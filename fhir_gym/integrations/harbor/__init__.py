"""Tasks for Harbor: folders that Harbor runs, and the server of one episode that runs beside the agent's container.

The agent reaches this server by HTTP only. It has no route to the verdict: Harbor's collect hook asks for the verdict
inside the server's container, over a Unix socket, after the agent's container has stopped.
"""

from fhir_gym.integrations.harbor.server import (
    EpisodeTools,
    ServedEpisode,
    make_episode_app,
    open_recorder,
    serve_episode,
)
from fhir_gym.integrations.harbor.task_folders import (
    fetch_result,
    folder_name,
    task_files,
    write_dataset,
    write_task_folders,
    write_verdict_files,
)

__all__ = [
    "EpisodeTools",
    "ServedEpisode",
    "fetch_result",
    "folder_name",
    "make_episode_app",
    "open_recorder",
    "serve_episode",
    "task_files",
    "write_dataset",
    "write_task_folders",
    "write_verdict_files",
]
