"""Tools for tests and dry runs: a chat server with scripted replies or reference solutions, and a FHIR server.

Examples:
    >>> from fhir_gym.testing import ChatServer
    >>> with ChatServer(["GET /Patient?_count=1", "FINISH([])"]) as server:
    ...     server.base_url.startswith("http://127.0.0.1:")
    True
"""

from fhir_gym.testing.servers import (
    FAULTS,
    ChatServer,
    Fault,
    GoldOverChat,
    ReplyPolicy,
    ScriptedReply,
    random_faults,
    scripted_policy,
    serving,
)
from fhir_gym.testing.study_policies import StudyModel

__all__ = [
    "FAULTS",
    "ChatServer",
    "Fault",
    "GoldOverChat",
    "ReplyPolicy",
    "ScriptedReply",
    "StudyModel",
    "random_faults",
    "scripted_policy",
    "serving",
]
