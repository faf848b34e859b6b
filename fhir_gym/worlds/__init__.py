"""Worlds: the data a FHIR server starts with. Generate, import, load, upload, export, restore and remove them."""

from fhir_gym.worlds.cache import cache_dir
from fhir_gym.worlds.catalogue import Recipe, WorldInfo, available
from fhir_gym.worlds.comparing import Comparison, Difference, RestoreReport, compare, restore
from fhir_gym.worlds.exporting import ExportFormat, export
from fhir_gym.worlds.files import Format, format_of
from fhir_gym.worlds.importing import ImportReport, import_files, import_server
from fhir_gym.worlds.loading import Progress, build, load, write
from fhir_gym.worlds.removal import CachedWorld, cached_world, remove
from fhir_gym.worlds.uploading import UploadReport, upload

__all__ = [
    "CachedWorld",
    "Comparison",
    "Difference",
    "ExportFormat",
    "Format",
    "ImportReport",
    "Progress",
    "Recipe",
    "RestoreReport",
    "UploadReport",
    "WorldInfo",
    "available",
    "build",
    "cache_dir",
    "cached_world",
    "compare",
    "export",
    "format_of",
    "import_files",
    "import_server",
    "load",
    "remove",
    "restore",
    "upload",
    "write",
]
