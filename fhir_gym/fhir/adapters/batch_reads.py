"""Read many resources of a running server with few requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from urllib.parse import quote

from fhir_gym.fhir import serialization
from fhir_gym.fhir.adapters.remote_client import RemoteClient
from fhir_gym.fhir.messages import JSON, Request
from fhir_gym.types import Json, Resource

Key = tuple[str, str]
"""Type and id of a resource."""

_BATCH = 200
_ABSENT = ("404", "410")


def read_all(
    client: RemoteClient, keys: Iterable[Key], read_one: Callable[[str, str], Resource | None]
) -> dict[Key, Resource | None]:
    """Return current resources by type and id; None stands for a resource that does not exist.

    Args:
        client: The server.
        keys: Types and ids.
        read_one: Function that reads one resource. It is called for a single resource, and for each resource of a batch
            for which the server's answer neither contains the resource nor says that it does not exist.
    """
    found: dict[Key, Resource | None] = {}
    distinct = list(dict.fromkeys(keys))
    for start in range(0, len(distinct), _BATCH):
        chunk = distinct[start : start + _BATCH]
        if len(chunk) > 1:
            found |= _read_batch(client, chunk)
    return {key: found[key] if key in found else read_one(*key) for key in distinct}


def _read_batch(client: RemoteClient, keys: Sequence[Key]) -> dict[Key, Resource | None]:
    """Return the resources of which the answer to a batch tells."""
    entries = [
        {"request": {"method": "GET", "url": f"{quote(kind, safe='')}/{quote(id, safe='')}"}} for kind, id in keys
    ]
    body = serialization.dumps({"resourceType": "Bundle", "type": "batch", "entry": entries})
    response = client.send(Request("POST", "", headers={"content-type": JSON}, body=body), repeatable=True)
    answers = client.json(response).get("entry") if response.status == 200 else None
    if not isinstance(answers, list) or len(answers) != len(keys):
        return {}
    found: dict[Key, Resource | None] = {}
    for key, answer in zip(keys, answers, strict=True):
        status, resource = _entry(answer)
        if status in _ABSENT:
            found[key] = None
        elif status == "200" and (resource.get("resourceType"), resource.get("id")) == key:
            found[key] = resource
    return found


def _entry(answer: Json) -> tuple[str, Resource]:
    """Return the status and the resource of an entry in the answer to a batch."""
    if not isinstance(answer, dict) or not isinstance(answer.get("response"), dict):
        return "", {}
    resource = answer.get("resource")
    return str(answer["response"].get("status"))[:3], resource if isinstance(resource, dict) else {}
