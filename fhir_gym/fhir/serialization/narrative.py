"""A narrative's `div`: well-formed XHTML, unchanged except for the namespace that HAPI adds."""

from __future__ import annotations

import re

from fhir_gym.fhir.serialization.errors import ParseError

_NAMESPACE = ' xmlns="http://www.w3.org/1999/xhtml"'
_NAME = r"[A-Za-z_][\w.:-]*"
_ATTRIBUTES = rf"(?:\s+{_NAME}\s*=\s*(?:\"[^\"<]*\"|'[^'<]*'))*"
_TOKEN = re.compile(
    rf"<!--.*?-->|<!\[CDATA\[.*?\]\]>|<\?.*?\?>|</(?P<close>{_NAME})\s*>|<(?P<open>{_NAME}){_ATTRIBUTES}\s*(?P<empty>/?)>",
    re.DOTALL,
)
_MAX_DEPTH = 500


def check_div(text: str) -> str | None:
    """Return the div to store; None if the div is empty.

    Raises:
        ParseError: The text is not well-formed XHTML with a div as its root.
    """
    text = text.strip()
    if not text:
        return None
    if not text.startswith("<"):
        text = f"<div>{text}</div>"
    opening = re.match(rf"<div(?=[\s/>])({_ATTRIBUTES})", text)
    if opening is not None and " xmlns=" not in opening.group(1):
        text = f"<div{_NAMESPACE}{text[4:]}"
    root = _well_formed(text)
    if root != "div":
        raise ParseError(f"Unable to Parse HTML - starts with '{root}' not 'div'")
    return None if re.fullmatch(r"<div[^>]*(?:/>|>\s*</div>)", text) else text


def _well_formed(text: str) -> str:
    """Return the name of the root element, or raise if the text is not well-formed."""
    open_tags: list[str] = []
    root = ""
    at = 0
    while (start := text.find("<", at)) >= 0:
        found = _TOKEN.match(text, start)
        if found is None:
            raise _malformed(text, "Unexpected character in markup", start)
        if root and not open_tags and (found["open"] or found["close"]):
            raise _malformed(text, "Illegal to have multiple roots (start tag in epilog?).", start)
        if found["close"]:
            if not open_tags or open_tags[-1] != found["close"]:
                expected = f"expected </{open_tags[-1]}>." if open_tags else "no open start element."
                raise _malformed(text, f"Unexpected close tag </{found['close']}>; {expected}", found.end("close") - 1)
            open_tags.pop()
        elif found["open"]:
            root = root or found["open"]
            if not found["empty"]:
                open_tags.append(found["open"])
            if len(open_tags) > _MAX_DEPTH:
                raise _malformed(text, f"Maximum Element Depth limit ({_MAX_DEPTH}) Exceeded", start)
        at = found.end()
    if open_tags:
        message = f"Unexpected EOF; was expecting a close tag for element <{open_tags[-1]}>"
        raise _malformed(text, message, len(text))
    return root


def _malformed(text: str, message: str, at: int) -> ParseError:
    row = text.count("\n", 0, at) + 1
    column = at - (text.rfind("\n", 0, at) + 1) + 1
    return ParseError(
        f'HAPI-1755: String does not appear to be valid XML/XHTML (error is "{message}\n'
        f' at [row,col {{unknown-source}}]: [{row},{column}]"): {text}'
    )
