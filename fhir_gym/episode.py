"""One episode without a framework such as Gymnasium: start it, perform actions and read the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, Unpack

from typing_extensions import override

from fhir_gym.actions import GRAMMAR, Action, Invalid, to_request
from fhir_gym.episode_config import EpisodeConfig, EpisodeSettings
from fhir_gym.errors import FhirGymError, InfraError, TaskError, WrongTypeError, describe_type
from fhir_gym.fhir import FhirSession, Response, Session, World
from fhir_gym.fhir.adapters.running_server import RunningServer
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.observations import COMPACT_FORMAT, format_response
from fhir_gym.tasks import (
    BeforeView,
    FinishedEpisode,
    LoggedRequest,
    RemoteView,
    Simulation,
    TurnProtocol,
    Verdict,
    find_task,
    grade,
)
from fhir_gym.types import Json, Resource

__all__ = ["FINISHED", "Episode", "Step", "Truncation"]

FINISHED = "The episode is over."
"""The observation after ``FINISH``."""

Truncation = Literal["step_limit", "context_limit", "unfinished"]
"""Why an episode is truncated: no actions left, a full context window, or an agent that stopped without ``FINISH``."""


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one action.

    Attributes:
        observation: The text that the agent reads next.
        reward: 0 until the last step.
        terminated: Whether the agent finished.
        truncated: Whether the step limit ended the episode.
        info: ``task``, ``variation``, ``phrasing``, ``step`` (from 1), ``status`` (HTTP status; 0 if no request was
            sent) and ``invalid`` (whether the action was invalid). After the last step also ``success``, ``verdict`` as
            plain data, ``check_rewards`` (see `Verdict.check_rewards`), ``invalid_actions`` (their number in the
            episode) and ``stop_reason`` (``finished``, ``step_limit``, ``context_limit`` or ``unfinished``).
    """

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]

    @property
    def done(self) -> bool:
        """Whether this was the last step."""
        return self.terminated or self.truncated


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of an action before the episode is graded."""

    observation: str
    status: int = 0
    invalid: bool = False
    over: bool = False


class Episode(AbstractContextManager["Episode"]):
    """One task for one agent on one server.

    The start state (the world plus the records that the task adds) is prepared once. Each call of `start` restores the
    start state; the cost grows with the number of changes that the episode made.

    Args:
        env_id: Env id of the task's pack (``"FHIRAgent/Appointment-v0"``), or an `EpisodeConfig`.
        task: Key of the task in its pack.
        variation: Number of the variation.
        server: The running server `fhir_server`, if the caller uses it for several episodes; None to lock it for this
            episode only.
        settings: Fields of `EpisodeConfig`, such as ``world`` and ``grading``.

    Attributes:
        config: The settings.
        step_limit: Number of actions after which the episode is truncated.

    Raises:
        UnknownNameError: The pack, task, world, grading or reward rule does not exist.
        TaskError: The variation does not exist or is not in `split`, or the phrasing does not exist.
        InfraError: The FHIR server does not answer, is in use, or cannot be prepared.

    Examples:
        >>> import fhir_gym
        >>> episode = fhir_gym.Episode("FHIRAgent/Appointment-v0", task="01", variation=0)
        >>> prompt = episode.start()
        >>> step = episode.step("FINISH([])")
        >>> step.terminated, step.reward, episode.verdict().success
        (True, 0.0, False)
        >>> episode.close()
    """

    def __init__(
        self,
        env_id: str | EpisodeConfig,
        *,
        task: str,
        variation: int = 0,
        server: RunningServer | None = None,
        **settings: Unpack[EpisodeSettings],
    ) -> None:
        self.config = config = EpisodeConfig.of(env_id, settings, ("task", "variation", "server"))
        self.task = find_task(config.task_set(), task)
        config.choose_tasks(task)  # refuses a task that is not held out, if the split requires it
        config.require_support([task])
        self.step_limit = config.step_limit_of(self.task)
        if server is None:
            config.one_server()  # several servers are an error
        (number,) = config.require_variations([variation])
        self.world, self._owns_world = config.resolve_world()
        self.variation = self.task.variation(number, self.world, config.phrasing)
        # Local and remote sessions share a protocol, but their checkpoints have different types.
        self._session = self._prepared(server)
        self._origin = self._session.checkpoint()
        self._state: str = "new"
        self._steps = self._invalid_actions = 0
        self._answer: list[Json] | None = None
        self._log: list[LoggedRequest] = []
        self._transcript: list[tuple[str, str]] = []
        self._dialogue: TurnProtocol | None = None
        self._verdict: Verdict | None = None
        self._simulation: Simulation | None = None

    def _prepared(self, server: RunningServer | None) -> FhirSession:
        """Return a session with the start state."""
        config = self.config
        session = _open_session(self.world, config, server)
        try:
            self.variation.load_into(session)
        except FhirError as error:
            session.close()
            error_type = InfraError if config.fhir_server else TaskError
            which = f"task {self.task.key}, variation {self.variation.number}"
            raise error_type(f"{which} cannot be prepared: {error.diagnostics}") from error
        except BaseException:
            with suppress(InfraError):  # the first failure is the one to report
                session.close()
            raise
        return session

    @property
    def prompt(self) -> str:
        """The request to the agent, without the action format."""
        return self.variation.prompt

    @property
    def action_format(self) -> str:
        """The server's base URL, the step limit and the syntax of actions."""
        base_url, limit = self._session.base_url, self.step_limit
        dialogue = self.task.turn_protocol(self.config.grading)
        if dialogue is not None:
            return dialogue.action_format(base_url, limit)
        compact = f" {COMPACT_FORMAT}" if self.config.observations == "compact" else ""
        return (
            f"The FHIR R4 server's base URL is {base_url}. You have at most {limit} actions.{compact}\n{GRAMMAR.help()}"
        )

    @property
    def requests(self) -> tuple[LoggedRequest, ...]:
        """The requests that the agent has sent since the start, with the server's responses."""
        return tuple(self._log)

    @property
    def session(self) -> FhirSession:
        """The session on the server, for code that shows what the agent did. A write would change the episode."""
        return self._session

    @property
    def simulation(self) -> Simulation | None:
        """What happened while the agent worked; None for tasks that simulate nothing."""
        return self._simulation

    def start(self) -> str:
        """Start or restart the episode from its start state.

        Returns:
            The first observation: the prompt and the action format.
        """
        if self._state == "closed":
            raise FhirGymError("the episode is closed")
        if self._state != "new":
            self._session.rollback(self._origin)
        self._steps = self._invalid_actions = 0
        self._answer, self._log, self._transcript, self._verdict = None, [], [], None
        self._dialogue = self.task.turn_protocol(self.config.grading)
        if self.task.is_live:
            self._simulation = self.task.simulate(self.variation.params, self._session)
        self._state = "running"
        return f"{self.prompt}\n\n{self.action_format}"

    def step(self, action: str | Action | Invalid) -> Step:
        """Perform one action.

        Args:
            action: The agent's text, or the result of `GRAMMAR.from_tool_call` for a tool call.

        Returns:
            The result. Its observation is a status line such as ``HTTP 200 OK`` and the body, or the compact form of
            both; `fhir_gym.observations.read_response` parses it. For an invalid action, the observation is the reason
            and a valid example.

        Raises:
            FhirGymError: The episode has not started, or is over.
            WrongTypeError: The action is not a text.
            InfraError: The server itself failed. The episode is over and has no reward.
        """
        if not isinstance(action, str | Action | Invalid):
            raise WrongTypeError(
                f"an action must be a text such as 'GET /Patient?_count=1', not {describe_type(action)}"
            )
        if self._state != "running":
            raise FhirGymError(f"no step is possible: the episode is {self._state}" + _ADVICE.get(self._state, ""))
        self._steps += 1
        text = self._text(action)
        outcome = self._act(action) if self._dialogue is None else self._act_in_dialogue(self._dialogue, text)
        self._invalid_actions += outcome.invalid
        self._transcript.append((text, outcome.observation))
        truncated = not outcome.over and self._steps >= self.step_limit
        info = self.info() | {"status": outcome.status, "invalid": outcome.invalid}
        done = outcome.over or truncated
        reward = self._end(info, "finished" if outcome.over else "step_limit") if done else 0.0
        return Step(outcome.observation, reward, outcome.over, truncated, info)

    def truncate(self, stop_reason: Truncation = "context_limit") -> Step:
        """End and grade the episode now, as the step limit does. A full context window is a reason to call this.

        Args:
            stop_reason: The reason for `Step.info`.

        Raises:
            FhirGymError: The episode has not started, or is over.
        """
        if self._state != "running":
            raise FhirGymError(f"the episode cannot be truncated: it is {self._state}")
        info = self.info()
        return Step(FINISHED, self._end(info, stop_reason), False, True, info)

    def _end(self, info: dict[str, Any], stop_reason: str) -> float:
        """Grade the episode, add the result to `info` and return the reward."""
        self._state = "over"
        self._verdict = self._grade()
        info |= {
            "success": self._verdict.success,
            "verdict": self._verdict.model_dump(mode="json"),
            "check_rewards": self._verdict.check_rewards(),
            "invalid_actions": self._invalid_actions,
            "stop_reason": stop_reason,
        }
        return self._verdict.reward(self.config.reward)

    def info(self) -> dict[str, Any]:
        """Return `Step.info` for the current step."""
        return {
            "task": self.task.key,
            "variation": self.variation.number,
            "phrasing": self.variation.phrasing,
            "step": self._steps,
            "status": 0,
            "invalid": False,
        }

    def verdict(self) -> Verdict:
        """Return the grading of the episode.

        Raises:
            FhirGymError: The episode is not over. Earlier grading would change the server that the agent sees.
        """
        if self._verdict is None:
            raise FhirGymError(f"there is no verdict yet: the episode is {self._state}")
        return self._verdict

    def close(self) -> None:
        """Close the server. Further calls do nothing."""
        if self._state == "closed":
            return
        self._state = "closed"
        self._session.close()
        if self._owns_world:
            self.world.close()

    @override
    def __exit__(self, *_: object) -> None:
        self.close()

    def _text(self, action: str | Action | Invalid) -> str:
        """Return an action as text. URLs of tool calls become absolute."""
        if isinstance(action, str):
            return action
        if isinstance(action, Invalid):
            return ""
        url = action.url if "://" in action.url else f"{self._session.base_url}/{action.url.lstrip('/')}"
        return replace(action, url="" if action.kind == "FINISH" else url).text()

    def _act(self, action: str | Action | Invalid) -> _Outcome:
        """Perform one action of the standard grammar."""
        parsed = GRAMMAR.parse(action) if isinstance(action, str) else action
        if isinstance(parsed, Action) and parsed.kind == "FINISH":
            self._answer = parsed.answer or []
            return _Outcome(FINISHED, over=True)
        response = self._send(parsed)
        if isinstance(response, Invalid):
            return _Outcome(response.text(), invalid=True)
        now = self._simulation.now if self._simulation else None
        return _Outcome(format_response(response, now, self.config.observations), response.status)

    def _act_in_dialogue(self, dialogue: TurnProtocol, text: str) -> _Outcome:
        """Perform one action in a task with its own action syntax."""
        heard = dialogue.parse(text)
        if heard.over:
            self._answer = heard.answer
            return _Outcome(FINISHED, invalid=heard.invalid, over=True)
        sent = None if heard.action is None else self._send(heard.action)
        response = None if isinstance(sent, Invalid) else sent
        status = response.status if response else 0
        return _Outcome(dialogue.reply(response), status, invalid=heard.invalid)

    def _send(self, action: Action | Invalid) -> Response | Invalid:
        """Return the server's response, or the reason why no request was sent."""
        try:
            if isinstance(action, Invalid):
                return self._refuse(action)
            request = to_request(action, self._session.base_url)
            if isinstance(request, Invalid):
                return self._refuse(request)
            simulation = self._simulation
            response: Response = simulation.answer(action, request) if simulation else self._session.handle(request)
        except BaseException:
            # The server's state is unknown after a failure or Ctrl-C, so the episode cannot continue.
            self._state = "broken"
            raise
        self._log.append(LoggedRequest(action, request, response))
        return response

    def _refuse(self, invalid: Invalid) -> Invalid:
        """Return the reason why no request was sent; time passes nevertheless."""
        if self._simulation:
            self._simulation.pass_time()
        return invalid

    def _grade(self) -> Verdict:
        changes = tuple(self._session.changes(self._origin))
        setup, session = self.variation.setup, self._session
        after = RemoteView(session, setup, changes) if self.config.fhir_server else session
        end = FinishedEpisode(
            answer=self._answer,
            requests=tuple(self._log),
            before=BeforeView(self.world, setup, after, changes),
            after=after,
            changes=changes,
            world=self.world,
            base_url=self._session.base_url,
            said=tuple(self._transcript),
            timeline=self._simulation.timeline if self._simulation else (),
        )
        open_scratch = self._start_state_with if isinstance(session, Session) else None
        return grade(self.task, self.variation, end, self.config.grading, open_scratch=open_scratch)

    @contextmanager
    def _start_state_with(self, records: Sequence[Resource]) -> Iterator[Session]:
        """Yield the session as it was at the start, with additional records. Afterwards, it is as it was before."""
        session = self._session
        assert isinstance(session, Session)
        with session.returned_to(self._origin):
            session.load(records, keep_next_id=True)
            yield session


_RESTART = "; call start() to restart it"
_ADVICE = {"new": "; call start() first", "over": _RESTART, "broken": _RESTART}


def _open_session(world: World, config: EpisodeConfig, server: RunningServer | None) -> FhirSession:
    if server is not None:
        return server.session(world)
    url = config.one_server()
    if url is None:
        return world.session(base_url=config.base_url)
    from fhir_gym.fhir.adapters.remote import RemoteSession

    return RemoteSession(url, world, credentials=config.fhir_credentials)
