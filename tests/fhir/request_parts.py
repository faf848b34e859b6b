"""The parts of a request, for tests that derive interactions from scripted responses."""

from __future__ import annotations

import json

from fhir_gym.fhir.adapters.outgoing import RequestPart, is_bundle
from fhir_gym.fhir.messages import Request


def request_parts(request: Request) -> list[RequestPart]:
    """Return the entries of a bundle as parts; any other request is the only part."""
    if not is_bundle(request):
        return [RequestPart(request.method, f"{request.path}?{request.query}")]
    asked = [entry["request"] for entry in json.loads(request.body).get("entry", [])]
    return [RequestPart(entry_request["method"], f"/{entry_request['url']}") for entry_request in asked]
