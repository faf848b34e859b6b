"""Response headers that say which version of what was answered."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime
from urllib.parse import quote

from fhir_gym.fhir.context import Context

__all__ = ["JSON", "bundle_headers", "http_date", "uri", "version_headers"]

JSON = "application/fhir+json;charset=UTF-8"
_VISIBLE = "".join(map(chr, range(0x21, 0x7F)))


def uri(text: str) -> str:
    """A url as a header may hold it: all but visible ASCII is percent-encoded, so nothing ends the header early."""
    return text if text.isascii() and text.isprintable() and " " not in text else quote(text, safe=_VISIBLE)


def http_date(updated: int) -> str:
    """Milliseconds since the epoch as an HTTP date."""
    return format_datetime(datetime.fromtimestamp(updated // 1000, UTC), usegmt=True)


def version_headers(ctx: Context, resource_type: str, id: str, version: int, updated: int) -> dict[str, str]:
    """Content-Location, ETag and Last-Modified of one version."""
    return {
        "Content-Location": f"{ctx.base_url}/{resource_type}/{id}/_history/{version}",
        "ETag": f'W/"{version}"',
        "Last-Modified": http_date(updated),
    }


def bundle_headers(ctx: Context, bundle_id: str) -> dict[str, str]:
    """Content-Location and Last-Modified of a Bundle made for this answer (history, operations)."""
    return {
        "Content-Location": f"{ctx.base_url}/Bundle/{bundle_id}",
        "Last-Modified": format_datetime(ctx.sequence.now.astimezone(UTC).replace(microsecond=0), usegmt=True),
    }
