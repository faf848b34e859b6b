"""What all pages of the viewer share: templates and the data behind the pages."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fhir_gym.html_templates import html_templates
from fhir_gym.web.episode_query import EpisodeQuery
from fhir_gym.web.links import Links
from fhir_gym.web.plays import Plays
from fhir_gym.web.rollout_index import RolloutIndex
from fhir_gym.web.text_search import TextSearch
from fhir_gym.web.world_store import WorldStore

_FOLDER = Path(__file__).parent
ASSETS = {
    "viewer.css": (_FOLDER / "static" / "viewer.css", "text/css"),
    "viewer.js": (_FOLDER / "static" / "viewer.js", "text/javascript"),
}
"""Path and media type of each static file."""


class PageTemplates:
    """The templates of the viewer.

    Every text is escaped, and its control characters become visible. The filter ``lines`` keeps line ends and tabs, for
    text in ``<pre>``.

    Raises:
        MissingExtraError: Jinja2 is not installed.
    """

    def __init__(self) -> None:
        self.environment, self.markup = html_templates(_FOLDER / "templates", needed_by="the viewer", extra="web")
        self.environment.filters["number"] = _number
        self.environment.filters["seconds"] = _seconds
        self.environment.filters["pack"] = pack_name

    def render(self, template: str, **values: Any) -> str:
        """Return a page as HTML. Lone surrogates, which UTF-8 cannot encode, are visible escapes."""
        rendered: str = self.environment.get_template(template).render(**values)
        return rendered


def _number(value: float | None) -> str:
    """Return a number with thousands separators; an empty text for None."""
    return "" if value is None else f"{value:,}"


def pack_name(env_id: str) -> str:
    """Return the short name of a pack: ``Appointment`` for ``FHIRAgent/Appointment-v0``."""
    return re.sub(r"-v\d+$", "", env_id.rpartition("/")[2])


def _seconds(value: float | None) -> str:
    """Return a duration; an empty text for None."""
    if value is None:
        return ""
    if value < 1:
        return f"{1000 * value:.0f} ms"
    return f"{value:.1f} s" if value < 60 else f"{int(value) // 60} min {int(value) % 60} s"


@dataclass(frozen=True)
class ViewerContext:
    """What all pages of the viewer share.

    Attributes:
        index: The episodes of the given files.
        links: The URLs of the pages.
        plays: The episodes that people play.
        search: The search in the texts of the episodes.
        form_token: Secret that each form of the viewer contains, so that other sites cannot send forms.
    """

    index: RolloutIndex
    worlds: WorldStore
    links: Links
    templates: PageTemplates
    plays: Plays = field(default_factory=Plays)
    form_token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    search: TextSearch = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "search", TextSearch(self.index))

    def where(self, query: EpisodeQuery) -> tuple[str, list[str | int]]:
        """Return the SQL condition of a query of the table of episodes, and its parameters."""
        return query.where(self.search.find(query.text) if query.text else None)

    def render(self, template: str, **values: Any) -> str:
        """Return a page as HTML.

        Args:
            template: Name of the template.
            values: The template's variables, in addition to `context` and `links`.
        """
        return self.templates.render(template, context=self, links=self.links, **values)


@dataclass(frozen=True)
class ExportedPage:
    """A page of an export.

    Attributes:
        name: Name of the file; see `FileLinks`.
        render: Function that returns the page as HTML.
    """

    name: str
    render: Callable[[], str]
