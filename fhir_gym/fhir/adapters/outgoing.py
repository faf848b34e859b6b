"""A request as it is sent to a server elsewhere, and its answer in the format that the agent requested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from fhir_gym.errors import FhirServerError
from fhir_gym.fhir import serialization
from fhir_gym.fhir.formats import DEFAULT as DEFAULT_FORMAT
from fhir_gym.fhir.formats import requested_format, write_response
from fhir_gym.fhir.limits import Limits
from fhir_gym.fhir.messages import WRITES, Interaction, Request, Response
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.urls import decode_query
from fhir_gym.types import Resource, as_object

T = TypeVar("T")

FHIR_JSON = "application/fhir+json"


class WriteTarget(NamedTuple):
    """The target of a write: an id, or a search if the write is conditional."""

    type: str
    id: str
    query: str = ""


class RequestPart(NamedTuple):
    """A request or one entry of a bundle: the method and the URL below the base URL, in normal form."""

    method: str
    url: str

    @property
    def segments(self) -> list[str]:
        """The segments of the path."""
        return [segment for segment in self.url.partition("?")[0].split("/") if segment]

    @property
    def target(self) -> WriteTarget | None:
        """The target of a write; None for a plain create, because its resource does not exist yet, and for reads."""
        segments, query = self.segments, self.url.partition("?")[2]
        if not segments or self.method not in WRITES or (self.method == "POST" and len(segments) == 1):
            return None
        return WriteTarget(segments[0], segments[1]) if segments[1:] else WriteTarget(segments[0], "", query)

    @property
    def created_type(self) -> str | None:
        """The type of the resource that a write may create with an id from the server; None if it creates none."""
        return self.segments[0] if self.method in ("POST", "PUT") and len(self.segments) == 1 else None


class RefusedEntry(NamedTuple):
    """An entry of a bundle that is not sent: its answer and its interaction."""

    answer: Resource
    interaction: Interaction


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request as it is sent.

    Attributes:
        request: The request. Writes ask for JSON.
        parts: The request, or the entries of its bundle that are sent.
        writes: Whether the request may write.
        refused: The entries of its bundle that are not sent, by their position.
    """

    request: Request
    parts: tuple[RequestPart, ...]
    writes: bool = False
    refused: Mapping[int, RefusedEntry] = field(default_factory=dict)

    def woven(self, sent: Sequence[T], refused: Mapping[int, T]) -> list[T]:
        """Merge values for the sent and the refused entries into one list, in the order of the bundle."""
        rest = iter(sent)
        return [refused[n] if n in refused else next(rest) for n in range(len(sent) + len(refused))]

    def complete(self, response: Response) -> Response:
        """Return the response to the whole bundle: with the answers of the entries that were not sent.

        Raises:
            FhirServerError: The server has not answered every entry.
        """
        if not self.refused:
            return response
        body, done = response.body, response.done
        if response.status == 200:
            bundle = _bundle_of(body)
            if len(bundle["entry"]) != len(self.parts):
                raise FhirServerError(
                    f"the server answered {len(bundle['entry'])} entries instead of {len(self.parts)}"
                )
            answers = {number: entry.answer for number, entry in self.refused.items()}
            body = serialization.dumps(bundle | {"entry": self.woven(bundle["entry"], answers)})
            log = self.woven(done, {number: entry.interaction for number, entry in self.refused.items()})
        else:
            failed = {
                number: entry.interaction._replace(status=response.status) for number, entry in self.refused.items()
            }
            log = self.woven(done, failed)
        numbered = tuple(interaction._replace(entry=number) for number, interaction in enumerate(log))
        return Response(response.status, response.headers, body, numbered)


def is_bundle(request: Request) -> bool:
    """Return whether a request is a batch or transaction."""
    return request.method == "POST" and not request.path.strip("/")


def in_requested_format(request: Request, response: Response) -> Response:
    """Return the JSON response to a write in the format that the agent asked for."""
    pairs = decode_query(request.query)
    format_, indent = requested_format(request, pairs), ("_pretty", "true") in pairs
    if (format_ is DEFAULT_FORMAT and not indent) or not response.headers.get("Content-Type", "").startswith(FHIR_JSON):
        return response
    headers = {name: value for name, value in response.headers.items() if name != "Content-Type"}
    try:
        return write_response(replace(response, headers=headers), format_, indent=indent, limits=Limits())
    except FhirError:  # nested too deeply for the format
        return response


def _bundle_of(body: bytes) -> Resource:
    """Parse a Bundle; one without entries if it is none."""
    try:
        document = serialization.loads(body)
    except ValueError:
        document = None
    bundle: Resource = as_object(document)
    return bundle if isinstance(bundle.get("entry"), list) else bundle | {"entry": []}
