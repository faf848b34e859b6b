"""Prepare FHIR JSON for pages: Bundles become tables with columns by type, resources trees, references links."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from fhir_gym.errors import UnknownNameError
from fhir_gym.fhir import DEFAULT_BASE_URL
from fhir_gym.fhir.definitions import children
from fhir_gym.tasks.grading.comparison import parse_reference
from fhir_gym.types import Json, Resource, as_list, as_object
from fhir_gym.web.element_text import element_text, shortened

MAX_ROWS = 200
"""Maximum number of table rows for one Bundle."""
MAX_TEXT = 100_000
"""Maximum number of characters of a text or of JSON that one part of a page shows."""
_MAX_NODES = 1_500
_MAX_DEPTH = 24
_MAX_ISSUES = 50
_MAX_PARTS = 8
_MAX_LEAF = 20_000

_Entries = list[tuple[int, Mapping[str, Json], Resource]]


@dataclass(frozen=True, slots=True)
class ViewLimits:
    """How much of one body a page shows.

    Attributes:
        trees: Maximum number of entries of a Bundle that are shown as trees.
        characters: Maximum number of characters of JSON or text.
    """

    trees: int = 20
    characters: int = MAX_TEXT


_LIMITS = ViewLimits()


@dataclass(frozen=True, slots=True)
class Target:
    """The resource to which a reference points."""

    resource_type: str
    id: str

    @property
    def text(self) -> str:
        """The relative reference."""
        return f"{self.resource_type}/{self.id}"


@dataclass(frozen=True, slots=True)
class Cell:
    """A short text, and the resource to which it refers; for a list of references, one part for each."""

    text: str
    target: Target | None = None
    parts: tuple[Cell, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """One element of a resource.

    Attributes:
        name: Name of the element; for an item of a list, its position from 1.
        cell: The element's value, or a summary if the element has children.
        children: The elements below this element.
        text: The whole text of an element that `cell` shortens; for an attachment with text, the decoded data.
    """

    name: str
    cell: Cell
    children: tuple[Node, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """The resources of one type in a Bundle.

    Attributes:
        columns: Titles of the columns; the first column has the ids.
        rows: The cells of each resource.
        number: Number of resources of this type, of which the table may show fewer.
    """

    resource_type: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    number: int


@dataclass(frozen=True, slots=True)
class ResourceView:
    """A response body, a request body or a record in the form in which pages show it.

    Attributes:
        kind: ``bundle``, ``outcome`` (an OperationOutcome), ``resource``, ``json`` (other JSON) or ``text``.
        heading: The content in a few words (``Bundle: 3 of 12 matches``).
        tables: For a Bundle, a table for each type, and a table of the responses of a batch or transaction.
        trees: The resource, or the first entries of the Bundle.
        issues: For an OperationOutcome, severity, code and text of each issue.
        links: For a Bundle, the relation and URL of each paging link.
        source: The indented JSON, or the text itself.
        left_out: Number of characters that `source` lacks.
    """

    kind: Literal["bundle", "outcome", "resource", "json", "text"]
    heading: str
    tables: tuple[Table, ...] = ()
    trees: tuple[Node, ...] = ()
    issues: tuple[tuple[str, str, str], ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    source: str = ""
    left_out: int = 0

    @property
    def rows(self) -> int:
        """Number of table rows."""
        return sum(len(table.rows) for table in self.tables)


def view_text(text: str, base_url: str = DEFAULT_BASE_URL, limits: ViewLimits = _LIMITS) -> ResourceView:
    """Return the view of a text, which may or may not be JSON.

    Args:
        text: The text.
        base_url: Base URL of the server whose resources become links.
        limits: How much of the text the view shows.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        shown = text[: limits.characters]
        return ResourceView("text", f"{len(text):,} characters", source=shown, left_out=len(text) - len(shown))
    return view_json(value, base_url, limits)


def view_json(value: Json, base_url: str = DEFAULT_BASE_URL, limits: ViewLimits = _LIMITS) -> ResourceView:
    """Return the view of a JSON value; see `view_text`."""
    whole = _indented(value)
    source = whole[: limits.characters]
    left_out = len(whole) - len(source)
    builder = _TreeBuilder(base_url)
    if not isinstance(value, dict) or not isinstance(value.get("resourceType"), str):
        trees = (builder.node("", value),) if isinstance(value, dict | list) and value else ()
        return ResourceView("json", element_text(value), trees=trees, source=source, left_out=left_out)
    if value["resourceType"] == "Bundle":
        entries = _entries(value)
        return ResourceView(
            "bundle",
            _bundle_heading(value, len(entries)),
            tables=(*_tables(entries, base_url), *_responses(value, base_url)),
            trees=tuple(builder.node("", resource) for _, _, resource in entries[: limits.trees]),
            links=_paging_links(value),
            source=source,
            left_out=left_out,
        )
    trees = (builder.node("", value),)
    if value["resourceType"] == "OperationOutcome":
        issues = _issues(value)
        heading = "OperationOutcome: " + (issues[0][2] if issues else "no issues")
        return ResourceView("outcome", shortened(heading), trees=trees, issues=issues, source=source, left_out=left_out)
    return ResourceView("resource", resource_heading(value), trees=trees, source=source, left_out=left_out)


def resource_heading(resource: Resource) -> str:
    """Return a resource's type and id, and its most telling element."""
    name = element_text({key: resource.get(key) for key in ("resourceType", "id")})
    said = next((text for column in columns_of([resource]) if (text := element_text(column.value(resource)))), "")
    return f"{name}: {said}" if said else name


def tree(value: Json, base_url: str = DEFAULT_BASE_URL) -> Node:
    """Return a resource or element as a tree; very deep and very large values are shortened."""
    return _TreeBuilder(base_url).node("", value)


def target_of(value: Json, base_url: str = DEFAULT_BASE_URL) -> Target | None:
    """Return the resource on this server to which a Reference or a text points; None for other values."""
    reference = parse_reference(value, base_url) or parse_reference(value)
    return Target(*reference) if reference else None


def _indented(value: Json) -> str:
    try:
        return json.dumps(value, indent=2, ensure_ascii=False)
    except RecursionError:
        return "JSON that is nested too deeply to be shown"


def _entries(bundle: Resource) -> _Entries:
    """Return position, entry and resource of each entry with a resource."""
    entries = enumerate(as_list(bundle.get("entry")), start=1)
    return [
        (number, entry, entry["resource"])
        for number, entry in entries
        if isinstance(entry, dict) and isinstance(entry.get("resource"), dict)
    ]


def _bundle_heading(bundle: Resource, number: int) -> str:
    kind, total = bundle.get("type"), bundle.get("total")
    if kind in ("searchset", "history"):
        noun, many = ("match", "matches") if kind == "searchset" else ("version", "versions")
        of = f" of {total:,} {noun if total == 1 else many}" if isinstance(total, int) else ""
        return f"Bundle: {number} {'entry' if number == 1 else 'entries'}{of}"
    resources = "1 resource" if number == 1 else f"{number:,} resources"
    return resources if kind == "collection" else f"Bundle ({element_text(kind) or 'no type'}): {resources}"


def _tables(entries: _Entries, base_url: str) -> Iterator[Table]:
    by_type: dict[str, _Entries] = {}
    for entry in entries:
        by_type.setdefault(element_text(entry[2].get("resourceType")), []).append(entry)
    left = MAX_ROWS
    for resource_type, resources in by_type.items():
        if left > 0:
            yield _table(resource_type, resources[:left], len(resources), base_url)
        left -= len(resources)


def _table(resource_type: str, shown: _Entries, number: int, base_url: str) -> Table:
    columns = columns_of([resource for _, _, resource in shown])
    why = any(_search_mode(entry) == "include" for _, entry, _ in shown)
    rows = []
    for _, entry, resource in shown:
        id = resource.get("id")
        target = target_of(f"{resource_type}/{id}", base_url)
        cells = [_cell(column.value(resource), base_url) for column in columns]
        first = Cell(element_text(id) or "no id", target)
        rows.append((first, *([Cell(_search_mode(entry))] if why else []), *cells))
    titles = ("id", *(["found as"] if why else []), *(column.title for column in columns))
    return Table(resource_type, titles, tuple(rows), number)


def _search_mode(entry: Mapping[str, Json]) -> str:
    search = entry.get("search")
    return element_text(search.get("mode")) if isinstance(search, dict) else ""


def _responses(bundle: Resource, base_url: str) -> Iterator[Table]:
    """Yield a table of requests or responses in a batch, a transaction or a history."""
    rows = []
    for number, entry in enumerate(as_list(bundle.get("entry")), start=1):
        request, response = (as_object(as_object(entry).get(name)) for name in ("request", "response"))
        if request or response:
            url = response.get("location") or request.get("url")
            said = _issues(response["outcome"]) if isinstance(response.get("outcome"), dict) else ()
            cells = (number, request.get("method"), url, response.get("status"), "; ".join(issue[2] for issue in said))
            rows.append(tuple(_cell(value, base_url) for value in cells))
    if rows:
        yield Table("Bundle", ("entry", "method", "URL", "status", "outcome"), tuple(rows[:MAX_ROWS]), len(rows))


def _cell(value: Json, base_url: str) -> Cell:
    is_reference = _is_reference(value)
    is_url = isinstance(value, str) and "/" in value
    if isinstance(value, list) and len(value) == 1:
        return _cell(value[0], base_url)
    if isinstance(value, list) and len(value) <= _MAX_PARTS and all(_is_reference(part) for part in value):
        return Cell(element_text(value), parts=tuple(_cell(part, base_url) for part in value))
    return Cell(element_text(value), target_of(value, base_url) if is_reference or is_url else None)


def _is_reference(value: Json) -> bool:
    return isinstance(value, dict) and "reference" in value


def _issues(outcome: Resource) -> tuple[tuple[str, str, str], ...]:
    listed = outcome.get("issue")
    return tuple(
        (
            element_text(issue.get("severity")),
            element_text(issue.get("code")),
            element_text(issue.get("diagnostics") or issue.get("details")),
        )
        for issue in as_list(listed)[:_MAX_ISSUES]
        if isinstance(issue, dict)
    )


def _paging_links(bundle: Resource) -> tuple[tuple[str, str], ...]:
    listed = bundle.get("link")
    return tuple(
        (element_text(link.get("relation")), str(link.get("url")))
        for link in as_list(listed)[:10]
        if isinstance(link, dict)
    )


def _leaf(name: str, value: Json, cell: Cell) -> Node:
    """Return a node without children."""
    if value in ({}, [], ""):
        return Node(name, Cell("empty"))
    text = value[:_MAX_LEAF] if isinstance(value, str) and value != cell.text else ""
    return Node(name, cell, text=text)


def _decoded(parent: Json, name: str, value: Json) -> str | None:
    """Return the text of an attachment's data; None for other elements."""
    if name != "data" or not isinstance(parent, dict) or not isinstance(value, str):
        return None
    if not str(parent.get("contentType")).startswith("text/"):
        return None
    try:
        return base64.b64decode(value, validate=True).decode()
    except ValueError:
        return None


class _TreeBuilder:
    """Builds trees with a limited total number of nodes."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url
        self._left = _MAX_NODES

    def node(self, name: str, value: Json, depth: int = _MAX_DEPTH) -> Node:
        """Return the tree of a value."""
        cell = _cell(value, self._base_url)
        if not isinstance(value, dict | list) or not value:
            return _leaf(name, value, cell)
        if depth == 0:
            return Node(name, Cell(f"{cell.text} (deeper elements only in the JSON)"))
        inner: list[tuple[str, Any]] = (
            list(value.items()) if isinstance(value, dict) else [(str(n), item) for n, item in enumerate(value, 1)]
        )
        if len(inner) == 1 and isinstance(value, list):
            only = self.node(name, inner[0][1], depth)
            return Node(name, only.cell, only.children)
        children = []
        for number, (key, item) in enumerate(inner):
            if self._left <= 0:
                children.append(Node("…", Cell(f"{len(inner) - number} more elements only in the JSON")))
                break
            self._left -= 1
            decoded = _decoded(value, key, item)
            child = self.node(shortened(key, 60), item if decoded is None else decoded, depth - 1)
            children.append(child if decoded is None else replace(child, name=f"{key} (decoded)"))
        return Node(name, cell, tuple(children))


_MAX_COLUMNS = 5


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        paths: Paths of elements, of which the first that a resource has is shown. A path is an element name
            (``code``), a name with a choice of types (``value[x]``), or such names separated by dots.
    """

    title: str
    paths: tuple[str, ...]

    def value(self, resource: Resource) -> Json:
        """Return the element of a resource; None if the resource does not have it."""
        return next((element for path in self.paths if (element := find_element(resource, path)) is not None), None)


def _columns(*paths: str) -> tuple[Column, ...]:
    return tuple(Column(path.split("|")[0].removesuffix("[x]"), tuple(path.split("|"))) for path in paths)


_COLUMNS: dict[str, tuple[Column, ...]] = {
    "Account": _columns("name", "status", "subject", "guarantor.party", "servicePeriod"),
    "AllergyIntolerance": _columns("code", "patient", "clinicalStatus", "criticality", "recordedDate"),
    "Appointment": _columns("status", "start", "end", "participant.actor", "appointmentType|serviceType"),
    "CarePlan": _columns("title|category", "status", "intent", "subject", "period"),
    "Communication": _columns("payload", "status", "sender", "recipient", "sent"),
    "Condition": _columns("code", "subject", "clinicalStatus", "onset[x]|recordedDate", "encounter"),
    "Coverage": _columns("status", "beneficiary", "payor", "type", "period"),
    "DiagnosticReport": _columns("code", "subject", "status", "effective[x]", "result"),
    "Encounter": _columns("class", "type", "subject", "status", "period"),
    "FamilyMemberHistory": _columns("relationship", "name", "patient", "status", "condition.code"),
    "Group": _columns("name", "type", "quantity", "characteristic"),
    "Immunization": _columns("vaccineCode", "patient", "status", "occurrence[x]"),
    "Location": _columns("name", "type", "status", "address", "managingOrganization"),
    "MedicationAdministration": _columns("medication[x]", "subject", "status", "effective[x]", "dosage"),
    "MedicationRequest": _columns("medication[x]", "subject", "status", "authoredOn", "dosageInstruction"),
    "Observation": _columns("code", "value[x]|component", "effective[x]", "subject", "status"),
    "Organization": _columns("name", "type", "telecom", "address"),
    "Patient": _columns("name", "birthDate", "gender", "identifier", "telecom", "address"),
    "Practitioner": _columns("name", "identifier", "gender", "qualification.code"),
    "PractitionerRole": _columns("practitioner", "organization", "code", "specialty", "location"),
    "Procedure": _columns("code", "subject", "status", "performed[x]", "encounter"),
    "RelatedPerson": _columns("name", "patient", "relationship", "birthDate", "telecom"),
    "Schedule": _columns("actor", "serviceType|serviceCategory", "specialty", "planningHorizon"),
    "ServiceRequest": _columns("code", "subject", "status", "intent", "authoredOn|occurrence[x]"),
    "Slot": _columns("schedule", "status", "start", "end"),
    "Specimen": _columns("type", "subject", "status", "collection.collected[x]"),
    "Task": _columns("description", "status", "priority", "owner", "restriction.period"),
}


def columns_of(resources: Sequence[Resource]) -> tuple[Column, ...]:
    """Return the columns for resources of one type, without columns that are empty for all of them."""
    if not resources:
        return ()
    resource_type = resources[0].get("resourceType")
    chosen = _COLUMNS.get(resource_type) if isinstance(resource_type, str) else None
    if chosen is None:
        chosen = _summary_columns(str(resource_type))
    used = [column for column in chosen if any(column.value(resource) is not None for resource in resources)]
    return tuple(used[: max(_MAX_COLUMNS, len(_COLUMNS.get(str(resource_type), ())))])


def find_element(resource: Resource, path: str) -> Json:
    """Return the element at a path of `Column.paths`; None if there is none, and the values of all items of a list."""
    values: list[Json] = [resource]
    for name in path.split("."):
        values = [child for value in values for child in _step(value, name)]
    return None if not values else values[0] if len(values) == 1 else values


def _step(value: Json, name: str) -> list[Json]:
    if isinstance(value, list):
        return [child for item in value for child in _step(item, name)]
    if not isinstance(value, dict):
        return []
    if not name.endswith("[x]"):
        return [value[name]] if value.get(name) is not None else []
    stem = name.removesuffix("[x]")
    return [
        inner
        for key, inner in value.items()
        if key.startswith(stem) and key[len(stem) : len(stem) + 1].isupper() and inner is not None
    ][:1]


def _summary_columns(resource_type: str) -> tuple[Column, ...]:
    """Return the elements that FHIR includes in summaries of a type, except for ids and texts about the resource."""
    try:
        elements = children(resource_type)
    except UnknownNameError:
        return ()
    names = dict.fromkeys(
        f"{element.choice}[x]" if element.choice else element.name
        for element in elements.values()
        if element.summary and element.name not in ("id", "meta", "implicitRules", "modifierExtension")
    )
    return _columns(*names)
