"""FHIRAgent/GeneticTesting-v0: ordering genetic tests, modelled on FHIR-AgentEval's genetic testing workflow.

Each module ``tNN_name.py`` contains one task or several related tasks, and lists their classes in ``TASKS``.
"""

from pathlib import Path

from fhir_gym.tasks import Pack
from fhir_gym.tasks.packs.agenteval import CALLS

__all__ = ["PACK"]

PACK = Pack(
    "FHIRAgent/GeneticTesting-v0",
    title="genetic tests: orders, reports and family history",
    package=__name__,
    paraphrases=Path(__file__).with_name("paraphrases.toml"),
    modelled_on="FHIR-AgentEval",
    held_out=("20", "21b", "22"),
    published_calls=CALLS,
)
