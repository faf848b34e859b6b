"""Create, update, patch and delete resources in the store, for single requests and for bundle entries.

The server returns HAPI's success messages, OperationOutcomes with a storage response code, for
`Prefer: return=OperationOutcome`, for every DELETE, and for every write entry of a bundle. Two obvious mistakes of HAPI
are corrected: a literal ``{1}`` instead of a URL, and milliseconds instead of an id.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from fhir_gym.fhir.context import RequestContext
from fhir_gym.fhir.interactions.patch import Patch
from fhir_gym.fhir.interactions.references import check_references, check_unreferenced, resolve_reference
from fhir_gym.fhir.limits import STEPS_OF_A_WRITE, check_size, steps_of_storing
from fhir_gym.fhir.messages import Effect, Interaction, Kind
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.serialization import dumps
from fhir_gym.fhir.store import ResourceRow, stored
from fhir_gym.types import Resource

_SYSTEM = "https://hapifhir.io/fhir/CodeSystem/hapi-fhir-storage-response-code"
_TOOK = " Took 1ms."
"""The elapsed time that HAPI appends; constant, because an answer must not depend on the machine."""
_NOTHING_TO_DELETE = 'Unable to find resource matching URL "{url}". Nothing has been deleted.'
_CREATED = 'Successfully created resource "{where}"'
_UPDATED = 'Successfully updated resource "{where}"'
_UPDATED_IF = 'Successfully conditionally updated resource "{where}"'
_PATCHED = 'Successfully patched resource "{where}"'
_PATCHED_IF = "Successfully conditionally patched resource"
_UNCHANGED = "No changes were detected so no action was taken."
_NO_MATCH = "no existing resource matched the conditional URL"
_MATCH = "an existing resource matched the conditional URL"

Timed = Literal["always", "alone", "never"]
"""When HAPI appends the elapsed time to a message: "alone" stands for writes outside bundles."""


class Success(Enum):
    """The kinds of success: the display of HAPI's code (``SUCCESSFUL_`` and the name), its text, and when it is timed.

    Attributes:
        display: The display of the code.
        text: The template of the diagnostics.
        timed: When HAPI appends the elapsed time.
    """

    CREATE = "Create succeeded.", f"{_CREATED}.", "always"
    UPDATE_AS_CREATE = (
        "Update as create succeeded.",
        f"{_CREATED} using update as create (ie. create with client assigned ID).",
        "always",
    )
    UPDATE = "Update succeeded.", f"{_UPDATED}.", "alone"
    UPDATE_NO_CHANGE = f"Update succeeded: {_UNCHANGED}", f"{_UPDATED} with no changes detected.", "alone"
    CREATE_NO_CONDITIONAL_MATCH = (
        f"Conditional create succeeded: {_NO_MATCH}.",
        'Successfully conditionally created resource "{where}". No existing resources matched URL "{url}".',
        "always",
    )
    CREATE_WITH_CONDITIONAL_MATCH = (
        f"Conditional create succeeded: {_MATCH} so no action was taken.",
        'Successfully conditionally created resource "{id}". Existing resource matched URL "{url}".',
        "never",
    )
    UPDATE_NO_CONDITIONAL_MATCH = (
        f"Conditional update succeeded: {_NO_MATCH} so a new resource was created.",
        f'{_UPDATED_IF}. Created resource because no existing resource matched URL "{{url}}".',
        "always",
    )
    UPDATE_WITH_CONDITIONAL_MATCH = (
        f"Conditional update succeeded: {_MATCH} and was updated.",
        f'{_UPDATED_IF}. Existing resource matched URL "{{url}}".',
        "alone",
    )
    UPDATE_WITH_CONDITIONAL_MATCH_NO_CHANGE = (
        f"Conditional update succeeded: {_MATCH} and was updated, but no changes were detected so no action was taken.",
        f'{_UPDATED_IF} with no changes detected. Existing resource matched URL "{{url}}".',
        "alone",
    )
    PATCH = "Patch succeeded.", f"{_PATCHED}.", "alone"
    PATCH_NO_CHANGE = f"Patch succeeded: {_UNCHANGED}", f"{_PATCHED} with no changes detected.", "alone"
    CONDITIONAL_PATCH = (
        "Conditional patch succeeded.",
        f"{_PATCHED_IF}. Existing resource {{where}} matched URL: {{url}}.",
        "alone",
    )
    CONDITIONAL_PATCH_NO_CHANGE = (
        f"Conditional patch succeeded: {_UNCHANGED}",
        f"{_PATCHED_IF} with no changes detected. Existing resource {{where}} matched URL: {{url}}.",
        "alone",
    )
    DELETE = "Delete succeeded.", "Successfully deleted 1 resource(s).", "always"
    DELETE_ALREADY_DELETED = (
        "Delete succeeded: Resource was already deleted so no action was taken.",
        "Not deleted, resource {where} was already deleted.",
        "never",
    )
    DELETE_NOT_FOUND = (
        "Delete succeeded: No existing resource was found so no action was taken.",
        "Not deleted, resource {where} does not exist.",
        "never",
    )

    def __init__(self, display: str, text: str, timed: Timed) -> None:
        self.display, self.text, self.timed = display, text, timed

    def unchanged(self) -> Success:
        """Return the kind for a write that changed nothing."""
        return Success[f"{self.name}_NO_CHANGE"]


@dataclass(frozen=True, slots=True)
class SuccessOutcome:
    """One success message, rendered on demand.

    Attributes:
        where: The versioned location ``Patient/1/_history/1``, or ``Patient/1`` for a resource that never existed.
        url: The conditional URL to quote.
        in_bundle: Whether the write was a bundle's entry; HAPI then omits some elapsed times.
    """

    kind: Success
    where: str = ""
    url: str = ""
    in_bundle: bool = False

    @property
    def diagnostics(self) -> str:
        """The diagnostics text."""
        if self.kind is Success.DELETE_NOT_FOUND and self.url:
            return _NOTHING_TO_DELETE.format(url=self.url)
        id = self.where.partition("/_history/")[0].rpartition("/")[2]
        text = self.kind.text.format(where=self.where, url=self.url, id=id)
        timed = self.kind.timed == "always" or (self.kind.timed == "alone" and not self.in_bundle)
        return text + _TOOK if timed else text

    def resource(self) -> Resource:
        """The OperationOutcome."""
        warning = self.kind is Success.DELETE_NOT_FOUND and bool(self.url)
        coding = {"system": _SYSTEM, "code": f"SUCCESSFUL_{self.kind.name}", "display": self.kind.display}
        issue = {
            "severity": "warning" if warning else "information",
            "code": "not-found" if warning else "informational",
            "details": {"coding": [coding]},
            "diagnostics": self.diagnostics,
        }
        return {"resourceType": "OperationOutcome", "issue": [issue]}


_ID = re.compile(r"[A-Za-z0-9\-.]{1,64}")
_LABELS = ("security", "tag")
_STORABLE_BUNDLES = frozenset({"collection", "document", "message"})


@dataclass(slots=True)
class WriteContext:
    """The context of the writes of one request or bundle.

    Attributes:
        ctx: The context of the request.
        in_bundle: Whether the writes are entries of a bundle.
        resolve: Function that resolves a conditional reference to ``Type/id``; if None, a search resolves the
            reference.
        atomic: Whether the writes form a transaction: all writes get the same time, and the transaction checks at its
            end that no resource refers to a deleted resource.
        exempt: Targets (``Type/id``) to which resources may refer although the targets do not exist yet.
    """

    ctx: RequestContext
    in_bundle: bool = False
    resolve: Callable[[str], str] | None = None
    atomic: bool = False
    exempt: frozenset[str] = frozenset()
    _moment: tuple[int, str] | None = field(default=None, init=False)

    def moment(self) -> tuple[int, str]:
        """Return the time of the next write in milliseconds since the epoch and as an instant."""
        if self._moment is None or not self.atomic:
            self._moment = self.ctx.tick()
        return self._moment

    def check(self, resource: Resource) -> None:
        """Check a resource before it is stored, and normalise its references in place."""
        if resource["resourceType"] == "Bundle" and resource.get("type") not in _STORABLE_BUNDLES:
            raise FhirError(
                422,
                "HAPI-0522: Unable to store a Bundle resource on this server with a Bundle.type value of: "
                f"{resource.get('type', '(missing)')}. Note that if you are trying to perform a FHIR transaction or "
                "batch operation you should POST the Bundle resource to the Base URL of the server, not to the /Bundle "
                "endpoint.",
            )
        check_references(resource, self.ctx.store, self._resolve, self.exempt)

    def _resolve(self, reference: str) -> str:
        return self.resolve(reference) if self.resolve else resolve_reference(self.ctx, reference)

    def outcome(self, kind: Success, where: str, url: str = "") -> SuccessOutcome:
        """Return the success message of a write."""
        return SuccessOutcome(kind, where, url, self.in_bundle)


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of a write.

    Attributes:
        type: The resource type.
        version: The version; 0 if the resource never existed.
        updated: Milliseconds since the epoch.
        status: The HTTP status: 201 for a new resource.
        body: The JSON of the resource for the response; empty after a deletion.
        outcome: The success message.
        text: The time `updated` as a FHIR instant, if the write made this version; else empty.
    """

    type: str
    id: str
    version: int
    updated: int
    status: int
    body: bytes
    outcome: SuccessOutcome
    text: str = ""

    def interaction(self, kind: Kind, entry: int | None = None) -> Interaction:
        """Return the write as an interaction for the log."""
        effect: Effect = ""
        if self.outcome.kind is Success.DELETE:
            effect = "deleted"
        elif self.text:
            effect = "created" if self.status == 201 else "updated"
        return Interaction(kind, self.type, self.id, self.status, effect, entry=entry)

    @property
    def location(self) -> str:
        """``Type/id/_history/version``, or ``Type/id`` if the resource never existed."""
        return _where(self.type, self.id, self.version) if self.version else f"{self.type}/{self.id}"


def _where(resource_type: str, id: str, version: int) -> str:
    return f"{resource_type}/{id}/_history/{version}"


# the stored resource and the response


def _same_label(resource: dict[str, Any]) -> tuple[Any, Any]:
    return resource.get("system"), resource.get("code")


def _labels(old: list[Any], new: list[Any]) -> list[Any]:
    """Merge tags or security labels: keep the old labels, and add new pairs of system and code."""
    kept: dict[tuple[Any, Any], Any] = {}
    for label in (*old, *new):
        if isinstance(label, dict) and (label.get("system") or label.get("code")):
            kept.setdefault(_same_label(label), label)
    return list(kept.values())


def _meta(sent: dict[str, Any], old: dict[str, Any], version: int, text: str) -> dict[str, Any]:
    """Return the `meta` to store, without its `source` and `id`."""
    meta: dict[str, Any] = {}
    if "extension" in sent:
        meta["extension"] = sent["extension"]
    meta["versionId"], meta["lastUpdated"] = str(version), text
    if profiles := sent.get("profile"):
        meta["profile"] = list(dict.fromkeys(profiles))
    for name in _LABELS:
        if labels := _labels(old.get(name, []), sent.get(name, [])):
            meta[name] = labels
    return meta


def _shown_meta(meta: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    """Return `meta` for the response, which repeats sent values even if they are not stored."""
    shown = {"id": meta["id"]} if "id" in meta else {}
    for name in ("extension", "versionId", "lastUpdated"):
        if name in kept:
            shown[name] = kept[name]
    if "source" in meta:
        shown["source"] = meta["source"]
    for name in ("profile", *_LABELS):
        if name in kept:
            repeated = len(meta.get(name, [])) > len(kept[name])
            shown[name] = meta[name] if repeated else kept[name]
    return shown


def _assemble(resource: Resource, id: str, meta: dict[str, Any]) -> Resource:
    built = {"resourceType": resource["resourceType"], "id": id, "meta": meta}
    for name, value in resource.items():
        if name not in built:
            built[name] = value
    return built


def _kept_contained(resource: Resource) -> Resource:
    """Remove `meta` of contained resources, which is not stored."""
    contained = resource.get("contained")
    if not contained or not any("meta" in inner for inner in contained):
        return resource
    bare = [{name: value for name, value in inner.items() if name != "meta"} for inner in contained]
    return {**resource, "contained": bare}


def _put(
    writes: WriteContext, resource: Resource, id: str, version: int, old_meta: dict[str, Any], method: str
) -> WriteResult:
    """Store a checked resource with its new `meta`."""
    updated, text = writes.moment()
    sent_meta = resource.get("meta", {})
    meta = _meta(sent_meta, old_meta, version, text)
    kept = _kept_contained(_assemble(resource, id, meta))
    body = dumps(kept)
    kind = resource["resourceType"]
    check_size(writes.ctx.limits, body)
    writes.ctx.store.spend(steps_of_storing(body))
    check_room(writes.ctx)
    writes.ctx.store.put(kind, id, body, kept, method=method, version=version, updated=updated)
    shown_meta = _shown_meta(sent_meta, meta) if sent_meta else meta
    shown = body if shown_meta == meta and "contained" not in kept else dumps(_assemble(resource, id, shown_meta))
    outcome = writes.outcome(Success.CREATE, _where(kind, id, version))
    return WriteResult(kind, id, version, updated, 201, shown, outcome, text)


def check_room(ctx: RequestContext) -> None:
    """Raise if the session's writes have reached their memory limit."""
    if ctx.store.overlay_bytes() > ctx.limits.overlay_bytes:
        raise FhirError(
            413, f"What was written to this server takes more than the {ctx.limits.overlay_bytes} bytes it keeps"
        )


def _told(written: WriteResult, writes: WriteContext, kind: Success, url: str, status: int) -> WriteResult:
    outcome = writes.outcome(kind, written.location, url)
    return WriteResult(
        written.type, written.id, written.version, written.updated, status, written.body, outcome, written.text
    )


# interactions


def create(
    writes: WriteContext, resource: Resource, *, id: str | None = None, kind: Success = Success.CREATE, url: str = ""
) -> WriteResult:
    """Store a new resource with an id from the server.

    The resource's own id is removed. `kind` and `url` (a conditional URL) are for the success message.
    """
    if id is None and writes.in_bundle:
        id = writes.ctx.counters.new_id()  # a failed entry uses up its id, a failed request does not
    resource.pop("id", None)
    writes.check(resource)
    written = _put(writes, resource, id or writes.ctx.counters.new_id(), 1, {}, "POST")
    return written if kind is Success.CREATE else _told(written, writes, kind, url, 201)


def update(
    writes: WriteContext,
    resource: Resource,
    id: str,
    *,
    if_match: str = "",
    kind: Success = Success.UPDATE,
    url: str = "",
) -> WriteResult:
    """Store the first or next version of a resource with an id from the client.

    The resource's own id is ignored. `kind` and `url` (a conditional URL) are for the success message.
    """
    resource_type = resource["resourceType"]
    if not _ID.fullmatch(id):
        raise FhirError(400, f"HAPI-0521: Can not process entity with ID[{id}], this is not a valid FHIR ID")
    row = writes.ctx.store.find(resource_type, id)
    if row is None:
        if id.isdigit():
            raise FhirError(
                400,
                f"HAPI-0960: Can not create resource with ID[{id}], no resource with this ID exists and clients may "
                "only assign IDs which contain at least one non-numeric character",
            )
        writes.check(resource)
        writes.ctx.counters.new_id()  # every new resource uses up an id
        return _told(_put(writes, resource, id, 1, {}, "PUT"), writes, Success.UPDATE_AS_CREATE, url, 201)
    version = _wanted_version(if_match)
    if version is not None and version != row.version:
        raise FhirError(
            409,
            f"HAPI-0550: HAPI-0989: Trying to update {resource_type}/{id}/_history/{version} "
            "but this is not the current version",
        )
    return _replace(writes, row, resource, kind, url)


def _replace(writes: WriteContext, row: ResourceRow, resource: Resource, kind: Success, url: str) -> WriteResult:
    """Store the next version of a resource, unless nothing changes."""
    writes.check(resource)
    if row.deleted:
        return _told(_put(writes, resource, row.id, row.version + 1, {}, "PUT"), writes, kind, url, 201)
    old = stored(row.body).get("meta", {})
    meta = _meta(resource.get("meta", {}), old, row.version, old.get("lastUpdated", ""))
    if dumps(_kept_contained(_assemble(resource, row.id, meta))) == row.body:
        outcome = writes.outcome(kind.unchanged(), _where(row.type, row.id, row.version), url)
        return WriteResult(row.type, row.id, row.version, row.updated, 200, row.body, outcome)
    return _told(_put(writes, resource, row.id, row.version + 1, old, "PUT"), writes, kind, url, 200)


def patch(
    writes: WriteContext,
    row: ResourceRow,
    change: Patch,
    *,
    if_match: str = "",
    kind: Success = Success.PATCH,
    url: str = "",
) -> WriteResult:
    """Patch an existing resource.

    `kind` and `url` (a conditional URL) are for the success message.
    """
    version = _wanted_version(if_match)
    if version is not None and version != row.version:
        raise FhirError(
            409,
            f"HAPI-0550: HAPI-0974: Version {version} is not the most recent version of this resource, "
            "unable to apply patch",
        )
    patched = change.apply(stored(row.body), f"{row.type}/{row.id}", writes.ctx.limits)
    writes.ctx.check_valid(patched)
    return _replace(writes, row, patched, kind, url)


def delete(writes: WriteContext, resource_type: str, id: str) -> WriteResult:
    """Delete a resource unless another resource refers to it; a transaction checks references at its end."""
    writes.ctx.store.spend(STEPS_OF_A_WRITE)
    row = writes.ctx.store.find(resource_type, id)
    if row is None:
        outcome = writes.outcome(Success.DELETE_NOT_FOUND, f"{resource_type}/{id}")
        return WriteResult(resource_type, id, 0, 0, 200, b"", outcome)
    if row.deleted:
        outcome = writes.outcome(Success.DELETE_ALREADY_DELETED, _where(resource_type, id, row.version))
        return WriteResult(resource_type, id, row.version, row.updated, 200, b"", outcome)
    if not writes.atomic:
        check_unreferenced(writes.ctx.store, row)
    updated, _ = writes.moment()
    version = row.version + 1
    writes.ctx.store.delete(row, version=version, updated=updated)
    outcome = writes.outcome(Success.DELETE, _where(resource_type, id, version))
    return WriteResult(resource_type, id, version, updated, 200, b"", outcome)


def _wanted_version(header: str) -> int | None:
    """Parse the version in an If-Match header: ``W/"1"``, ``"1"`` or ``1``; None if it is empty."""
    text = header.strip()
    if not text:
        return None
    text = text.removeprefix("W/").removeprefix('"').removesuffix('"')
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise FhirError(400, f'If-Match must name one version, as in W/"1", not {header.strip()}')
    return int(text)
