"""FHIRAgent/Shift-v0: long work at the desk of a clinic, with many requests in one episode.

Each module ``tNN_name.py`` contains one kind of request and lists its tasks in ``TASKS``.
"""

from fhir_gym.tasks import Pack

__all__ = ["PACK"]

PACK = Pack("FHIRAgent/Shift-v0", title="a clinic's desk: many requests in one episode", package=__name__, max_steps=30)
