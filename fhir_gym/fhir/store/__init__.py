"""Where resources are kept: world files, and the overlay one session writes into."""

from fhir_gym.fhir.store.builder import WorldBuilder
from fhir_gym.fhir.store.manifest import Manifest
from fhir_gym.fhir.store.schema import Row, stored
from fhir_gym.fhir.store.store import Store
from fhir_gym.fhir.store.world import World

__all__ = ["Manifest", "Row", "Store", "World", "WorldBuilder", "stored"]
