"""Count the requests of the reference solution, which differ between the variations of a shift."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from threading import Lock

from fhir_gym.agents import EpisodeContext, GoldAgent
from fhir_gym.episode import Episode
from fhir_gym.tasks import Verdict, requests_answered

_MAX_KNOWN = 10_000
_known: OrderedDict[tuple[str, str, int, str], int] = OrderedDict()
"""Requests of reference solutions by pack, task, variation and hash of the world."""
_lock = Lock()


def with_reference(verdict: Verdict, episode: Episode) -> Verdict:
    """Return a verdict whose `process` says how many requests the reference solution sends in the same variation.

    The tool sequences of most tasks tell this number, and their verdicts have it already. The reference solution of
    another task is played once per variation. Only a success is compared with it, because a failed episode may have
    stopped early.
    """
    if verdict.process.reference is not None or not verdict.success or not episode.task.judges_changes:
        return verdict
    process = verdict.process.model_copy(update={"reference": reference_requests(episode)})
    return verdict.model_copy(update={"process": process})


def reference_requests(episode: Episode) -> int:
    """Return the number of requests that the reference solution sends in an episode's variation."""
    variation = episode.variation.number
    key = (episode.config.env_id, episode.task.key, variation, episode.world.manifest.content_hash)
    with _lock:
        if key in _known:
            return _known[key]
    requests = _play(episode, variation)
    with _lock:
        _known[key] = requests
        while len(_known) > _MAX_KNOWN:
            _known.popitem(last=False)
    return requests


def _play(episode: Episode, variation: int) -> int:
    """Play the reference solution on the embedded server up to its answer, so that nothing is graded."""
    config = replace(episode.config, world=episode.world, fhir_server=None, fhir_credentials=None, max_steps=None)
    agent = GoldAgent()
    with Episode(config, task=episode.task.key, variation=variation) as own:
        observation = own.start()
        context = EpisodeContext(
            config.env_id, own.task.key, variation, own.world, 0, own.step_limit, own.prompt, own.task
        )
        agent.reset(observation, context)
        while not (action := agent.act(observation)).startswith("FINISH"):
            observation = own.step(action).observation
        return requests_answered(own.requests)
