"""Reduces a request for a server elsewhere to the parts that the embedded server understands.

Servers interpret an unusual request differently, and the session cannot undo a write that it misread. So the session
parses each request as the embedded server does, and sends a new request made of the parsed parts: decoded paths,
resources, known headers, interactions and operations. The embedded server answers
every other request, which is never sent.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from urllib.parse import quote, urlencode

from fhir_gym.fhir import search, serialization
from fhir_gym.fhir.adapters.outgoing import FHIR_JSON, Outgoing, RefusedEntry, RequestPart, is_bundle
from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET
from fhir_gym.fhir.interactions.bundle_entry import BundleEntry, read_entries, read_patch_resource
from fhir_gym.fhir.interactions.conditional import if_none_exist
from fhir_gym.fhir.interactions.operations import CHANGE_META, is_implemented, posted_meta
from fhir_gym.fhir.interactions.patch import FhirPathPatch, JsonPatch, read_patch
from fhir_gym.fhir.interactions.read import shape
from fhir_gym.fhir.interactions.write import media_type, parse_body, posted_resource, preference
from fhir_gym.fhir.limits import WorkBudget, json_values, refusing
from fhir_gym.fhir.messages import JSON, WRITES, Kind, Request, Response
from fhir_gym.fhir.outcome import FhirError, operation_outcome
from fhir_gym.fhir.routes import Target, parse_path, route
from fhir_gym.fhir.session import without_surrogates
from fhir_gym.fhir.urls import Pairs, decode, decode_form, decode_query
from fhir_gym.fhir.world import World
from fhir_gym.types import Json, Resource

_JSON_PATCH = "application/json-patch+json"
_FORM = "application/x-www-form-urlencoded"
_METHODS = frozenset({"GET", "HEAD", *WRITES})
_READ_HEADERS = frozenset({"accept", "if-modified-since", "if-none-match", "prefer"})
_SHAPES = frozenset({"_elements", "_summary"})
_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9\-.]{1,64}")  # in a URL, the segments "." and ".." are no names
_UNSENDABLE = "Such an id or version in the URL cannot be sent to a server elsewhere, where it may have another meaning"
_PRINTABLE = re.compile(r"[!-~]([ -~]*[!-~])?")
_PLAIN_QUERY = re.compile(r"[A-Za-z0-9\-._~:/,|=&%$@!*()']+")
_SAFE = "".join(map(chr, range(33, 127))).replace("#", "")
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class _NotUnderstoodError(Exception):
    """The embedded server does not carry out the request, or its URL cannot be sent."""


class RequestReader:
    """Reads requests as the embedded server does.

    Args:
        world: The world of the server elsewhere.
        base_url: The base URL of the server elsewhere.
    """

    def __init__(self, world: World, base_url: str) -> None:
        self._session = world.session(base_url=base_url)

    def close(self) -> None:
        """Release the embedded server."""
        self._session.close()

    def read(self, request: Request) -> Outgoing | Response:
        """Return the request to send, or the answer to a request that is not sent."""
        request = without_surrogates(request)
        store = self._session.store
        try:
            with store.budget(WorkBudget(self._session.limits.sql_steps)), refusing():
                return self._bundle(request) if is_bundle(request) else self._request(request)
        except (FhirError, _NotUnderstoodError, RecursionError):
            return self._answer(request)

    def _answer(self, request: Request) -> Response:
        """Return the embedded server's answer to a request that is not sent."""
        response = self._session.handle(request)
        self._session.rollback()
        if not any(interaction.effect for interaction in response.done):
            return response
        done = tuple(interaction._replace(status=400, effect="") for interaction in response.done)
        return Response(400, {"Content-Type": JSON}, serialization.dumps(operation_outcome(_UNSENDABLE)), done)

    # Requests other than bundles

    def _request(self, request: Request) -> Outgoing:
        self._check_size(request)
        segments = [decode(segment) for segment in request.path.split("/") if segment]
        pairs = decode_query(request.query)
        if not segments:
            return self._base(request, pairs)
        target = parse_path(segments)
        kind = route(request.method, target) if request.method in _METHODS else None
        if kind is None or (target.resource_type and target.resource_type not in RESOURCE_TYPE_SET):
            raise _NotUnderstoodError
        for name in (target.id, target.version) if target.resource_type else ():
            if name and not _NAME.fullmatch(name):
                raise _NotUnderstoodError
        if kind == "operation":
            return self._operation(request, target, pairs)
        if kind in WRITES.values():
            return self._write(request, kind, target, pairs)
        return self._read(request, kind, target)

    def _check_size(self, request: Request) -> None:
        limits = self._session.limits
        if (
            len(request.path) + len(request.query) > limits.url_chars
            or len(request.body) > limits.body_bytes
            or (not request.path.startswith(("/Binary", "Binary")) and json_values(request.body) > limits.json_values)
        ):
            raise _NotUnderstoodError

    def _base(self, request: Request, pairs: Pairs) -> Outgoing:
        """Read a request for a further page of a search."""
        if request.method != "GET" or request.path.strip("/") != request.path.removeprefix("/"):
            raise _NotUnderstoodError
        if not any(name == "_getpages" for name, _ in pairs):
            raise _NotUnderstoodError
        return _reading("GET", "", request)

    def _read(self, request: Request, kind: Kind, target: Target) -> Outgoing:
        method = "HEAD" if request.method == "HEAD" else "GET"
        on_type = [target.resource_type, target.id] if target.resource_type else []
        if kind == "search":
            return _searching(request, target)
        if kind == "capabilities":
            if request.method not in ("GET", "HEAD"):
                raise _NotUnderstoodError
            return _reading(method, _path("metadata"), request)
        version = ["_history", target.version] if kind in ("history", "vread") else []
        return _reading(method, _path(*on_type, *version), request)

    def _operation(self, request: Request, target: Target, pairs: Pairs) -> Outgoing:
        if not is_implemented(request.method, target):
            raise _NotUnderstoodError
        name = target.operation
        on_type = [target.resource_type, target.id] if target.resource_type else []
        if name in CHANGE_META:
            meta = {"name": "meta", "valueMeta": posted_meta(request)}
            labels = {"resourceType": "Parameters", "parameter": [meta]}
            return _writing("POST", _path(*on_type, name), request, labels)
        version = ["_history", target.version] if target.version and name == "$meta" else []
        if name == "$validate" and request.method == "POST":
            return _reading("POST", _path(*on_type, name), request, body=request.body)
        if name == "$everything" and request.method == "POST":
            is_form = bool(decode_form(request.headers.get("content-type", ""), request.body))
            parameters = None if is_form else serialization.parse_resource(request.body, "Parameters")
            return _posting(request, _path(*on_type, name), parameters)
        return _reading("GET", _path(*on_type, *version, name), request)

    def _write(self, request: Request, kind: Kind, target: Target, pairs: Pairs) -> Outgoing:
        resource_type, id = target.resource_type, target.id
        ctx = self._session.context(request)
        shape(ctx, serialization.dumps({"resourceType": resource_type}), pairs)  # refuses parameters that do not fit
        path = [resource_type, id]
        if target.version:
            if not target.version.isdigit():
                raise _NotUnderstoodError
            path += ["_history", target.version]
        body, headers = _write_body(request, kind, target)
        query = urlencode([pair for pair in pairs if pair[0] in _SHAPES])
        if kind == "create":
            if condition := self._condition(request, resource_type, request.headers.get("if-none-exist", "")):
                headers["if-none-exist"] = condition
        elif not id:
            query = self._criteria(request, resource_type, request.query)
        elif kind != "delete" and (version := request.headers.get("if-match", "").strip()):
            headers["if-match"] = _printable(version)
        return _writing(request.method, _path(*path), request, body, query=query, headers=headers)

    def _criteria(self, request: Request, resource_type: str, query: str) -> str:
        """Return the criteria of a conditional write that the embedded server applies.

        Raises:
            FhirError: The embedded server refuses the criteria.
        """
        search.match(self._session.context(request), resource_type, query, 1)
        criteria = search.criteria(resource_type, query)
        if criteria == decode_query(query) and _PLAIN_QUERY.fullmatch(query):
            return query  # messages quote it
        return urlencode(criteria, safe=":/,|", quote_via=quote)

    def _condition(self, request: Request, resource_type: str, text: str) -> str:
        """Return the condition of a conditional create."""
        query = if_none_exist(text)
        if not query:
            return ""
        prefix = f"{resource_type}?" if text.strip().startswith(f"{resource_type}?") else ""
        return prefix + self._criteria(request, resource_type, query)

    # Bundles

    def _bundle(self, request: Request) -> Outgoing | Response:
        """Read a batch or a transaction.

        The embedded server answers the entries that are not sent; a placeholder replaces each entry that is sent. If
        the embedded server answers with an error, this is the answer to the whole bundle.
        """
        self._check_size(request)
        if request.path not in ("", "/") or "text/html" in request.headers.get("accept", ""):
            raise _NotUnderstoodError
        decode_query(request.query)  # refuses what it cannot decode
        posted = parse_body(request, "Bundle", "TRANSACTION")
        kind, listed = posted.get("type", "transaction"), posted.get("entry", [])
        if kind not in ("batch", "transaction") or len(listed) > self._session.limits.bundle_entries:
            raise _NotUnderstoodError
        ctx = self._session.context(request)
        parts: dict[int, tuple[RequestPart, Resource]] = {}
        entries = read_entries(ctx, listed)
        for entry in entries:
            try:
                parts[entry.number] = self._entry(request, entry)
            except (FhirError, _NotUnderstoodError):
                continue
        refused: dict[int, RefusedEntry] = {}
        if not parts:
            raise _NotUnderstoodError
        if len(parts) < len(listed):
            rest = [_STAND_IN if number in parts else entry for number, entry in enumerate(listed)]
            body = serialization.dumps({"resourceType": "Bundle", "type": kind, "entry": rest})
            headers = {**request.headers, "content-type": FHIR_JSON}
            response = self._answer(replace(request, headers=headers, body=body))
            if response.status != 200:
                attempts = tuple(entry.attempt()._replace(status=response.status) for entry in entries)
                return replace(response, done=attempts)
            answers = serialization.loads(response.content)["entry"]
            refused = {
                number: RefusedEntry(answers[number], response.done[number])
                for number in range(len(listed))
                if number not in parts
            }
        bundle = {"resourceType": "Bundle", "type": kind, "entry": [entry for _, entry in parts.values()]}
        writes = any(part.method != "GET" for part, _ in parts.values())
        sent = _writing("POST", "", request, bundle)
        return Outgoing(sent.request, tuple(part for part, _ in parts.values()), writes, refused)

    def _entry(self, request: Request, entry: BundleEntry) -> tuple[RequestPart, Resource]:
        """Return an entry as it is sent."""
        entry.check()
        asked: Resource = {"method": entry.verb}
        if entry.verb == "GET":
            path = f"/{entry.path}".replace("#", "%23")
            read = self._request(Request("GET", path, entry.read_query())).request
            url = read.path.removeprefix("/") + (f"?{read.query}" if read.query else "")
            asked |= {"url": url} | ({"ifNoneMatch": entry.if_none_match} if entry.if_none_match else {})
            return RequestPart("GET", f"/{url}"), {"request": asked}
        resource_type, id = entry.type, entry.id
        if resource_type not in RESOURCE_TYPE_SET or (id and not _NAME.fullmatch(id)):
            raise _NotUnderstoodError
        url = resource_type
        if id:
            url += f"/{id}"
        elif entry.verb != "POST":
            url += f"?{self._criteria(request, resource_type, entry.query)}"
        asked["url"] = url
        if entry.verb == "POST" and (condition := self._condition(request, resource_type, entry.if_none_exist)):
            asked["ifNoneExist"] = condition
        if entry.if_match and entry.verb in ("PUT", "PATCH"):
            asked["ifMatch"] = entry.if_match
        sent: Resource = {"fullUrl": entry.full_url} if entry.full_url else {}
        if entry.verb != "DELETE":
            resource = entry.body()
            if entry.verb == "PATCH":
                resource = _patch_resource(resource)
            sent["resource"] = _with_id(resource, id) if entry.verb == "PUT" else resource
        return RequestPart(entry.verb, f"/{url}"), {**sent, "request": asked}


_STAND_IN = {"request": {"method": "GET", "url": "Basic?_summary=count"}}
"""An entry that the embedded server always answers with status 200."""


def _path(*names: str) -> str:
    return "".join(f"/{name}" for name in names if name)


def _printable(text: str) -> str:
    """Return the value of a header, if HTTP can send it."""
    text = text.strip()
    if not _PRINTABLE.fullmatch(text):
        raise _NotUnderstoodError
    return text


def _reading(method: str, path: str, request: Request, *, body: bytes = b"") -> Outgoing:
    """Return a request that only reads, with the request's headers."""
    names = _READ_HEADERS | ({"content-type"} if body else set())
    headers = {n: v.strip() for n, v in request.headers.items() if n in names and _PRINTABLE.fullmatch(v.strip())}
    return Outgoing(
        Request(method, path, quote(request.query, safe=_SAFE), headers, body), (RequestPart(method, path),)
    )


def _searching(request: Request, target: Target) -> Outgoing:
    if request.method != "POST":
        return _reading("GET", _path(target.resource_type, target.operation), request)
    return _posting(request, _path(target.resource_type, target.operation))


def _posting(request: Request, path: str, parameters: Resource | None = None) -> Outgoing:
    """Return a POST that only reads, with a form or with parameters in its body."""
    if parameters is None:
        form = decode_form(request.headers.get("content-type", ""), request.body)
        content_type, body = _FORM, urlencode(form).encode()
    else:
        content_type, body = FHIR_JSON, serialization.dumps(parameters)
    return _reading(
        "POST", path, replace(request, headers={**request.headers, "content-type": content_type}), body=body
    )


def _writing(
    method: str,
    path: str,
    request: Request,
    body: Json = None,
    *,
    query: str = "",
    headers: Mapping[str, str] = _NO_HEADERS,
) -> Outgoing:
    """Return a request that may write: with an own text of the body, and without a wish for a format."""
    wish = preference(request)
    sent = {
        "accept": FHIR_JSON,
        **({} if body is None else {"content-type": FHIR_JSON}),
        **({"prefer": f"return={wish}"} if wish else {}),
        **headers,
    }
    content = b"" if body is None else serialization.dumps(body)
    part = RequestPart(method, f"{path}?{query}" if query else path)
    return Outgoing(Request(method, path, query, sent, content), (part,), writes=True)


def _write_body(request: Request, kind: Kind, target: Target) -> tuple[Json, dict[str, str]]:
    """Return the body of a write, with its headers; None if it has none."""
    if kind == "delete":
        return None, {}
    if kind == "patch":
        content_type, patch = _patch(media_type(request.headers.get("content-type", "").strip()), request.body)
        return patch, {"content-type": content_type}
    if kind == "create" and target.id:
        raise _NotUnderstoodError
    return _with_id(posted_resource(request, target), target.id), {}


def _with_id(resource: Resource, id: str) -> Resource:
    """Return a resource with another id, or without one."""
    rest = {name: value for name, value in resource.items() if name not in ("resourceType", "id")}
    return {"resourceType": resource["resourceType"], **({"id": id} if id else {}), **rest}


def _patch(content_type: str, body: bytes) -> tuple[str, Json]:
    """Parse a patch; return the media type and the document to send."""
    patch = read_patch(content_type, body)
    if isinstance(patch, JsonPatch):
        return _JSON_PATCH, serialization.loads(body)
    if not isinstance(patch, FhirPathPatch):
        raise _NotUnderstoodError
    return FHIR_JSON, patch.parameters


def _patch_resource(resource: Resource) -> Resource:
    """Return the resource of a PATCH entry as it is sent."""
    read_patch_resource(resource)
    if resource["resourceType"] != "Binary":
        return resource
    document = base64.b64decode(resource.get("data", ""), validate=False)
    content_type, patch = _patch(media_type(str(resource["contentType"])), document)
    data = base64.b64encode(serialization.dumps(patch)).decode("ascii")
    return {"resourceType": "Binary", "contentType": content_type, "data": data}
