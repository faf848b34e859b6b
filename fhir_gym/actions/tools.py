"""The actions as functions for tool-calling models: five FHIR tools and ``finish``.

Names and parameters follow FHIR-AgentEval, with two differences. First, one call is one request, so a search returns
one page; the next page is requested with its link as ``pageUrl``. Second, bodies are objects, although JSON text is
accepted too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl

import orjson

from fhir_gym.actions.model import EXAMPLES, Action, Delete, Finish, Get, Invalid, Post, Put, too_deep
from fhir_gym.types import Json, json_object

_TYPE = re.compile(r"\A[A-Z][A-Za-z]*\Z")
_ID = re.compile(r"\A[A-Za-z0-9.-]{1,64}\Z")
_BARE = {"count": "_count", "sort": "_sort", "include": "_include", "revinclude": "_revinclude"}
"""Search result parameters for which FHIR-AgentEval's search tool accepts names without the underscore."""

_RESOURCE_TYPE = {"type": "string", "description": "FHIR R4 resource type, such as Patient."}
_RESOURCE_ID = {"type": "string", "description": "Logical id of the resource."}
_REFERENCES = "References in it are relative, such as Patient/12."
_TOOLS: dict[str, tuple[str, dict[str, dict[str, Any]], tuple[str, ...]]] = {
    "searchResources": (
        "Search resources of one type; returns a Bundle.",
        {
            "resourceType": _RESOURCE_TYPE,
            "params_json": {
                "type": "object",
                "description": 'Search parameters: {"family": "Lee", "_count": 50}; a list repeats a parameter.',
            },
            "pageUrl": {
                "type": "string",
                "description": "The next link of an earlier Bundle, instead of the other arguments.",
            },
        },
        (),
    ),
    "getResourceById": (
        "Read one resource.",
        {"resourceType": _RESOURCE_TYPE, "resourceId": _RESOURCE_ID},
        ("resourceType", "resourceId"),
    ),
    "createResource": (
        "Create a resource; the server gives it an id.",
        {
            "resourceType": _RESOURCE_TYPE,
            "body_json": {"type": "object", "description": f"The resource. {_REFERENCES}"},
            "ifNoneExist": {
                "type": "string",
                "description": "Search query: create the resource only if no resource matches.",
            },
        },
        ("resourceType", "body_json"),
    ),
    "updateResource": (
        "Replace a complete resource.",
        {
            "resourceType": _RESOURCE_TYPE,
            "resourceId": _RESOURCE_ID,
            "body_json": {"type": "object", "description": f"The complete new resource. {_REFERENCES}"},
            "ifMatchVersion": {"type": "string", "description": "Update only this version."},
        },
        ("resourceType", "resourceId", "body_json"),
    ),
    "deleteResource": (
        "Delete a resource.",
        {"resourceType": _RESOURCE_TYPE, "resourceId": _RESOURCE_ID},
        ("resourceType", "resourceId"),
    ),
    "finish": (
        "End the task with your answer.",
        {"answer": {"type": "array", "items": {}, "description": "The answer as a JSON list; [] for an empty answer."}},
        ("answer",),
    ),
}
NAMES = tuple(_TOOLS)
_EXAMPLE_CALLS: dict[str, dict[str, Json]] = {
    "searchResources": {"resourceType": "Patient", "params_json": {"family": "Lee"}},
    "getResourceById": {"resourceType": "Patient", "resourceId": "12"},
    "createResource": {"resourceType": "Patient", "body_json": {"resourceType": "Patient"}},
    "updateResource": {"resourceType": "Patient", "resourceId": "12", "body_json": {"resourceType": "Patient"}},
    "deleteResource": {"resourceType": "Patient", "resourceId": "12"},
    "finish": {"answer": ["12"]},
}


def schemas() -> list[dict[str, Any]]:
    """Return a new copy of the OpenAI function schemas."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": description,
                "parameters": {
                    "type": "object",
                    "properties": {key: dict(value) for key, value in properties.items()},
                    "required": list(required),
                    "additionalProperties": False,
                },
            },
        }
        for name, (description, properties, required) in _TOOLS.items()
    ]


class _BadCallError(Exception):
    """An invalid tool call. This module catches the exception itself."""


def to_action(
    name: str, arguments: Mapping[str, Any] | str, handled: Mapping[str, Json] = MappingProxyType({})
) -> Action | Invalid:
    """Return the action of a tool call; `arguments` is an object or JSON text.

    Explanations name the arguments `handled` too, which the caller has taken out of the call.
    """
    if name not in _TOOLS:
        near = get_close_matches(name[:60], _TOOLS, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        return Invalid(f"there is no tool {name[:60]!r}{hint} Tools: {', '.join(_TOOLS)}", EXAMPLES["GET"])
    try:
        return _BUILD[name](_checked(name, arguments, handled))
    except _BadCallError as error:
        return Invalid(f"{name}: {error}", example(name, handled))


def example(name: str, handled: Mapping[str, Json] = MappingProxyType({})) -> str:
    """Return a valid call of a tool as text, with the arguments that the caller of `to_action` handles."""
    return f"{name}({json.dumps({**handled, **_EXAMPLE_CALLS[name]})})"


def _checked(name: str, arguments: Mapping[str, Any] | str, handled: Mapping[str, Json]) -> Mapping[str, Any]:
    args = _decoded("the arguments", arguments)
    if not isinstance(args, Mapping):
        raise _BadCallError("the arguments must be a JSON object")
    _, properties, required = _TOOLS[name]
    unknown = [key for key in args if key not in properties]
    if unknown:
        raise _BadCallError(f"unknown argument {str(unknown[0])[:60]!r}; known: {', '.join([*handled, *properties])}")
    missing = [key for key in required if args.get(key) is None]
    if missing:
        raise _BadCallError(f"argument {missing[0]!r} is missing")
    for key, pattern in (("resourceType", _TYPE), ("resourceId", _ID)):
        value = args.get(key)
        if value is not None and not (isinstance(value, str) and pattern.match(value)):
            raise _BadCallError(f"{key} {str(value)[:60]!r} is not valid")
    return {key: value for key, value in args.items() if value is not None}


def _decoded(what: str, value: Json) -> Json:
    """Return a value, or the decoded value of a JSON text; refuse values that are nested too deeply."""
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise _BadCallError(f"{what} is not valid JSON: {error}") from None
    deep = too_deep(value)
    if deep:
        raise _BadCallError(deep)
    return value


def _text(args: Mapping[str, Any], key: str) -> str | None:
    value = args.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value.isprintable():
        raise _BadCallError(f"{key} must be a one-line string")
    return value


def _object(args: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = _decoded(key, args[key])
    if not isinstance(value, dict):
        raise _BadCallError(f"{key} must be a JSON object")
    return value


def _search(args: Mapping[str, Any]) -> Action:
    page = _text(args, "pageUrl")
    if page is not None:
        if len(args) > 1:
            raise _BadCallError("pageUrl cannot be combined with other arguments")
        return Get(page)
    if "resourceType" not in args:
        raise _BadCallError("argument 'resourceType' is missing")
    params = _object(args, "params_json") if "params_json" in args else {}
    pairs: list[tuple[str, Any]] = []
    for key, value in params.items():
        items = value if isinstance(value, list) else [value]
        if any(isinstance(item, dict | list) or item is None for item in items):
            raise _BadCallError(
                f"the value of search parameter {key[:60]!r} must be a string, a number, or a list of them"
            )
        pairs += [(_BARE.get(key, key), item) for item in items]
    url = f"/{args['resourceType']}"
    return Get(url, pairs) if pairs else Get(url)


def _create(args: Mapping[str, Any]) -> Action:
    condition = _text(args, "ifNoneExist")
    headers = {"If-None-Exist": condition} if condition is not None else None
    return Post(f"/{args['resourceType']}", _object(args, "body_json"), headers)


def _update(args: Mapping[str, Any]) -> Action:
    kind, rid = args["resourceType"], args["resourceId"]
    version = _text(args, "ifMatchVersion")
    headers = {"If-Match": f'W/"{version}"'} if version is not None else None
    # Like FHIR-AgentEval's tool, add a missing type or id; the server refuses a wrong type or id.
    body = {"resourceType": kind, "id": rid, **_object(args, "body_json")}
    return Put(f"/{kind}/{rid}", body, headers)


def _finish(args: Mapping[str, Any]) -> Action:
    answer = args["answer"]
    if isinstance(answer, str) and answer.lstrip().startswith("["):
        answer = _decoded("answer", answer)
    if not isinstance(answer, list):
        raise _BadCallError("answer must be a JSON list")
    return Finish(answer)


_BUILD: dict[str, Callable[[Mapping[str, Any]], Action]] = {
    "searchResources": _search,
    "getResourceById": lambda args: Get(f"/{args['resourceType']}/{args['resourceId']}"),
    "createResource": _create,
    "updateResource": _update,
    "deleteResource": lambda args: Delete(f"/{args['resourceType']}/{args['resourceId']}"),
    "finish": _finish,
}


def from_action(action: Action) -> tuple[str, dict[str, Any]] | None:
    """Return the tool name and arguments for an action; None if no tool can express the action."""
    if action.kind == "FINISH":
        return "finish", {"answer": action.answer or []}
    path, mark, query = action.url.partition("?")
    parts = path.strip("/").split("/")
    kind, rid = parts[0], parts[1] if len(parts) == 2 else None
    if "_getpages=" in query and action.kind == "GET":
        return "searchResources", {"pageUrl": action.url}
    if len(parts) > 2 or not _TYPE.match(kind) or (rid is not None and not _ID.match(rid)):
        return None
    headers = dict(action.headers)
    if rid is None:
        return _type_level(action, kind, query, headers)
    return _instance_level(action, kind, rid, headers) if not mark else None


def _type_level(action: Action, kind: str, query: str, headers: dict[str, str]) -> tuple[str, dict[str, Any]] | None:
    if action.kind == "GET" and not headers:
        params = _params(query)
        return "searchResources", {"resourceType": kind} | ({"params_json": params} if params else {})
    if action.kind != "POST" or query or set(headers) - {"If-None-Exist"}:
        return None
    body = json_object(action.body or "")
    if body is None:
        return None
    condition = {"ifNoneExist": headers["If-None-Exist"]} if headers else {}
    return "createResource", {"resourceType": kind, "body_json": body} | condition


def _instance_level(action: Action, kind: str, rid: str, headers: dict[str, str]) -> tuple[str, dict[str, Any]] | None:
    where = {"resourceType": kind, "resourceId": rid}
    if action.kind in ("GET", "DELETE") and not headers:
        return ("getResourceById" if action.kind == "GET" else "deleteResource"), where
    body = json_object(action.body or "")
    if action.kind != "PUT" or body is None or set(headers) - {"If-Match"}:
        return None
    version = re.fullmatch(r'W/"([^"]*)"', headers.get("If-Match", 'W/""'))
    if version is None:
        return None
    return "updateResource", where | {"body_json": body} | ({"ifMatchVersion": version[1]} if headers else {})


def _params(query: str) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key not in params:
            params[key] = value
        elif isinstance(params[key], list):
            params[key].append(value)
        else:
            params[key] = [params[key], value]
    return params
