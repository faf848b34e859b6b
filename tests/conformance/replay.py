"""Ask the requests of a recorded case again, and say how alike two answers are.

The levels, each of which includes those before it:

- ``status``: the HTTP status.
- ``result``: and, for a search, the same set of matches, and the same total where the reference states one.
- ``order``: and the same order of the entries.
- ``body``: and the same body, once everything is replaced that a server may choose (assigned ids, times, page tokens).

Beside the levels stands ``headers``: the same Content-Type, ETag, Location and Content-Location. Where the reference
answered with a 5xx status, any 4xx status is right.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote

Answer = dict[str, Any]
Case = dict[str, Any]
HEADERS = ("Content-Type", "Location", "Content-Location", "ETag", "Last-Modified")
LEVELS = ("status", "result", "order", "body")
COLUMNS = (*LEVELS, "headers")

_UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_ID_IN_TEXT = re.compile(r'(?<=[?&]_id=)\d+\b|(?<=URL ID of ")\d+(?=")|(?<=<id value=")\d+(?=")')
_ID_IN_URL = re.compile(r"(?<![\w.-])(\d{1,12})(?=/_history|$)|(?<=/)(\d{1,12})(?=[/\"' ?]|$)")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+(Z|[+-]\d\d:\d\d)")


class Client(Protocol):
    """Sends requests to a server, whose base URL is `base`."""

    base: str

    def ask(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, body: Any = None, raw: str | None = None
    ) -> Answer:
        """Send a request and return the answer: `status`, `headers`, and `json` or `text`."""


def run(client: Client, case: Case) -> list[Answer]:
    """Ask the requests of a case, and return the answers; a request that needs a missing answer is skipped."""
    answers: list[Answer] = []
    for step in case["steps"]:
        try:
            url = _filled(step["url"], answers, client.base)
        except LookupError:
            answers.append({"skipped": True})
            continue
        answers.append(client.ask(step["method"], url, step.get("headers"), step.get("body"), step.get("raw")))
    return answers


def _filled(url: str, answers: Sequence[Answer], base: str) -> str:
    """Put the base URL, ids and next links of earlier answers into a URL."""

    def value(match: re.Match[str]) -> str:
        kind, _, number = match[1].partition(":")
        if kind == "BASE":
            return base
        answer = answers[int(number)] if int(number) < len(answers) else {}
        body = answer.get("json") if isinstance(answer.get("json"), dict) else {}
        text = _next_link(body) if kind == "NEXT" else _id_of(body, answer.get("headers", {}))
        if not text:
            raise LookupError
        return text

    return re.sub(r"\{\{([A-Z]+(?::\d+)?)\}\}", value, url)


def _next_link(bundle: Any) -> str:
    return next((str(link["url"]) for link in bundle.get("link", []) if link["relation"] == "next"), "")


def _id_of(body: Any, headers: Mapping[str, str]) -> str:
    location = re.sub(r"/_history/.*", "", headers.get("Location", ""))
    return str(body.get("id") or location.rpartition("/")[2])


class Normal:
    """Replaces what a server is free to choose in the answers of one case."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._ids: dict[str, str] = {}

    def text(self, text: str) -> str:
        """Return a text with numbers in place of ids, times and page tokens."""
        text = text.replace(self._base, "{{BASE}}").replace(quote(self._base, safe=""), "{{BASE}}")
        text = re.sub(r"_getpages=[0-9a-zA-Z-]+", "_getpages=*", text)
        text = re.sub(r"Took [\d,]+ms", "Took *ms", text).replace(".where(resolve() is Patient)", "")
        text = re.sub(r'(conditionally created resource )"\d+"', r'\1"*"', text)  # HAPI names milliseconds there
        text = _UUID.sub(lambda match: self._numbered(match[0]), text)
        text = _ID_IN_TEXT.sub(lambda match: self._numbered(match[0]), text)
        text = _TIME.sub("<time>", text)
        if not re.search(r"\b[A-Z][A-Za-z]+/\d+", text):
            return text
        is_version = {digit for digit in "0123456789"} if "/" in text else set()
        return _ID_IN_URL.sub(lambda match: match[0] if match[0] in is_version else self._numbered(match[0]), text)

    def _numbered(self, id: str) -> str:
        return self._ids.setdefault(id, f"#{len(self._ids) + 1}")

    def value(self, value: Any, key: str = "") -> Any:
        """Return a JSON value with numbers in place of ids, times and page tokens."""
        if isinstance(value, list):
            return [self.value(item, key) for item in value]
        if isinstance(value, str):
            return self.text(value)
        if not isinstance(value, dict):
            return value
        resource_type = value.get("resourceType")
        result = {}
        for name, item in value.items():
            is_chosen = name in ("id", "meta") and resource_type in ("Bundle", "CapabilityStatement")
            is_stamp = name in ("lastUpdated", "source") and key == "meta"
            is_narrative = name == "text" and resource_type == "OperationOutcome" and "div" in item
            if is_chosen or is_stamp or is_narrative:
                continue
            is_assigned = name == "id" and isinstance(item, str) and item.isdigit()
            result[name] = self._numbered(item) if is_assigned else self.value(item, name)
        return result


def _entries(answer: Answer) -> list[tuple[Any, Any, Any]] | None:
    """Return mode, type and id (or status) of the entries of a Bundle; None for other answers."""
    bundle = answer.get("json")
    if not isinstance(bundle, dict) or bundle.get("resourceType") != "Bundle":
        return None
    entries = []
    for entry in bundle.get("entry", []):
        mode, resource = entry.get("search", {}).get("mode"), entry.get("resource") or {}
        resource_type = resource.get("resourceType")
        id = resource.get("id") or (entry.get("response") or {}).get("status")
        is_assigned = str(id).isdigit() or (mode is None and resource_type in ("Bundle", "CapabilityStatement"))
        entries.append((mode, resource_type, "#" if is_assigned else id))
    return entries


def same_headers(reference: Answer, answer: Answer, normals: tuple[Normal, Normal]) -> bool:
    """Whether the headers that a client relies on are alike; of times, only the presence counts."""

    def plain(headers: Mapping[str, str], normal: Normal) -> dict[str, str]:
        kept = {name: value if name in ("Content-Type", "ETag") else "" for name, value in headers.items()}
        for name in ("Location", "Content-Location"):
            if name in headers and "/Bundle/" not in headers[name]:
                kept[name] = normal.text(headers[name])
        return kept

    return plain(reference.get("headers", {}), normals[0]) == plain(answer.get("headers", {}), normals[1])


def level_of(reference: Answer, answer: Answer, normals: tuple[Normal, Normal]) -> str | None:
    """Return the highest level at which two answers are alike; None if not even their status is."""
    if reference.get("skipped") or answer.get("skipped"):
        return "body" if reference.get("skipped") and answer.get("skipped") else None
    if reference["status"] >= 500:
        return "body" if 400 <= answer["status"] < 500 else None
    if reference["status"] != answer["status"]:
        return None
    expected, entries = _entries(reference), _entries(answer)
    if (expected is None) != (entries is None):
        return "status"
    if expected is not None and entries is not None:
        has_total = "total" in reference["json"]
        if Counter(expected) != Counter(entries) or (
            has_total and reference["json"]["total"] != answer["json"].get("total")
        ):
            return "status"
        if expected != entries:
            return "result"
    if "json" in reference:
        is_same = normals[0].value(reference["json"]) == normals[1].value(answer.get("json"))
    else:
        texts = (
            normal.text(resource.get("text", "")) for normal, resource in zip(normals, (reference, answer), strict=True)
        )
        is_same = reference["status"] == 204 or len(set(texts)) == 1
    return "body" if is_same else "order"
