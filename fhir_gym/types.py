"""Types shared by all rooms of the package."""

from __future__ import annotations

from typing import Any

__all__ = ["Json", "Resource"]

Json = Any
"""A value as `json.loads` gives it."""

Resource = dict[str, Any]
"""A FHIR resource as a JSON object."""
