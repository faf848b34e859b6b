"""Answer the searches that people type into the viewer, with pages that need no session."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fhir_gym.actions import Invalid, parse, to_request
from fhir_gym.fhir import DEFAULT_BASE_URL, Request, Response, World
from fhir_gym.fhir.definitions import RESOURCE_TYPE_SET
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.paging import link
from fhir_gym.fhir.urls import decode
from fhir_gym.types import Json

PAGE_SIZE = 50
"""Number of matches on a page if the search does not say another."""


@dataclass(frozen=True, slots=True)
class WorldAnswer:
    """The answer to a search in a world.

    Attributes:
        problem: Why no request was sent; None if the server answered.
        response: The response; None if no request was sent.
        following: The search for the next page; None if there is none.
        previous: The search for the previous page; None if there is none.
        more_elsewhere: Whether there are further pages which only a session could return.
    """

    problem: str | None = None
    response: Response | None = None
    following: str | None = None
    previous: str | None = None
    more_elsewhere: bool = False


def answer_in_world(world: World, text: str) -> WorldAnswer:
    """Answer a GET as the server does, such as ``Patient?family=Lee`` or ``Patient/12``.

    Args:
        world: The world, which never changes.
        text: The URL, relative or absolute; ``GET`` before it is allowed.
    """
    text = text.strip()
    if not text:
        return WorldAnswer(problem="write a search, such as Patient?family=Lee")
    parsed = parse(text if text[:4].upper() == "GET " else f"GET {text}")
    if isinstance(parsed, Invalid):
        return WorldAnswer(problem=parsed.reason)
    request = to_request(parsed, DEFAULT_BASE_URL)
    if isinstance(request, Invalid):
        return WorldAnswer(problem=request.reason)
    with world.session() as session:
        response = session.handle(_in_pages(request))
    bundle = _json(response)
    following, previous = (_page(link(bundle, relation)) for relation in ("next", "previous"))
    return WorldAnswer(
        response=response,
        following=following,
        previous=previous,
        more_elsewhere=following is None and link(bundle, "next") is not None,
    )


def _in_pages(request: Request) -> Request:
    """Return a search of one type with a page size and an offset, so that its page links work in any session."""
    if request.path.strip("/") not in RESOURCE_TYPE_SET:
        return request
    names = {name for name in (pair.partition("=")[0] for pair in request.query.split("&"))}
    defaults = {"_count": str(PAGE_SIZE), "_offset": "0", "_total": "accurate"}
    if names & {"_summary", "_getpages"}:
        return request
    added = [f"{name}={value}" for name, value in defaults.items() if name not in names]
    return replace(request, query="&".join([*filter(None, [request.query]), *added]))


def _json(response: Response) -> Json:
    try:
        return response.json() if response.body else None
    except ValueError:
        return None


def _page(url: str | None) -> str | None:
    """Return the search of a page link; None for links that only the session with the search can answer."""
    if url is None or "_getpages=" in url:
        return None
    path, _, query = url.removeprefix(f"{DEFAULT_BASE_URL}/").partition("?")
    return f"{path}?{query}"


def without_paging(text: str) -> str:
    """Return a search as a person would type it: decoded, without the parameters that the viewer adds."""
    path, _, query = text.partition("?")
    pairs = [pair for pair in query.split("&") if pair and not _is_added(pair)]
    return f"{path}?{'&'.join(map(_readable, pairs))}" if pairs else path


def _is_added(pair: str) -> bool:
    return pair.startswith(("_offset=", "_total=")) or pair == f"_count={PAGE_SIZE}"


def _readable(pair: str) -> str:
    """Return a parameter decoded, if the server would still understand it."""
    try:
        decoded = decode(pair, plus=True)
    except FhirError:
        return pair
    return pair if decoded.count("=") != pair.count("=") or set(decoded) & set("&+%#") else decoded
