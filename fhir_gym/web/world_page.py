"""The pages of worlds: the list, a world's types and searches, a resource with its references, a patient's timeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from fhir_gym.errors import FhirGymError
from fhir_gym.fhir import FhirSession, World
from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET, SearchParameter, search_parameters
from fhir_gym.types import Json, Resource
from fhir_gym.web.context import ExportedPage, ViewerContext
from fhir_gym.web.measurements import SOURCE
from fhir_gym.web.patient_timeline import HEIGHT, WIDTH, patient_timeline
from fhir_gym.web.resource_view import Target, resource_heading, target_of, view_json, view_text
from fhir_gym.web.world_search import answer_in_world, without_paging

_EXPORTED_PATIENTS = 100
"""Maximum number of patients whose pages an export contains."""


def routes(context: ViewerContext) -> list[BaseRoute]:
    """Return the routes of the pages of worlds."""

    def page(render: Callable[..., str]) -> Callable[[Request], Response]:
        return lambda request: HTMLResponse(render(context, **request.path_params))

    def search(request: Request) -> Response:
        text, patient = (request.query_params.get(name, "") for name in ("request", "patient"))
        if patient:
            text = f"Patient?name:contains={quote(patient, safe='')}"
        return HTMLResponse(render_search(context, request.path_params["world"], text))

    return [
        Route("/worlds", page(render_worlds)),
        Route("/worlds/{world}", page(render_world)),
        Route("/worlds/{world}/search", search),
        Route("/worlds/{world}/Patient/{id}/timeline", page(render_timeline)),
        Route("/worlds/{world}/{resource_type}/{id}", page(render_resource)),
    ]


def exported(context: ViewerContext) -> Iterator[ExportedPage]:
    """Yield the exported pages of the worlds that the user gave: types, their first resources, and patients."""
    links = context.links
    pages: list[tuple[str | None, Callable[[], str]]] = []
    if context.worlds.given:
        pages.append((links.worlds(), partial(render_worlds, context)))
    for name in context.worlds.given:
        world = context.worlds.open(name)
        pages.append((links.world(name), partial(render_world, context, name)))
        for kind in world.manifest.counts:
            pages.append((links.search(name, kind), partial(render_search, context, name, kind)))
        for id in world.ids("Patient")[:_EXPORTED_PATIENTS]:
            pages.append((links.patient(name, id), partial(render_timeline, context, name, id)))
            pages.append((links.resource(name, "Patient", id), partial(render_resource, context, name, "Patient", id)))
    yield from (ExportedPage(file, render) for file, render in pages if file is not None)


def render_worlds(context: ViewerContext) -> str:
    """Return the list of worlds."""
    listed: list[tuple[str, World | None, str]] = []
    names = context.worlds.names()
    if context.links.is_export:  # an export says nothing about other worlds of this machine
        names = [name for name in names if name in context.worlds.given]
    for name in names:
        try:
            listed.append((name, context.worlds.open(name), ""))
        except FhirGymError as error:  # a damaged world must not hide the others
            listed.append((name, None, str(error)))
    return context.render("worlds.html.j2", worlds=listed)


def render_world(context: ViewerContext, world: str) -> str:
    """Return the page of a world: its types with their numbers, and the search form."""
    opened = context.worlds.open(world)
    return context.render("world.html.j2", name=world, manifest=opened.manifest)


def render_search(context: ViewerContext, world: str, request: str) -> str:
    """Return the page with the answer to a search.

    Args:
        context: The viewer.
        world: Name of the world.
        request: The search as a person writes it (``Patient?family=Lee``).
    """
    opened = context.worlds.open(world)
    kind = request.partition("?")[0].strip().strip("/")
    answer = answer_in_world(opened, request)
    return context.render(
        "world_search.html.j2",
        name=world,
        request=without_paging(request),
        types=opened.manifest.counts,
        answer=answer,
        view=replace(view_text(answer.response.text), links=()) if answer.response else None,
        url_of=_resource_links(context, world),
        kind=kind if kind in RESOURCE_TYPE_SET else "",
        parameters=_parameters(kind),
    )


def render_resource(context: ViewerContext, world: str, resource_type: str, id: str) -> str:
    """Return the page of a resource: its elements, and its references in both directions."""
    opened = context.worlds.open(world)
    resource = _read(opened, resource_type, id)
    with opened.session() as session:
        incoming = incoming_references(session, resource_type, id, opened.manifest.counts)
    outgoing = outgoing_references(resource)
    targets = [reference.target for reference in outgoing if reference.target]
    patient = (
        id
        if resource_type == "Patient"
        else next((target.id for target in targets if target.resource_type == "Patient"), "")
    )
    return context.render(
        "world_resource.html.j2",
        name=world,
        resource_type=resource_type,
        id=id,
        heading=resource_heading(resource),
        view=view_json(resource),
        url_of=_resource_links(context, world),
        outgoing=outgoing,
        patient=patient if patient and opened.holds("Patient", patient) else "",
        incoming=incoming,
    )


def render_timeline(context: ViewerContext, world: str, id: str) -> str:
    """Return the page of a patient's timeline."""
    opened = context.worlds.open(world)
    patient = _read(opened, "Patient", id)
    with opened.session() as session:
        timeline = patient_timeline(session, id, opened.manifest.counts)
    return context.render(
        "timeline.html.j2",
        name=world,
        id=id,
        heading=resource_heading(patient),
        patient=patient,
        timeline=timeline,
        source=SOURCE,
        width=WIDTH,
        height=HEIGHT,
    )


def _read(world: World, resource_type: str, id: str) -> Resource:
    """Return a resource of a world, or answer with the status 404."""
    resource = world.read(resource_type, id) if resource_type in RESOURCE_TYPE_SET else None
    if resource is None:
        raise HTTPException(404, f"The world {world.name} has no {resource_type}/{id}.")
    return resource


def _resource_links(context: ViewerContext, world: str) -> Callable[[Target | None], str | None]:
    """Return a function from a resource to the URL of its page."""

    def url_of(target: Target | None) -> str | None:
        return None if target is None else context.links.resource(world, target.resource_type, target.id)

    return url_of


def _parameters(resource_type: str) -> list[SearchParameter]:
    if resource_type not in RESOURCE_TYPE_SET:
        return []
    return [parameter for parameter in search_parameters(resource_type).values() if not parameter.name.startswith("_")]


@dataclass(frozen=True, slots=True)
class OutgoingReference:
    """A reference that a resource contains.

    Attributes:
        path: Where the resource has the reference (``participant.actor``).
        reference: The reference (``Patient/12``).
        display: The display of the reference; an empty text without one.
    """

    path: str
    reference: str
    display: str

    @property
    def target(self) -> Target | None:
        """The referenced resource of the same server; None for other references."""
        return target_of(self.reference)


@dataclass(frozen=True, slots=True)
class IncomingReferences:
    """The resources of one type that refer to a resource at one place.

    Attributes:
        resource_type: Type of the referring resources.
        parameter: The search parameter of the place.
        count: Number of referring resources.
        query: Search that returns them.
    """

    resource_type: str
    parameter: str
    count: int
    query: str


def outgoing_references(resource: Resource) -> list[OutgoingReference]:
    """Return the references that a resource contains, each place and target once, in order."""
    return list(dict.fromkeys(_references(resource, "")))


def _references(value: Json, path: str) -> Iterator[OutgoingReference]:
    if isinstance(value, list):
        for item in value:
            yield from _references(item, path)
    elif isinstance(value, dict):
        reference = value.get("reference")
        if isinstance(reference, str) and path:
            yield OutgoingReference(path, reference, str(value.get("display") or ""))
        for name, inner in value.items():
            yield from _references(inner, f"{path}.{name}" if path else name)


def incoming_references(
    session: FhirSession, resource_type: str, id: str, types: Iterable[str]
) -> list[IncomingReferences]:
    """Return the resources that refer to a resource, by type and search parameter.

    Of parameters that find the same resources, such as `subject` and `patient`, only the more general one is listed.

    Args:
        session: A session on the resource's world.
        resource_type: Type of the resource.
        id: Id of the resource.
        types: The resource types to search.
    """
    incoming: list[IncomingReferences] = []
    for kind in types:
        own: dict[str, IncomingReferences] = {}
        for name, parameter in search_parameters(kind).items():
            if parameter.type != "reference" or resource_type not in parameter.targets:
                continue
            query = f"{kind}?{name}={resource_type}/{quote(id, safe='')}"
            counted = session.get(f"/{query}&_summary=count")
            count = counted.get("total", 0) if isinstance(counted, dict) else 0
            place = parameter.expression.partition(".where(")[0]
            earlier = own.get(place)
            if count and (earlier is None or earlier.count < count):
                own[place] = IncomingReferences(kind, name, count, query)
        incoming += sorted(own.values(), key=lambda references: references.parameter)
    return incoming
