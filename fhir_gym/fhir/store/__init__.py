"""SQLite storage: world files, and the overlay into which one session writes."""

from fhir_gym.fhir.store.builder import Manifest, WorldBuilder
from fhir_gym.fhir.store.schema import ResourceRow, stored
from fhir_gym.fhir.store.store import Savepoint, Snapshot, Store
from fhir_gym.fhir.store.world_file import WorldFile

__all__ = ["Manifest", "ResourceRow", "Savepoint", "Snapshot", "Store", "WorldBuilder", "WorldFile", "stored"]
