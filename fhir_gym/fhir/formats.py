"""Select the format that a request asks for, and write a response in it: JSON, XML, Turtle or a page for browsers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from html import escape
from http import HTTPStatus
from typing import Literal, NamedTuple

from fhir_gym.fhir import serialization
from fhir_gym.fhir.limits import Limits, json_values
from fhir_gym.fhir.messages import Request, Response
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.serialization.turtle_writer import write_turtle
from fhir_gym.fhir.serialization.xml import write_xml
from fhir_gym.fhir.urls import Pairs

_BYTES_A_STEP = 2  # of JSON that is converted
_STEPS_OF_A_VALUE = 20


class Format(NamedTuple):
    """A format of responses.

    Attributes:
        syntax: The syntax of the body.
        media_type: The media type in the Content-Type header.
    """

    syntax: Literal["json", "xml", "html", "turtle"]
    media_type: str


DEFAULT = Format("json", "application/fhir+json")
_XML = Format("xml", "application/fhir+xml")
_HTML = Format("html", "text/html")
_TURTLE = Format("turtle", "application/x-turtle")
_FORMATS = {
    **dict.fromkeys(("json", "text/json", "application/json", "application/fhir+json"), DEFAULT),
    "application/json+fhir": Format("json", "application/json+fhir"),
    **dict.fromkeys(("xml", "text/xml", "application/xml", "application/fhir+xml"), _XML),
    "application/xml+fhir": Format("xml", "application/xml+fhir"),
    "application/fhir+ndjson": Format("xml", "application/fhir+ndjson"),  # this is what HAPI sends
    **dict.fromkeys(("ttl", "application/x-turtle", "application/fhir+turtle"), _TURTLE),
    "text/turtle": Format("turtle", "text/turtle"),
}
_PAGES = frozenset({"html", "text/html", "html/json", "html/xml", "html/turtle"})


def requested_format(request: Request, pairs: Pairs) -> Format:
    """Return the format of the answer to a request; `pairs` are the decoded parameters of its query.

    `_format` takes precedence over `Accept`. An unknown format is ignored.
    """
    accept = request.headers.get("accept")
    format_values = [value for name, value in pairs if name == "_format"] if pairs else []
    if not format_values and (accept is None or accept == DEFAULT.media_type):
        return DEFAULT
    if format_values and format_values[0].partition(";")[0].strip() in _PAGES:
        return _HTML
    for value in format_values:
        if format_ := _FORMATS.get(value.partition(";")[0].strip().replace(" ", "+")):
            return format_
    return _accepted(request, accept or "", page=not format_values)


def _accepted(request: Request, accept: str, *, page: bool) -> Format:
    """Return the first of the known formats with the highest quality in an Accept header.

    A browser (a GET for HTML without an Origin) gets a page.
    """
    ranges = [_media_range(piece) for piece in accept.split(",") if piece.strip()]
    highest = max((quality for _, quality in ranges), default=0)
    if page and request.method == "GET" and ("text/html", highest) in ranges and not request.headers.get("origin"):
        return _HTML
    accepted = [(quality, _FORMATS[name]) for name, quality in ranges if name in _FORMATS]
    return max(accepted, key=lambda choice: choice[0])[1] if accepted else DEFAULT


def _media_range(piece: str) -> tuple[str, float]:
    name, *parameters = piece.strip().split(";")
    quality = 1.0
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            try:
                quality = max(float(value), 0.0)
            except ValueError:
                continue
    return name.strip(), quality if quality == quality else 1.0  # a quality may be NaN


def write_response(
    response: Response, format_: Format, *, indent: bool, limits: Limits, spend: Callable[[int], None] | None = None
) -> Response:
    """Write a response whose body is compact JSON in the requested format.

    Args:
        response: The response; a body with another Content-Type is left as it is.
        format_: The format.
        indent: Whether to indent the body, unless it is too large.
        limits: The session's limits.
        spend: Function that counts the steps of the work; None for an error, whose body is small.

    Raises:
        FhirError: 406 for a body that this format cannot contain.
    """
    body = response.body
    if not body or "Content-Type" in response.headers:
        return response
    indent = indent and len(body) <= limits.indented_bytes
    headers = {"Content-Type": f"{format_.media_type};charset=UTF-8", **response.headers}
    if format_.syntax == "json":
        return replace(response, headers=headers, body=serialization.pretty(body) if indent else body)
    if spend is not None:
        spend(len(body) // _BYTES_A_STEP + _STEPS_OF_A_VALUE * json_values(body))
    if format_.syntax in ("xml", "turtle"):
        try:
            decoded = serialization.loads(body)
        except ValueError as error:  # in a Bundle, a stored resource may be nested too deeply
            text = f"This answer cannot be {format_.media_type} ({error}): ask for JSON"
            raise FhirError(406, text, code="not-supported") from None
        written = write_xml(decoded, indent=indent) if format_.syntax == "xml" else write_turtle(decoded)
    else:
        headers = {"Content-Type": headers["Content-Type"]}  # as in HAPI, a page has no other headers
        written = _page(response.status, serialization.pretty(body) if indent else body)
    return replace(response, headers=headers, body=written, json_body=body)


def _page(status: int, body: bytes) -> bytes:
    """Return a page that shows a response."""
    title = f"HTTP {status} {HTTPStatus(status).phrase}"
    text = escape(body.decode("utf-8", "replace"))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title></head>\n'
        f"<body>\n<h1>{title}</h1>\n<pre>{text}</pre>\n</body>\n</html>\n"
    ).encode()
