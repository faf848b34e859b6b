"""Agents without a model: the reference solution, random requests, a script, and an idle agent."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from fhir_gym import tasks
from fhir_gym.actions import Action, Delete, Finish, Get, Patch, Post, Put
from fhir_gym.agents.protocol import EpisodeContext
from fhir_gym.errors import ArgumentError
from fhir_gym.observations import read_response
from fhir_gym.tasks import LatestResponse
from fhir_gym.types import Json

_ENCODED_LETTERS = re.compile("(?:%[89A-F][0-9A-F])+")


class GoldAgent:
    """An agent that performs the reference solution, which reads only the server's responses.

    Args:
        plain_letters: Whether URLs contain letters such as ``é`` as they are instead of percent-encoded. Small models
            learn plain letters better.
    """

    name = "gold"

    def __init__(self, plain_letters: bool = False) -> None:
        self.settings: Mapping[str, Json] = {"plain_letters": True} if plain_letters else {}
        self._fhir = LatestResponse()
        self._solution: Generator[Action, Json, None] | None = None
        self._started = False

    def reset(self, observation: str, context: EpisodeContext) -> None:
        """Start the reference solution of the task."""
        task = context.source or tasks.get_task(context.env_id, context.task)
        params = task.variation(context.variation, context.world).params
        self._fhir = LatestResponse()
        self._solution = task.gold(params)
        self._started = False

    def act(self, observation: str) -> str:
        """Return the next action of the solution, or ``FINISH([])`` after the last action."""
        if self._solution is None:
            raise RuntimeError("act() before reset()")
        try:
            if self._started:
                self._fhir.last = read_response(observation)
                return self._text(self._solution.send(self._fhir.json()))
            self._started = True
            return self._text(next(self._solution))
        except StopIteration:
            return Finish().text()

    def _text(self, action: Action) -> str:
        if not self.settings.get("plain_letters"):
            return action.text()
        line, end, body = action.text().partition("\n")
        return _ENCODED_LETTERS.sub(lambda match: unquote(match[0]), line) + end + body

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the agent without a running episode."""
        return {"settings": self.settings, "_fhir": LatestResponse(), "_solution": None, "_started": False}


class IdleAgent:
    """An agent that finishes at once with an empty answer."""

    name = "idle"

    def __init__(self) -> None:
        self.settings: Mapping[str, Json] = {}

    def reset(self, observation: str, context: EpisodeContext) -> None:
        """Do nothing."""

    def act(self, observation: str) -> str:
        """Return ``FINISH([])``."""
        return Finish().text()


class ScriptedAgent:
    """An agent that sends its texts in order and then finishes with an empty answer.

    Args:
        script: The texts for every episode, or a function that returns a text for an observation and a step (from 0).
        name: Name of the agent in records.
    """

    def __init__(self, script: str | Sequence[str] | Callable[[str, int], str], *, name: str = "scripted") -> None:
        self.name = name
        if callable(script):
            self._script: tuple[str, ...] | Callable[[str, int], str] = script
            self.settings: Mapping[str, Json] = {"function": getattr(script, "__qualname__", type(script).__name__)}
        else:
            self._script = (script,) if isinstance(script, str) else tuple(script)
            self.settings = {"script": list(self._script)}
        self._step = 0

    def reset(self, observation: str, context: EpisodeContext) -> None:
        """Return to the first text."""
        self._step = 0

    def act(self, observation: str) -> str:
        """Return the next text."""
        step = self._step
        self._step += 1
        if not isinstance(self._script, tuple):
            return self._script(observation, step)
        return self._script[step] if step < len(self._script) else Finish().text()


_TYPES = ("Appointment", "Condition", "Observation", "Patient", "Practitioner", "Schedule", "Slot")
_REFERENCE = re.compile(r'"(?:reference|fullUrl)":"(?:http[^"]*/)?([A-Z][A-Za-z]+/[A-Za-z0-9.-]{1,64})"')
_FIRST_ID = re.compile(r'"resourceType":"([A-Z][A-Za-z]+)","id":"([A-Za-z0-9.-]{1,64})"')
_NOISE = ("GET", "POST /Patient", "FINISH", "hello", "GET http://example.org/Patient", "POST /Patient\n{", "é\x00")
_MAX_SEEN = 200


class RandomAgent:
    """An agent that sends random valid and invalid requests about the resources it has seen, then a random answer.

    Args:
        finish: Probability that the agent finishes at a step.

    Raises:
        ArgumentError: `finish` is not a probability.
    """

    name = "random"

    def __init__(self, finish: float = 0.15) -> None:
        if not 0 <= finish <= 1:
            raise ArgumentError(f"finish must be a probability from 0 to 1, not {finish}")
        self.settings: Mapping[str, Json] = {"finish": finish}
        self._finish = finish
        self._rng = random.Random(0)
        self._seen: dict[str, None] = {}

    def reset(self, observation: str, context: EpisodeContext) -> None:
        """Seed the random numbers of the episode."""
        self._rng = random.Random(context.seed)
        self._seen = {}

    def act(self, observation: str) -> str:
        """Return a random action."""
        for reference in (*_REFERENCE.findall(observation), *map("/".join, _FIRST_ID.findall(observation))):
            if len(self._seen) < _MAX_SEEN:
                self._seen[reference] = None
        rng = self._rng
        if rng.random() < self._finish:
            return self._answer().text()
        if rng.random() < 0.15:
            return rng.choice(_NOISE)
        makers: tuple[Callable[[], Action], ...] = (
            self._search, self._search, self._read, self._create, self._replace, self._patch, self._delete,
        )  # fmt: skip
        return rng.choice(makers)().text()

    def _answer(self) -> Action:
        ids = [reference.partition("/")[2] for reference in self._seen]
        return Finish(self._rng.sample(ids, min(len(ids), self._rng.randrange(3))))

    def _reference(self) -> str:
        return self._rng.choice([*self._seen, f"Patient/{self._rng.randrange(1, 10_000)}"])

    def _search(self) -> Action:
        params = self._rng.choice(({}, {"patient": self._reference()}, {"status": "booked"}, {"nonsense": "1"}))
        return Get(f"/{self._rng.choice(_TYPES)}", {**params, "_count": self._rng.randrange(1, 6)})

    def _read(self) -> Action:
        return Get(f"/{self._reference()}")

    def _create(self) -> Action:
        kind = self._rng.choice(_TYPES)
        body: dict[str, Json] = {"resourceType": self._rng.choice((kind, kind, "Nothing"))}
        if self._rng.random() < 0.5:
            body["status"] = self._rng.choice(("booked", "free", 7, None))
        return Post(f"/{kind}", json.dumps(body))

    def _replace(self) -> Action:
        reference = self._reference()
        kind, _, id = reference.partition("/")
        return Put(f"/{reference}", {"resourceType": kind, "id": id})

    def _patch(self) -> Action:
        operation = self._rng.choice(("add", "replace", "remove", "test"))
        return Patch(f"/{self._reference()}", [{"op": operation, "path": "/status", "value": "cancelled"}])

    def _delete(self) -> Action:
        return Delete(f"/{self._reference()}")
