"""Limits on the work of requests, because an agent may be adversarial and a server may have thousands of agents."""

from __future__ import annotations

from dataclasses import dataclass


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
