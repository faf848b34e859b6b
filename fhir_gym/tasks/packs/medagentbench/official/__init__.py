"""The official MedAgentBench: its task files, its conversation rules and its verdict, including their quirks.

This package re-implements the benchmark from a description of its behaviour. An episode gets the verdict that the
benchmark itself would give.
"""

from fhir_gym.tasks.packs.medagentbench.official.conversation import AgentTurn, Message, OfficialConversation
from fhir_gym.tasks.packs.medagentbench.official.task_file import OfficialCase, read_cases, read_functions
from fhir_gym.tasks.packs.medagentbench.official.verdict import OfficialVerdict, judge

__all__ = [
    "AgentTurn",
    "Message",
    "OfficialCase",
    "OfficialConversation",
    "OfficialVerdict",
    "judge",
    "read_cases",
    "read_functions",
]
