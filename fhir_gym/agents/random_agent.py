"""An agent that acts at random. It gives a lower bound for scores and tests the robustness of the server."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping

from fhir_gym.actions import Action, Delete, Finish, Get, Patch, Post, Put
from fhir_gym.agents.protocol import EpisodeContext
from fhir_gym.errors import FhirGymError
from fhir_gym.types import Json

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
        FhirGymError: `finish` is not a probability.
    """

    name = "random"

    def __init__(self, finish: float = 0.15) -> None:
        if not 0 <= finish <= 1:
            raise FhirGymError(f"finish must be a probability from 0 to 1, not {finish}")
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
        for found in (*_REFERENCE.findall(observation), *map("/".join, _FIRST_ID.findall(observation))):
            if len(self._seen) < _MAX_SEEN:
                self._seen[found] = None
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
