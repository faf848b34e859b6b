"""The FHIR tools as an environment of TRL's `GRPOTrainer`."""

from __future__ import annotations

from typing import Any, Unpack

from fhir_gym.actions import GRAMMAR
from fhir_gym.agents import EpisodeContext, make_opening
from fhir_gym.agents.context_window import shorten
from fhir_gym.arguments import parse_phrasing
from fhir_gym.episode import Episode, Step
from fhir_gym.episode_config import EpisodeSettings
from fhir_gym.errors import FhirGymError, InfraError, TrainingError
from fhir_gym.training.curriculum import EpisodeChoice
from fhir_gym.training.diagnostics import TrainingEpisode
from fhir_gym.training.grpo.episodes import OpenConfigs

_OVER = "the episode is over: reply with a short text and call no more tools"
_FAILED = "The server failed, so the episode is over. Reply with a short text and call no more tools."


class FHIRToolEnv:
    """An environment of TRL (``environment_factory``) that plays episodes by tool calls.

    TRL offers the public methods, except `reset` and `get_reward`, to the model as tools. They are the tools of the
    chat and local agents with ``protocol="tools"``. An instance plays one episode after another.

    A call with an invalid argument value is an invalid action and counts as a step. TRL itself refuses unknown tools
    and unknown argument names, so such calls do not count as steps, although they count for those agents.

    Args:
        configs: Settings and open worlds that several instances share; None to make them from `settings`.
        observation_chars: Maximum number of characters of an observation, or None for no limit. TRL silently drops a
            tool result that exceeds its token limit, so set a limit that fits.
        settings: Fields of `EpisodeConfig`, such as ``reward`` and ``max_steps``; without `fhir_server`, because a
            running server serves one episode at a time, and the instances of a batch play at the same time. The default
            split is the training split.

    Raises:
        TrainingError: `fhir_server` is set.

    Examples:
        >>> env = FHIRToolEnv(reward="dense")
        >>> text = env.reset(env_id="FHIRAgent/Appointment-v0", task="02a", variation=0)
        >>> env.searchResources("Patient", {"_summary": "count"}).splitlines()[0]
        'HTTP 200 OK'
        >>> env.finish([])
        'The episode is over.'
        >>> env.get_reward()
        0.0
    """

    def __init__(
        self,
        configs: OpenConfigs | None = None,
        *,
        observation_chars: int | None = None,
        **settings: Unpack[EpisodeSettings],
    ) -> None:
        if settings.get("fhir_server") is not None:
            raise TrainingError("FHIRToolEnv cannot use a running FHIR server: it serves one episode at a time")
        self._configs = configs or OpenConfigs(**settings)
        self._observation_chars = observation_chars
        self._episode: Episode | None = None
        self._choice = EpisodeChoice("", "", 0)
        self._result: TrainingEpisode | None = None

    @property
    def result(self) -> TrainingEpisode | None:
        """The latest episode; None before its end."""
        return self._result

    def reset(self, env_id: str, task: str, variation: int, phrasing: int | str | None = None, **row: Any) -> str:
        """Start an episode and return its prompt.

        Args:
            env_id: The pack.
            task: Key of the task.
            variation: Number of the variation.
            phrasing: Index of the prompt wording, also as text, ``brief`` or ``paraphrase``; None for the one that the
                variation has drawn.
            row: The other columns of the dataset; not used.

        Raises:
            UnknownNameError: The pack or task does not exist.
            ArgumentError: The variation does not exist or is not in the split, or the phrasing does not exist.
        """
        self._close_episode()
        wording = parse_phrasing(phrasing) if isinstance(phrasing, str) else phrasing
        self._result, self._choice = None, EpisodeChoice(env_id, task, variation, wording)
        config, _ = self._configs.of(self._choice)
        try:
            self._episode = episode = Episode(config, task=task, variation=variation)
            observation = episode.start()
        except InfraError as error:
            return self._fail(error)
        return str(make_opening("tools", observation, EpisodeContext.of(episode)).messages[-1]["content"])

    def get_reward(self) -> float | None:
        """Return the reward of the episode; None after an infrastructure failure, so that TRL excludes the episode.

        An episode that the model has not finished is graded as it is; its `result` has the stop reason ``unfinished``.
        """
        if self._episode is not None:
            try:
                self._end(self._episode.truncate(), "unfinished")
            except InfraError as error:
                self._fail(error)
        return None if self._result is None else self._result.reward

    def searchResources(
        self, resourceType: str | None = None, params_json: dict[str, Any] | None = None, pageUrl: str | None = None
    ) -> str:
        """Search resources of one type; returns a Bundle.

        Args:
            resourceType: FHIR R4 resource type, such as Patient.
            params_json: Search parameters: {"family": "Lee", "_count": 50}; a list repeats a parameter.
            pageUrl: The next link of an earlier Bundle, instead of the other arguments.
        """
        return self._act("searchResources", resourceType=resourceType, params_json=params_json, pageUrl=pageUrl)

    def getResourceById(self, resourceType: str, resourceId: str) -> str:
        """Read one resource.

        Args:
            resourceType: FHIR R4 resource type, such as Patient.
            resourceId: Logical id of the resource.
        """
        return self._act("getResourceById", resourceType=resourceType, resourceId=resourceId)

    def createResource(self, resourceType: str, body_json: dict[str, Any], ifNoneExist: str | None = None) -> str:
        """Create a resource; the server gives it an id.

        Args:
            resourceType: FHIR R4 resource type, such as Patient.
            body_json: The resource. References in it are relative, such as Patient/12.
            ifNoneExist: Search query: create the resource only if no resource matches.
        """
        return self._act("createResource", resourceType=resourceType, body_json=body_json, ifNoneExist=ifNoneExist)

    def updateResource(
        self, resourceType: str, resourceId: str, body_json: dict[str, Any], ifMatchVersion: str | None = None
    ) -> str:
        """Replace a complete resource.

        Args:
            resourceType: FHIR R4 resource type, such as Patient.
            resourceId: Logical id of the resource.
            body_json: The complete new resource. References in it are relative, such as Patient/12.
            ifMatchVersion: Update only this version.
        """
        return self._act(
            "updateResource",
            resourceType=resourceType,
            resourceId=resourceId,
            body_json=body_json,
            ifMatchVersion=ifMatchVersion,
        )

    def deleteResource(self, resourceType: str, resourceId: str) -> str:
        """Delete a resource.

        Args:
            resourceType: FHIR R4 resource type, such as Patient.
            resourceId: Logical id of the resource.
        """
        return self._act("deleteResource", resourceType=resourceType, resourceId=resourceId)

    def finish(self, answer: list[Any]) -> str:
        """End the task with your answer.

        Args:
            answer: The answer as a JSON list; [] for an empty answer.
        """
        return self._act("finish", answer=answer)

    def _act(self, tool: str, **arguments: Any) -> str:
        if self._episode is None:
            raise FhirGymError(_OVER)  # TRL shows the message to the model
        present = {name: value for name, value in arguments.items() if value is not None}
        try:
            step = self._episode.step(GRAMMAR.from_tool_call(tool, present))
        except InfraError as error:
            return self._fail(error)
        if step.done:
            self._end(step)
        limit = self._observation_chars
        return step.observation if limit is None else shorten(step.observation, limit)

    def _end(self, step: Step, stop_reason: str = "") -> None:
        self._result = TrainingEpisode.of_info(self._choice.env_id, step.reward, step.info, stop_reason)
        self._close_episode()

    def _fail(self, error: InfraError) -> str:
        name, variation = self._choice.name, self._choice.variation
        self._result = TrainingEpisode(name, variation, None, None, "infra_error", error=str(error))
        self._close_episode()
        return _FAILED

    def _close_episode(self) -> None:
        if self._episode is not None:
            self._episode.close()
        self._episode = None
