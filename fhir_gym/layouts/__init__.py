"""Folders of files for other programs, made from templates.

A layout is a folder beside this module. In a template's text and path, `$name` stands for a value and `$$` for `$`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import Template

__all__ = ["layout_files"]

_ENDING = ".template"


def layout_files(layout: str, values: Mapping[str, str]) -> dict[str, str]:
    """Return the content of each file of a layout by its path, such as ``server/app.py``."""
    folder = Path(__file__).parent / layout
    templates = {
        path.relative_to(folder).as_posix().removesuffix(_ENDING): path for path in folder.rglob(f"*{_ENDING}")
    }
    return {
        Template(name).substitute(values): Template(templates[name].read_text("utf-8")).substitute(values)
        for name in sorted(templates)
    }
