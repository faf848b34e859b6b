"""FHIRAgent/MedAgentBench-v0: ten tasks of an internist's day, modelled on MedAgentBench's task classes.

Each variation draws its own wording, patients and values. Laboratory codes, drug codes, dose rules, time windows and
answer forms come from MedAgentBench. The package `official` reads the benchmark's own task files and grades them.
"""

from fhir_gym.tasks import Pack
from fhir_gym.tasks.packs.medagentbench.internist_task import ENV_ID
from fhir_gym.tasks.packs.medagentbench.official.task import read_tasks

__all__ = ["ENV_ID", "PACK"]

PACK = Pack(
    ENV_ID,
    title="an internist's day: look up, record and order",
    package=__name__,
    max_steps=8,
    modelled_on="MedAgentBench",
    task_reader=read_tasks,
    reads_functions=True,
)
