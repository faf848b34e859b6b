"""Agents: the reference solution, the idle one, the random one, the scripted one, and what all have in common."""

from fhir_gym.agents.factory import AGENTS, make_agent
from fhir_gym.agents.gold import GoldAgent
from fhir_gym.agents.idle import IdleAgent
from fhir_gym.agents.protocol import Agent, Context, Reply
from fhir_gym.agents.random_agent import RandomAgent
from fhir_gym.agents.scripted import ScriptedAgent

__all__ = [
    "AGENTS",
    "Agent",
    "Context",
    "GoldAgent",
    "IdleAgent",
    "RandomAgent",
    "Reply",
    "ScriptedAgent",
    "make_agent",
]
