"""Agents that each make exactly one error, to test the tasks and diagnoses of the ActionReasoning pack."""

from benchmarks.lazy_agents import wrong_acts, wrong_values
from benchmarks.lazy_agents.careful import CarefulAgent, LazyAgent, lazy_agents
from benchmarks.lazy_agents.prompt import ParsedPrompt

__all__ = ["LAZY_AGENTS", "CarefulAgent", "LazyAgent", "ParsedPrompt"]

LAZY_AGENTS = (*lazy_agents(wrong_acts), *lazy_agents(wrong_values))
"""All lazy agents, in the order of their definition."""
