"""Limits on the work of requests: their sizes, the budget of a request, and the costs of its parts.

An agent may be adversarial, and a server may have thousands of agents.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fhir_gym.fhir.outcome import FhirError


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one session.

    Attributes:
        url_chars: Maximum length of a URL (path and query), and of the criteria in a conditional write or reference.
        form_bytes: Maximum size of the form in a search by POST.
        body_bytes: Maximum size of a request body.
        resource_bytes: Maximum size of a stored resource, and of all values that a patch adds.
        json_values: Maximum number of values in a body or a stored resource, estimated by its commas and brackets.
        page_entries: Maximum number of matches on one page; for a larger `_count`, pages have this size.
        answer_bytes: Maximum size of an answer; a page with larger matches ends earlier, and its next link leads to the
            remaining matches.
        indented_bytes: Maximum size of an indented answer; larger answers are not indented.
        bundle_entries: Maximum number of entries in a batch or transaction.
        searches: Maximum number of searches that the session keeps for paging; the oldest search is dropped first.
        remembered: Maximum number of matches in all kept searches (8 bytes each).
        overlay_bytes: Maximum memory of a session's writes, including indexes and all versions.
        includes: Maximum number of different `_include` and `_revinclude` parameters.
        elements: Maximum number of different names in `_elements`.
        sql_chars: Maximum length of the SQL query of a search.
        sql_steps: Maximum work of one request or bundle, in steps of SQLite's virtual machine (about ten million per
            second); other work is counted in the same unit. Steps do not depend on a machine's speed, so all machines
            refuse the same requests, except for requests within one percent of the limit (see `Store.budget`).
    """

    url_chars: int = 32_768
    form_bytes: int = 65_536
    body_bytes: int = 4 * 1024 * 1024
    resource_bytes: int = 6 * 1024 * 1024
    json_values: int = 100_000
    page_entries: int = 10_000
    answer_bytes: int = 16 * 1024 * 1024
    indented_bytes: int = 1024 * 1024
    bundle_entries: int = 2_000
    searches: int = 100
    remembered: int = 4_000_000
    overlay_bytes: int = 256 * 1024 * 1024
    includes: int = 50
    elements: int = 200
    sql_chars: int = 100_000
    sql_steps: int = 4_000_000


STEPS_OF_A_REQUEST = 300
"""The base cost of a request, in steps of about a tenth of a microsecond (`Limits.sql_steps`)."""

STEPS_OF_A_VALUE = 10
"""The cost of reading one value of a body."""

STEPS_OF_A_WRITE = 1_000
"""The base cost of a write; the content costs extra."""

BYTES_A_STEP = 16
"""Number of bytes of an answer that the server assembles at the cost of one step."""

PORTION = 10_000
"""Number of steps in one unit. SQLite reports steps in these units, and the budget counts them in these units."""

_DAMAGE = ("no such", "malformed", "unsupported file format", "database")
"""Prefixes of SQLite's messages about a damaged file. Errors in a query have the same error code."""
_OF_QUERIES = frozenset({sqlite3.SQLITE_ERROR, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_RANGE, sqlite3.SQLITE_MISMATCH})


def too_costly() -> FhirError:
    """Return the error for a request that exceeds its budget."""
    return FhirError(400, "This request is too costly for this server: narrow it", code="too-costly")


class WorkBudget:
    """The work that a request may do, counted in steps. `bool(budget)` is false once all steps are spent.

    Args:
        steps: The number of steps; several `Store.budget` blocks may spend from one budget.
    """

    def __init__(self, steps: int) -> None:
        self._portions = bytearray(steps // PORTION)
        self._spent = 0
        # The callback is not written in Python, because Python would run signal handlers in it, and SQLite would
        # mistake an exception from a handler (Ctrl-C) for an interruption. Popping from an empty bytearray raises,
        # which interrupts SQLite.
        self.tick = self._portions.pop

    def __bool__(self) -> bool:
        return bool(self._portions)

    def spend(self, steps: int) -> None:
        """Spend steps for work outside of SQLite.

        Raises:
            FhirError: Fewer steps are left.
        """
        self._spent += steps
        if self._spent < PORTION and self._portions:
            return
        due, self._spent = divmod(self._spent, PORTION)
        if due >= len(self._portions):
            self._portions.clear()
            raise too_costly()
        if due:
            del self._portions[-due:]


def refusal(error: sqlite3.Error | OverflowError) -> FhirError | None:
    """Return the FHIR error for an SQLite error that a query caused; None if the file is damaged.

    The error means that the query was interrupted, or that it is larger or more deeply nested than SQLite allows.
    """
    if isinstance(error, OverflowError):
        return FhirError(400, "This request holds a number that is too large for this server", code="value")
    code, text = getattr(error, "sqlite_errorcode", None), str(error)
    if code == sqlite3.SQLITE_INTERRUPT:
        return too_costly()
    if code in _OF_QUERIES and not text.startswith(_DAMAGE):
        message = f"This request is larger than this server's database can run ({text}): ask for less at once"
        return FhirError(400, message, code="too-costly")
    return None


@contextmanager
def refusing() -> Iterator[None]:
    """Convert SQLite errors that a query caused into FHIR errors; do not convert errors about a damaged file.

    Raises:
        FhirError: See `refusal`.
    """
    try:
        yield
    except (sqlite3.Error, OverflowError) as error:
        if refused := refusal(error):
            raise refused from None
        raise


def json_values(body: bytes) -> int:
    """Return an upper bound of the number of values: count JSON's commas and brackets, or XML's attributes and tags."""
    if body[:200].lstrip()[:1] == b"<":
        return max(body.count(b"<"), body.count(b"="))
    return body.count(b",") + body.count(b"{") + body.count(b"[")


def steps_of_storing(body: bytes) -> int:
    """Return the cost of checking, indexing and storing a resource."""
    return STEPS_OF_A_WRITE + 25 * json_values(body)


def steps_of_subset(body: bytes) -> int:
    """Return the cost of parsing a stored resource to return a part of it."""
    return 100 + len(body) // 4


def check_size(limits: Limits, body: bytes) -> None:
    """Check the size of a resource to be stored.

    Raises:
        FhirError: 413; the message states the exceeded limit.
    """
    if len(body) > limits.resource_bytes:
        raise FhirError(
            413,
            f"The resource would have {len(body)} bytes, more than the {limits.resource_bytes} that this server stores",
        )
    if len(body) > limits.json_values and (values := json_values(body)) > limits.json_values:
        raise FhirError(
            413, f"The resource would have {values} values, more than the {limits.json_values} that this server stores"
        )
