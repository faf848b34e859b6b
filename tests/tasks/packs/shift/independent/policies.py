"""What the independent solvers of policies share: which policies are valid, and what they say about a point."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import cache

from .desk import Desk, Prompt, Record, find, instant, ref

_RULE = re.compile(r"<p>(?:\d+\.\d+|-) (?P<rule>[^<]+)</p>")
_IN_FORCE = r"In force from (\d{4}-\d\d-\d\d \d\d:\d\d) \(UTC\)"


class Policies:
    """The policies of the categories that the prompt names."""

    def __init__(self, desk: Desk, prompt: Prompt) -> None:
        categories = find(r"DocumentReferences with type policy and .+?: (.+?)\. The text", prompt.rules)
        found = desk.search_for("DocumentReference?type=policy&category=", re.findall(r"\(code ([\w-]+)\)", categories))
        valid = _valid(found, prompt.policies_at)
        self._by_department: dict[str, list[list[str]]] = {}
        """Rules of the policy of a department (by code and by name), and of its amendments, which come first."""
        amendments = sorted(valid.values(), key=in_force_from, reverse=True)
        for policy in valid.values():
            if not _targets(policy, "appends"):
                documents = [*(it for it in amendments if ref(policy) in _targets(it, "appends")), policy]
                for department in _departments(policy):
                    self._by_department[department] = [list(_rules(it)) for it in documents]
        self.point = cache(self._point)

    def _point(self, department: str, pattern: str) -> tuple[str, ...] | None:
        """Return the groups of the sentence that settles a point for a department; None if no policy settles it."""
        for rules in [*self._by_department.get(department, []), *self._by_department.get("", [])]:
            for rule in rules:
                match = re.fullmatch(pattern, rule)
                if match:
                    return match.groups()
        return None


def _valid(policies: Iterable[Record], moment: datetime) -> dict[str, Record]:
    """Return the policies that are in force and not replaced."""
    in_force = [
        it
        for it in policies
        if it["status"] == "current" and it.get("docStatus") == "final" and in_force_from(it) <= moment
    ]
    replaced = {target for it in in_force for target in _targets(it, "replaces")}
    return {ref(it): it for it in in_force if ref(it) not in replaced}


def rules_in_force(policies: Iterable[Record], moment: datetime) -> list[str]:
    """Return the lines with rules in the only valid policy of a subject."""
    (policy,) = _valid(policies, moment).values()
    return re.findall(r"<p>((?:- |  - )[^<]+)</p>", html.unescape(policy["text"]["div"]))


def _departments(policy: Record) -> set[str]:
    """Return the code and the name of the department of a policy; an empty text for the whole hospital."""
    concept = policy.get("context", {}).get("practiceSetting", {})
    return {coding[it] for coding in concept.get("coding", []) for it in ("code", "display")} or {""}


def _targets(policy: Record, code: str) -> set[str]:
    return {it["target"]["reference"] for it in policy.get("relatesTo", []) if it["code"] == code}


def in_force_from(policy: Record) -> datetime:
    """Return the time from which a policy or an amendment is in force."""
    return instant(find(_IN_FORCE, policy["text"]["div"]).replace(" ", "T") + ":00Z")


def _rules(policy: Record) -> Iterator[str]:
    for match in _RULE.finditer(html.unescape(policy["text"]["div"])):
        yield match["rule"]
