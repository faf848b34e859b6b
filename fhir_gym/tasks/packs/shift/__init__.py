"""FHIRAgent/Shift-v0: long work at the desk of a clinic, with many requests in one episode.

Each module or sub-package ``q1_name`` contains the kind of request with the key Q1 and lists its tasks in ``TASKS``.
`kind` says what the requests are, how they are decided, chosen, solved and judged, and `scene` draws the records. Where
this is long, `rules` decides and judges. `live` mixes all kinds.
"""

from fhir_gym.tasks import Pack

__all__ = ["PACK"]

PACK = Pack(
    "FHIRAgent/Shift-v0",
    title="a clinic's desk: many requests in one episode",
    package=__name__,
    max_steps=30,
    # One kind of each family.
    held_out=("I3-1", "I3-2", "P3-1", "P3-2", "Q3-1", "Q3-2", "S3-1", "S3-2"),
)
