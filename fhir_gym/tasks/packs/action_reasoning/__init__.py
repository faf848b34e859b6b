"""FHIRAgent/ActionReasoning-v0: questions and orders about laboratory results, modelled on ART.

The tasks use the patients and records of an existing world and add nothing to it. `mining` finds difficult records;
`generation` turns them into tasks.
"""

from fhir_gym.tasks import Pack
from fhir_gym.tasks.packs.action_reasoning.cases import ENV_ID, ERRORS
from fhir_gym.tasks.packs.action_reasoning.file_task import read_tasks

__all__ = ["ENV_ID", "PACK"]

PACK = Pack(
    ENV_ID,
    title="action-based reasoning over laboratory results",
    package=__name__,
    world="cohort-mini",
    max_steps=8,
    modelled_on="ART",
    task_reader=read_tasks,
    error_labels=ERRORS,
)
