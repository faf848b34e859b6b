"""FHIRAgent/Appointment-v0: the front desk of a clinic, modelled on FHIR-AgentEval's appointment workflow.

Each module ``tNN_name.py`` contains one task or several related tasks, and lists their classes in ``TASKS``.
"""

from pathlib import Path

from fhir_gym.tasks import Pack
from fhir_gym.tasks.packs.agenteval import CALLS

__all__ = ["PACK"]

PACK = Pack(
    "FHIRAgent/Appointment-v0",
    title="the front desk of a clinic: patients, insurance, slots and appointments",
    package=__name__,
    paraphrases=Path(__file__).with_name("paraphrases.toml"),
    modelled_on="FHIR-AgentEval",
    held_out=(
        *("03", "04a", "07", "08a", "08b", "09a", "09b", "11a", "11d", "12a", "12b", "12c", "12d"),
        *("13a", "14b", "15c", "16a", "17a", "17b"),
    ),
    published_calls=CALLS,
)
