"""Checks of an HTML page that need no browser. Our pages are well-formed XML, too, so an XML parser reads them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")


def parse(html: str) -> ET.Element:
    """Parse a page; browsers read well-formed pages in the same way."""
    assert html.startswith("<!DOCTYPE html>\n<html lang=")
    return ET.fromstring(html.partition("\n")[2])


def text(element: ET.Element) -> str:
    return " ".join("".join(element.itertext()).split())


def check_structure(root: ET.Element) -> None:
    """Check headings, landmarks, images, tables, names of regions and ids."""
    levels = [int(element.tag[1]) for element in root.iter() if element.tag in HEADINGS]
    assert levels.count(1) == 1 and levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels)), levels
    assert root.get("lang") == "en" and text(require(root, ".//title"))
    require(root, ".//main")
    for figure in root.iter("figure"):
        assert text(require(figure, "figcaption")) and len(list(figure.iter("img"))) == 1
    for image in root.iter("img"):
        assert image.get("alt") and image.get("width") and image.get("height")
    for table in root.iter("table"):
        check_table(table)
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    for element in root.iter():
        name = element.get("aria-labelledby")
        assert name is None or name in ids
        assert element.get("role") != "group" or element.get("aria-label")
        link = element.get("href") if element.tag == "a" else None
        assert link is None or (link.startswith("#") and link[1:] in ids)


def check_table(table: ET.Element) -> None:
    """Check that a table has a caption, a header for each column and row, and equally long rows."""
    assert text(require(table, "caption"))
    heads = table.findall("thead/tr/th")
    assert heads and all(head.get("scope") == "col" and text(head) for head in heads)
    for row in table.findall("tbody/tr"):
        assert len(row) == len(heads)
        assert row[0].tag == "th" and all(cell.get("scope") == "row" for cell in row if cell.tag == "th")


def check_safety(root: ET.Element) -> None:
    """Check that a page contains no script and loads nothing."""
    policy = next(element.get("content", "") for element in root.iter("meta") if element.get("http-equiv"))
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-") and "unsafe" not in policy
    tags = {element.tag for element in root.iter()}
    assert not tags & {"script", "iframe", "object", "embed", "form", "link", "base", "audio", "video"}
    for element in root.iter():
        assert not [name for name in element.attrib if name.startswith("on") or name == "style"]
        source = element.get("src")
        assert source is None or re.fullmatch(r"data:image/svg\+xml;base64,[A-Za-z0-9+/=]+", source)
    style = text(require(root, ".//style"))
    assert "url(" not in style and "@import" not in style


def require(root: ET.Element, path: str) -> ET.Element:
    element = root.find(path)
    assert element is not None, path
    return element
