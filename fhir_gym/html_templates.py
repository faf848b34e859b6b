"""Jinja2 templates that escape every text and make control characters visible."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from fhir_gym.errors import missing_extra, pip_install
from fhir_gym.printable import visible

__all__ = ["html_templates"]


def html_templates(folder: Path, *, needed_by: str, extra: str) -> tuple[Any, Any]:
    """Return a Jinja2 environment for a folder, and the class of texts that are HTML already.

    The environment escapes each text and shows its control characters, line ends included, as `visible` does. The
    filter ``lines`` keeps line ends and tabs, for text in ``<pre>``.

    Args:
        folder: Folder of the templates.
        needed_by: What needs Jinja2, as the subject of the error message.
        extra: The extra that contains Jinja2.

    Raises:
        MissingExtraError: Jinja2 is not installed.
    """
    with missing_extra(f"{needed_by} needs Jinja2: {pip_install(extra)}"):
        jinja2, markupsafe = import_module("jinja2"), import_module("markupsafe")

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters["lines"] = lambda text: markupsafe.escape(visible(str(text), keep="\n\t"))
    return environment, markupsafe.Markup
