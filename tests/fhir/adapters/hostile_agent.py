"""An agent that sends random and hostile requests to a server elsewhere, in a process that may be killed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

from benchmarks._hostile import HostileActions, SampleRecords, json_paths, replaced
from fhir_gym.actions import Action, parse, to_request
from fhir_gym.errors import InfraError
from fhir_gym.fhir import Request, World
from fhir_gym.fhir.adapters import remote
from fhir_gym.fhir.adapters.remote import RemoteSession
from fhir_gym.types import Json
from tests.fhir.adapters.hostile_writes import FORM, HOSTILE
from tests.fhir.writing import FHIR, JSON_PATCH, patient
from tests.property.test_anything import TEMPLATES

_CONTENT_TYPES = (FHIR, JSON_PATCH, FORM, f"{FHIR}; x=xml", "application/fhir+xml", "text/plain", "", "\u00e4")
_QUERIES = (
    *("_format=html", "_format=xml", "_elements=id&_summary=true", "_method=DELETE", "_expunge=true", "family=Alba"),
    *("_id=S1", "family=", "_count=0", "%zz", "_summary=text", "nonsense=1", "_pretty=true"),
)
_PLACES = (
    "./",
    "../",
    "/",
    "%2F",
    ";x=y",
    "\t",
    "\u0430",
    "\x00",
    "#",
    "?",
    "$expunge",
    "_history/1",
    "%53",
    " ",
    "S2/",
)
_HEADERS = (
    *(("accept", "text/html"), ("prefer", "return=minimal"), ("if-none-exist", "family=Alba"), ("if-match", "W/1")),
    *(("if-none-exist", "_id=S1"), ("x-http-method-override", "DELETE"), ("accept", "application/fhir+xml")),
)


class HostileRequests:
    """Draws requests from the fuzz corpus, and hostile requests with further changes.

    Args:
        rng: Source of randomness.
        world: The world of the server.
        base_url: The base URL of the server.
    """

    def __init__(self, rng: Random, world: World, base_url: str) -> None:
        self.rng, self.base_url = rng, base_url
        self._actions = HostileActions(rng, SampleRecords(world))

    def draw(self) -> Request:
        """Return the next request."""
        while self.rng.random() < 0.3:
            action = parse(self._actions.text())
            request = to_request(action, self.base_url) if isinstance(action, Action) else None
            if isinstance(request, Request):
                return request
        if self.rng.random() < 0.3:
            request = self.rng.choice([*HOSTILE.values()])
        else:
            method, path, content_type, body = self.rng.choice(TEMPLATES)
            request = Request(
                method, path, "", {"content-type": content_type}, json.dumps(self._twisted(body)).encode()
            )
        changes: Sequence[Callable[[Request], Request]] = (
            self._path,
            self._query,
            self._header,
            self._method,
            self._body,
        )
        for _ in range(self.rng.choice((0, 0, 0, 1, 1, 2))):
            request = self.rng.choice(changes)(request)
        return request

    def _twisted(self, body: Json) -> Json:
        """Change the shape of some values: one for a list, a list for one, or something else."""
        rng = self.rng
        for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
            paths = json_paths(body)
            path = rng.choice([path for path in paths if "request" in path or "entry" in path] or paths)
            value = body
            for step in path:
                value = value[step]
            if isinstance(value, list) and value and rng.random() < 0.5:
                twisted: Json = value[0]
            else:
                other: Json = rng.choice(
                    ("Patient/S1", "./Patient/S2", "DELETE", "put", {}, None, rng.choice(TEMPLATES)[3])
                )
                twisted = rng.choice(([value], [value, value], [[value]], {"a": value}, other))
            body = replaced(body, path, twisted)
        return body

    def _path(self, request: Request) -> Request:
        at = self.rng.randrange(len(request.path) + 1)
        return replace(request, path=request.path[:at] + self.rng.choice(_PLACES) + request.path[at:])

    def _query(self, request: Request) -> Request:
        return replace(request, query="&".join(filter(None, (request.query, self.rng.choice(_QUERIES)))))

    def _header(self, request: Request) -> Request:
        header = self.rng.choice((("content-type", self.rng.choice(_CONTENT_TYPES)), self.rng.choice(_HEADERS)))
        return replace(request, headers={**request.headers, header[0]: header[1]})

    def _method(self, request: Request) -> Request:
        return replace(request, method=self.rng.choice(("POST", "PUT", "PATCH", "DELETE", "GET", "post", "PURGE")))

    def _body(self, request: Request) -> Request:
        """Repeat a key of the body, or change the place in it."""
        text = request.body.decode("utf-8", "replace")
        key = re.search(r'"(method|url|id|entry|request|type)": *("[^"]*"|\{\})', text)
        if key and self.rng.random() < 0.5:
            value = json.dumps(self.rng.choice(("PUT", "DELETE", "Patient/S1", "S2", "batch", "Patient?_id=S1")))
            return replace(request, body=text.replace(key[0], f'{key[0]},"{key[1]}":{value}', 1).encode())
        place = self.rng.choice(_PLACES).replace("\x00", "\\u0000").replace("\t", "\\t")
        return replace(request, body=text.replace("Patient/S1", f"Patient/{place}S1").encode())


def play(world: World, url: str, seed: int, requests: int, **settings: Any) -> None:
    """Send random requests after a start state, and undo them; an error of the server ends the episode."""
    hostile = HostileRequests(Random(seed), world, url)
    session = RemoteSession(url, world, **settings)
    try:
        session.load([patient("prepared")])
        for _ in range(requests):
            session.handle(hostile.draw())
    finally:
        session.close()


def play_in_children(pipe: Connection, world: Path, url: str, state: str) -> None:
    """Play an episode in a child process for each seed from a pipe; tell the child's id, and when it has ended."""
    os.environ["FHIR_GYM_STATE"] = state
    remote.SETTLING = 0.01
    while (asked := pipe.recv()) is not None:
        if child := os.fork():
            pipe.send(child)
            pipe.send(os.waitpid(child, 0)[1])
            continue
        try:
            pipe.recv()  # until the parent is ready
            with World.open(world) as opened:
                play(opened, url, *asked)
        except InfraError:
            os._exit(1)
        finally:
            os._exit(0)
