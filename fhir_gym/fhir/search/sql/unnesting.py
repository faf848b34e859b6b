"""Move nested queries into a WITH clause: SQLite's parser has a stack of only 100 entries."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from fhir_gym.fhir.search.sql.predicates import Sql

_NESTED = "IN (SELECT "
MAX_NESTED = 4
"""Nesting depth that always fits the parser's stack; SQLite runs such queries faster if they stay nested."""
_TOKEN = re.compile(r"IN \(SELECT |[()?]|[^()?I]+|I")


@dataclass(slots=True)
class _Part:
    """The text between two parentheses."""

    text: list[str] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    query: bool = False


def unnested(query: Sql) -> Sql:
    """Move the nested queries (``IN (SELECT …)``) of a query into a WITH clause before the query.

    The nested queries do not refer to the outer query, so the result does not change.
    """
    text, values = query
    if text.count(_NESTED) <= MAX_NESTED or _depth(text) <= MAX_NESTED:
        return query
    given = iter(values)
    moved: list[_Part] = []
    stack = [_Part()]
    for token in _TOKEN.findall(text):
        here = stack[-1]
        if token == _NESTED:
            stack.append(_Part(["SELECT "], query=True))
        elif token == "(":
            stack.append(_Part())
        elif token == ")":
            stack.pop()
            if here.query:
                stack[-1].text.append(f"IN (SELECT * FROM nested{len(moved)})")
                moved.append(here)
            else:
                stack[-1].text += ("(", *here.text, ")")
                stack[-1].values += here.values
        else:
            here.text.append(token)
            if token == "?":
                here.values.append(next(given))
    (whole,) = stack
    clauses = ", ".join(f"nested{n} AS ({''.join(part.text)})" for n, part in enumerate(moved))
    return f"WITH {clauses} {''.join(whole.text)}", tuple(v for part in (*moved, whole) for v in part.values)


def _depth(text: str) -> int:
    """Return the nesting depth of a query."""
    deepest = depth = 0
    open_: list[bool] = []
    for token in re.findall(r"IN \(SELECT |[()]", text):
        if token == ")":
            depth -= open_.pop()
        else:
            open_.append(token == _NESTED)
            depth += open_[-1]
            deepest = max(deepest, depth)
    return deepest
