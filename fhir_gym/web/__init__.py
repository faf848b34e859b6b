"""The viewer: web pages that show rollouts and worlds, on this machine or exported as static files."""

from fhir_gym.web.app import create_viewer, serve_viewer
from fhir_gym.web.export import export_viewer

__all__ = ["create_viewer", "export_viewer", "serve_viewer"]
