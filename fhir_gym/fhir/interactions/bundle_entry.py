"""Parse an entry of a batch or transaction: method, URL and conditions."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

from fhir_gym.fhir.context import RequestContext
from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET
from fhir_gym.fhir.interactions.patch import FhirPathPatch, Patch, read_patch
from fhir_gym.fhir.messages import WRITES, Interaction
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.routes import attempted
from fhir_gym.fhir.urls import decode
from fhir_gym.types import Resource

_BODY_VERBS = frozenset({"POST", "PUT", "PATCH"})
_VERBS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})


@dataclass(frozen=True, slots=True)
class BundleEntry:
    """One entry of a batch or transaction.

    `path` is relative to the base URL; `type` and `id` name the resource to write; `number` is the position in the
    bundle.
    """

    number: int
    verb: str
    url: str
    path: str
    query: str
    type: str
    id: str
    full_url: str
    resource: Resource | None
    if_match: str
    if_none_match: str
    if_none_exist: str

    @property
    def own_id(self) -> str:
        """The id in the entry's resource."""
        return str((self.resource or {}).get("id", ""))

    @property
    def is_search(self) -> bool:
        """Whether a GET entry is a search, an operation or a history, and not a plain read."""
        return not self.id or "$" in self.path or self.path.endswith("_history")

    def attempt(self) -> Interaction:
        """Return the interaction that the entry attempts."""
        if self.verb in WRITES:  # the URL does not matter
            return Interaction(WRITES[self.verb], self.type, self.id, entry=self.number)
        return attempted(self.verb, self.path.split("/"))._replace(entry=self.number)

    def check(self) -> None:
        """Raise if the entry lacks something that its method needs."""
        if self.verb not in _VERBS:
            raise FhirError(400, f"HAPI-0538: Unable to handle verb in transaction: {self.verb}")
        if self.verb == "GET":
            if not self.url:
                raise FhirError(400, "HAPI-0545: Unable to perform GET, no URL provided.")
            return
        if self.verb in _BODY_VERBS:
            self.body()
        self._check_url()
        if self.verb == "PUT" and self.type != self.body()["resourceType"]:
            raise FhirError(
                400, f"Unable to perform PUT: {self.url} is not the place of a {self.body()['resourceType']}"
            )

    def _check_url(self) -> None:
        """Raise if the URL does not name a place to write. A POST may have any URL that begins with a type."""
        path = self.url.partition("?")[0].removeprefix("/")
        first, *rest = self.path.split("/")
        if self.verb == "POST" and not first:
            return
        if first and decode(first) not in RESOURCE_TYPE_SET:
            raise FhirError(400, f"HAPI-2006: Unable to perform {self.verb}, URL provided is invalid: {self.url}")
        if self.verb == "POST":
            return
        if not first or path.endswith("/"):
            raise FhirError(400, "HAPI-1101: Parameter value missing in request")
        if rest[1:] and (rest[1] != "_history" or rest[3:]):
            raise FhirError(400, f"HAPI-1742: Invalid FHIR resource URL: {self.url}")

    def read_query(self) -> str:
        """Return the query of a GET entry; a read in a bundle ignores `_elements` and `_summary`."""
        if self.is_search or not self.query:
            return self.query
        pieces = self.query.split("&")
        return "&".join(piece for piece in pieces if piece.partition("=")[0] not in ("_elements", "_summary"))

    def body(self) -> Resource:
        """Return the entry's resource; raise if the entry has no resource."""
        if self.resource is None:
            raise FhirError(
                400,
                f"HAPI-0543: Missing required resource in Bundle.entry[{self.number}].resource "
                f"for operation {self.verb}",
            )
        return self.resource

    def criteria(self) -> str:
        """Return the criteria of the conditional URL; raise if the URL has no criteria."""
        if self.query:
            return self.query
        raise FhirError(400, f"HAPI-0518: Invalid match URL[{self.type}?{self.path}] - URL has no search parameters")


def no_verb(number: int) -> FhirError:
    """Return the error for an entry without a method."""
    return FhirError(
        400,
        "HAPI-0529: Transaction bundle entry has missing or invalid HTTP Verb specified in "
        f'Bundle.entry({number}).request.method. Found value: "null"',
    )


def read_entries(ctx: RequestContext, listed: list[Any]) -> list[BundleEntry]:
    """Parse the entries of a normalised Bundle."""
    return [_read(ctx, number, item) for number, item in enumerate(listed) if isinstance(item, dict)]


def _read(ctx: RequestContext, number: int, item: dict[str, Any]) -> BundleEntry:
    request = item.get("request", {})
    resource = item.get("resource")
    verb = str(request.get("method", ""))
    url = str(request.get("url", ""))
    path, _, query = url.removeprefix(ctx.base_url).partition("?")
    path = path.strip("/")
    segments = path.split("/")
    kind = decode(segments[0])
    if verb == "POST" and isinstance(resource, dict):
        kind = resource["resourceType"]  # the URL of a POST is ignored
    return BundleEntry(
        number=number,
        verb=verb,
        url=url,
        path=path,
        query=query,
        type=kind,
        id=decode(segments[1]) if len(segments) > 1 and verb != "POST" else "",
        full_url=str(item.get("fullUrl", "")),
        resource=resource,
        if_match=str(request.get("ifMatch", "")),
        if_none_match=str(request.get("ifNoneMatch", "")),
        if_none_exist=str(request.get("ifNoneExist", "")),
    )


def read_patch_resource(resource: Resource) -> Patch:
    """Parse the patch in a PATCH entry: Parameters, or a Binary with the patch document."""
    if resource["resourceType"] == "Parameters":
        return FhirPathPatch(resource)
    if resource["resourceType"] != "Binary":
        raise FhirError(400, "HAPI-0537: Unable to determine PATCH body from request")
    content_type = str(resource.get("contentType", "")).partition(";")[0].strip()
    if not content_type:
        raise FhirError(400, "HAPI-1964: Missing or invalid content type for PATCH operation")
    try:
        body = base64.b64decode(resource.get("data", ""), validate=False)
    except (binascii.Error, ValueError):
        raise FhirError(400, "The data of the Binary with the patch is not base64") from None
    return read_patch(content_type, body)
