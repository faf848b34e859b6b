"""Format the target of an HTTP redirect for messages. Redirects are never followed: they could leak credentials."""

from __future__ import annotations

from urllib.parse import urljoin, urlsplit

from fhir_gym.printable import one_line


def destination(url: str, location: str | None) -> str | None:
    """Return the URL a redirect points to, for display.

    Returns:
        The URL on one line, without user and password; None if there is no Location header.
    """
    if not location:
        return None
    try:
        target = urlsplit(urljoin(url, location.strip()))
        shown = target._replace(netloc=target.netloc.rpartition("@")[2]).geturl()
    except ValueError:  # such as an incomplete IPv6 address
        shown = location
    return one_line(shown, 200)
