"""A strategy that solvers can follow: handle one request after the other, and read everything again for each."""

from __future__ import annotations

import json
import re
from typing import Any

from .desk import Send

_REQUEST = re.compile(r"[A-Z]+\. ")


def solve_one_by_one(solve: Any, text: str, send: Send) -> str:
    """Return the FINISH action after a solver has had a prompt for each request."""
    head, rules = text.split("\nRules:\n", 1)
    lines = head.splitlines()
    answers: list[str] = []
    for request in filter(_REQUEST.match, lines):
        kept = [line for line in lines if line == request or not _REQUEST.match(line)]
        action = solve("\n".join(kept) + "\nRules:\n" + rules, send, "patch")
        answers += json.loads(action.removeprefix("FINISH(").removesuffix(")"))
    return f"FINISH({json.dumps(answers, ensure_ascii=False)})"
