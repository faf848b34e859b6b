"""The command line `fhir-gym`: one module for each command or group of commands.

Heavy imports are inside the commands, so that the command line starts fast.
"""

from fhir_gym.cli._app import main

__all__ = ["main"]
