"""Serve tasks with OpenEnv, and play episodes of four tasks at the same time, each in a session of its own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from importlib.util import find_spec

from fhir_gym import worlds
from fhir_gym.agents import EpisodeContext, GoldAgent
from fhir_gym.fhir import World

ENV_ID = "FHIRAgent/Appointment-v0"
PORT = 8765


async def play(world: World, index: int) -> str:
    """Play the test variation at an index with the reference solution; return a line about it."""
    from fhir_gym.integrations.openenv import FHIRAction, FHIREnvClient

    async with FHIREnvClient(base_url=f"http://127.0.0.1:{PORT}") as env:
        result = await env.reset(split="test", index=index)
        told = result.observation.metadata
        agent = GoldAgent()  # put your own policy here; it sees only `result.observation.text`
        agent.reset("", EpisodeContext(ENV_ID, told["task"], told["variation"], world, seed=0, max_steps=0, prompt=""))
        while not result.done:
            result = await env.step(FHIRAction(text=agent.act(result.observation.text)))
        verdict = result.observation.metadata["verdict"]
        explanation = verdict["explanation"].splitlines()[0]
        return f"task {told['task']}, variation {told['variation']}: reward {result.reward}. {explanation}"


async def play_all(world: World) -> None:
    """Play four episodes at the same time."""
    for line in await asyncio.gather(*(play(world, index) for index in range(4))):
        print(line)


def main() -> None:
    """Start the server, play and stop it."""
    if find_spec("openenv") is None:
        print("This example needs OpenEnv: pip install '.[openenv]'")
        return
    command = [sys.executable, "-m", "fhir_gym", "openenv", "serve", ENV_ID, "--port", str(PORT)]
    with worlds.load("hospital-small") as world, subprocess.Popen(command, stderr=subprocess.PIPE) as server:
        assert server.stderr is not None
        try:
            if not server.stderr.readline().startswith(b"OpenEnv server at"):  # printed as soon as clients can connect
                sys.exit("the server did not start")
            asyncio.run(play_all(world))
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
