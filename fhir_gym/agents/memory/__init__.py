"""Long-term memory: reflections on earlier episodes, stored in one file and retrieved during later episodes."""

from fhir_gym.agents.memory.embedders import (
    EMBEDDERS,
    Embedder,
    EmbedderRecord,
    EndpointEmbedder,
    HashedEmbedder,
    MiniLmEmbedder,
    make_embedder,
)
from fhir_gym.agents.memory.memory import (
    MEMORY_VERSION,
    OPERATIONS,
    Deduplicator,
    Memory,
    MemoryHeader,
    Provenance,
    Reflection,
    find_operation,
)

__all__ = [
    "EMBEDDERS",
    "MEMORY_VERSION",
    "OPERATIONS",
    "Deduplicator",
    "Embedder",
    "EmbedderRecord",
    "EndpointEmbedder",
    "HashedEmbedder",
    "Memory",
    "MemoryHeader",
    "MiniLmEmbedder",
    "Provenance",
    "Reflection",
    "find_operation",
    "make_embedder",
]
