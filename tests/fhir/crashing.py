"""A run on a running server that its process may not survive: an agent that writes, and the run itself."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from fhir_gym import run
from fhir_gym.agents import EpisodeContext, GoldAgent
from fhir_gym.fhir import World
from fhir_gym.fhir.adapters import remote
from fhir_gym.rollouts import write_rollouts

ENV_ID = "FHIRAgent/Appointment-v0"
FEW_TASKS = ("01", "11a")
TASKS = (*FEW_TASKS, "02b", "15a")
VARIATIONS = (0, 1)
SETTLING = 0.05  # the server finishes each write in a few milliseconds
URN = "urn:uuid:0a0b0c0d-1111-4222-8333-000000000001"


def action(verb: str, url: str, body: object = None, header: str = "") -> str:
    lines = [f"{verb} {url}", header, "" if body is None else json.dumps(body)]
    return "\n".join(line for line in lines if line)


def _patient(family: str, **more: object) -> dict[str, object]:
    return {"resourceType": "Patient", "name": [{"family": family}], **more}


def _entry(method: str, url: str, resource: object = None, **more: object) -> dict[str, object]:
    return {"request": {"method": method, "url": url}, **({"resource": resource} if resource else {}), **more}


def writes(world: World) -> list[str]:
    """Return writes of all kinds."""
    first, second, third = world.ids("Patient")[:3]
    observation, other = world.ids("Observation")[:2]
    tag = {"resourceType": "Parameters", "parameter": [{"name": "meta", "valueMeta": {"tag": [{"code": "crash"}]}}]}
    note = {"resourceType": "Observation", "status": "final", "code": {"text": "x"}, "subject": {"reference": URN}}
    transaction = [
        _entry("POST", "Patient", _patient("Both"), fullUrl=URN),
        _entry("POST", "Observation", note),
        _entry("PUT", f"Patient/{first}", _patient("Changed", id=first)),
        _entry("DELETE", f"Observation/{observation}"),
    ]
    batch = [
        _entry("POST", "Basic", {"resourceType": "Basic", "code": {"text": "x"}}),
        _entry("PUT", f"Patient/{second}", _patient("Changed", id=second)),
    ]
    return [
        action("POST", "/Patient", _patient("Created")),
        action("POST", "/Patient", _patient("Once"), "If-None-Exist: family=Once"),
        action("PUT", "/Patient/made-here", _patient("Placed", id="made-here")),
        action("PUT", "/Patient?family=Unheard", _patient("Unheard")),
        action("PUT", f"/Patient/{first}", _patient("Changed", id=first)),
        action("PATCH", f"/Patient/{second}", [{"op": "add", "path": "/active", "value": False}]),
        action("DELETE", f"/Observation/{observation}"),
        action("DELETE", f"/Observation?_id={other}"),
        action("POST", f"/Patient/{third}/$meta-add", tag),
        action("POST", "/", {"resourceType": "Bundle", "type": "transaction", "entry": transaction}),
        action("POST", "/", {"resourceType": "Bundle", "type": "batch", "entry": batch}),
    ]


class Scribbler(GoldAgent):
    """Solves variations with even numbers; in the others it only writes, in an order that the episode decides."""

    name = "scribbler"

    def reset(self, observation: str, context: EpisodeContext) -> None:
        super().reset(observation, context)
        self._writes: list[str] | None = None
        if context.variation % 2:
            self._writes = writes(context.world)
            Random(f"{context.task} {context.variation}").shuffle(self._writes)

    def act(self, observation: str) -> str:
        if self._writes is None:
            return super().act(observation)
        return self._writes.pop() if self._writes else "FINISH([])"


def play(world: World, url: str | None, out: Path, tasks: Sequence[str]) -> None:
    """Run the episodes that a file does not contain yet."""
    choice: Any = {"tasks": tasks, "variations": VARIATIONS, "world": world, "fhir_server": url, "max_steps": 20}
    write_rollouts(out, run(ENV_ID, Scribbler(), resume=out, **choice))


def play_in_process(world: Path, url: str, out: Path, tasks: Sequence[str], state: str) -> None:
    """Call `play` in a process of its own."""
    os.environ["FHIR_GYM_STATE"] = state
    remote.SETTLING = SETTLING
    with World.open(world) as opened:
        play(opened, url, out, tasks)
