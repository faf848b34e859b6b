"""The templates of the viewer's pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fhir_gym.html_templates import html_templates

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
        self.environment, self.markup = html_templates(
            _FOLDER / "templates", needed_by="the viewer", install="fhir-gym[web]"
        )
        self.environment.filters["number"] = _number
        self.environment.filters["seconds"] = _seconds

    def render(self, template: str, **values: Any) -> str:
        """Return a page as HTML. Lone surrogates, which UTF-8 cannot encode, are visible escapes."""
        rendered: str = self.environment.get_template(template).render(**values)
        return rendered


def _number(value: float | None) -> str:
    """Return a number with thousands separators; an empty text for None."""
    return "" if value is None else f"{value:,}"


def _seconds(value: float | None) -> str:
    """Return a duration; an empty text for None."""
    if value is None:
        return ""
    if value < 1:
        return f"{1000 * value:.0f} ms"
    return f"{value:.1f} s" if value < 60 else f"{int(value) // 60} min {int(value) % 60} s"
