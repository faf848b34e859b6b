"""Give resources of a running server their earlier states back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fhir_gym.fhir import serialization
from fhir_gym.fhir.adapters.reference_order import batches_by_reference
from fhir_gym.fhir.adapters.remote_client import RemoteClient
from fhir_gym.fhir.adapters.remote_interactions import ResourceStates
from fhir_gym.fhir.messages import JSON, Request, Response
from fhir_gym.types import Json, Resource

_BATCH = 500
"""Resources in one transaction."""


def put_back(client: RemoteClient, changed: Sequence[tuple[ResourceStates, Resource | None]]) -> list[str]:
    """Restore changed resources, delete new resources, and remove labels that a PUT would keep.

    What the server refuses does not keep it from undoing everything else.

    Args:
        client: The server.
        changed: The resources with their earlier states, each with its current state.

    Returns:
        What the server has refused.

    Raises:
        FhirServerError: The server does not answer.
    """
    updates: list[dict[str, Any]] = []
    new: list[Resource] = []
    for old, now in changed:
        url = f"{old.type}/{old.id}"
        if old.before is None:
            new.append(now or {"resourceType": old.type, "id": old.id})
        else:
            body = {name: value for name, value in old.before.items() if name != "meta"} | _labels(old.before)
            updates.append({"resource": body, "request": {"method": "PUT", "url": url}})
            _remove_labels(client, url, _added(_labels(old.before), _labels(now or {})))
    deletions = [[_deletion(one) for one in reversed(batch)] for batch in reversed(batches_by_reference(new, _BATCH))]
    if len(changed) <= _BATCH:
        batches = [[entry for batch in deletions for entry in batch] + updates]
    else:  # the updates come first, because they remove references to what is deleted
        batches = [*(updates[start : start + _BATCH] for start in range(0, len(updates), _BATCH)), *deletions]
    return [refusal for entries in batches for refusal in _undo(client, entries)]


def _undo(client: RemoteClient, entries: list[dict[str, Any]]) -> list[str]:
    """Run entries as a transaction; if the server refuses it, run each on its own, as long as that helps."""
    if not entries:
        return []
    response = _post(client, "", {"resourceType": "Bundle", "type": "transaction", "entry": entries})
    if response.status == 200:
        return []
    refusals = [response.text[:300]]
    while entries:
        response = _post(client, "", {"resourceType": "Bundle", "type": "batch", "entry": entries})
        answers = client.json(response).get("entry") if response.status == 200 else None
        if not isinstance(answers, list) or len(answers) != len(entries):
            return [*refusals, response.text[:300]]
        refused = [(entry, answer) for entry, answer in zip(entries, answers, strict=True) if not _is_done(answer)]
        refusals = [
            f"{entry['request']['url']}: {serialization.dumps(answer)[:300].decode('utf-8', 'replace')}"
            for entry, answer in refused
        ]
        if len(refused) == len(entries):
            return refusals
        entries = [entry for entry, _ in refused]
    return []


def _is_done(answer: Json) -> bool:
    response = answer.get("response") if isinstance(answer, dict) else None
    return isinstance(response, dict) and str(response.get("status")).startswith("2")


def _deletion(resource: Resource) -> dict[str, Any]:
    return {"request": {"method": "DELETE", "url": f"{resource['resourceType']}/{resource['id']}"}}


def _remove_labels(client: RemoteClient, url: str, meta: Resource) -> None:
    if meta:
        parameter = {"name": "meta", "valueMeta": meta}
        _post(client, f"/{url}/$meta-delete", {"resourceType": "Parameters", "parameter": [parameter]})


def _post(client: RemoteClient, path: str, resource: Resource) -> Response:
    request = Request("POST", path, headers={"content-type": JSON}, body=serialization.dumps(resource))
    return client.send(request, repeatable=True)  # a second time, it changes nothing


def content(resource: Resource | None) -> bytes:
    """Return the content to compare, without version and time and with labels in a fixed order; empty for None."""
    if resource is None:
        return b""
    labels = {
        name: sorted(map(serialization.dumps, values)) for name, values in _labels(resource).get("meta", {}).items()
    }
    return serialization.dumps({**resource, "meta": None}) + repr(labels).encode()


def _labels(resource: Resource) -> Resource:
    kept = {k: v for k, v in resource.get("meta", {}).items() if k in ("profile", "security", "tag")}
    return {"meta": kept} if kept else {}


def _added(before: Resource, now: Resource) -> Resource:
    """Return the labels that were added."""
    old = before.get("meta", {})
    added = {name: [v for v in values if v not in old.get(name, [])] for name, values in now.get("meta", {}).items()}
    return {name: values for name, values in added.items() if values}
