"""Agents: reference solutions, idle, random and scripted agents, language models, and their common protocol."""

from fhir_gym.agents.baselines import GoldAgent, IdleAgent, RandomAgent, ScriptedAgent
from fhir_gym.agents.chat import ChatAgent
from fhir_gym.agents.chat_messages import Completion, Dropped, Lookup, Message, ModelReply, Opening, Usage
from fhir_gym.agents.context_window import ContextWindow
from fhir_gym.agents.conversation import Conversation, LookupRules, make_opening
from fhir_gym.agents.factory import AGENTS, CONFIGURATIONS, Configuration, agent_names, chat_settings, make_agent
from fhir_gym.agents.local import LocalAgent
from fhir_gym.agents.protocol import (
    Agent,
    AsyncConversation,
    ConcurrentAgent,
    ContextWindowExceeded,
    EpisodeContext,
    EpisodeTruncated,
    Reply,
    StepLimitReached,
    Unfinished,
    require_agent,
)
from fhir_gym.agents.tool_sources import ToolSource
from fhir_gym.agents.transformer import Transformer

__all__ = [
    "AGENTS",
    "CONFIGURATIONS",
    "Agent",
    "AsyncConversation",
    "ChatAgent",
    "Completion",
    "ConcurrentAgent",
    "Configuration",
    "ContextWindow",
    "ContextWindowExceeded",
    "Conversation",
    "Dropped",
    "EpisodeContext",
    "EpisodeTruncated",
    "GoldAgent",
    "IdleAgent",
    "LocalAgent",
    "Lookup",
    "LookupRules",
    "Message",
    "ModelReply",
    "Opening",
    "RandomAgent",
    "Reply",
    "ScriptedAgent",
    "StepLimitReached",
    "ToolSource",
    "Transformer",
    "Unfinished",
    "Usage",
    "agent_names",
    "chat_settings",
    "make_agent",
    "make_opening",
    "require_agent",
]
