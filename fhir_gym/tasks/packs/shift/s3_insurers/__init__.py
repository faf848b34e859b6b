"""S3: insurers that end their contract."""

from fhir_gym.tasks.packs.shift.s3_insurers.kind import TASKS

__all__ = ["TASKS"]
