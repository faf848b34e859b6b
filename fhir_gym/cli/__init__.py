"""The command line `fhir-gym`: thin, one module a command group, heavy imports inside the commands."""

from fhir_gym.cli._app import main

__all__ = ["main"]
