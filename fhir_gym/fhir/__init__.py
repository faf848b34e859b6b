"""The embedded FHIR R4 server: `World` holds resources, `Session.handle` answers requests as HAPI FHIR does."""

from fhir_gym.fhir.adapters.credentials import Credentials
from fhir_gym.fhir.limits import Limits
from fhir_gym.fhir.messages import Request, Response
from fhir_gym.fhir.outcome import FhirError, operation_outcome
from fhir_gym.fhir.protocol import Change, FhirSession
from fhir_gym.fhir.session import DEFAULT_BASE_URL, Checkpoint, Session
from fhir_gym.fhir.store import Manifest, WorldBuilder
from fhir_gym.fhir.world import World

__all__ = [
    "DEFAULT_BASE_URL",
    "Change",
    "Checkpoint",
    "Credentials",
    "FhirError",
    "FhirSession",
    "Limits",
    "Manifest",
    "Request",
    "Response",
    "Session",
    "World",
    "WorldBuilder",
    "operation_outcome",
]
