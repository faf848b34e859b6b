"""The groups of policies, with the result that each group must have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Group = Literal[
    "gold",
    "equivalent",
    "idle",
    "constant answer",
    "guessed number",
    "says none",
    "first hit",
    "hasty search",
    "no paging",
    "status ignored",
    "always create",
    "other variation",
    "wrong answer",
    "wrong value",
    "missing value",
    "neighbour's value",
    "wrong item more",
    "meaning reversed",
    "ignores decoys",
    "write left out",
    "right answer, no write",
    "twice",
    "delete and recreate",
    "something else touched",
    "odd url",
    "odd url in a bundle",
    "changed and changed back",
    "deleted and put back",
    "labels only",
    "list reversed",
    "prohibited tool",
    "no look",
    "looks at what is new",
    "acts in batches",
    "closes early",
    "by hand",
]

Expected = Literal["pass", "fail", "may pass", "fail unless gold's", "fail unless replaced", "fail unless refused"]
"""Expected result of a policy.

``fail unless gold's`` allows success only with the same writes and answer as the reference solution. ``fail unless
replaced`` allows success only if the server ends in the same state, because a later write replaces the wrong one, or if
other people did something else, such as withdrawing a request that the agent had not begun. ``fail unless refused``
allows success only in a live task, and only if the server refused every write that the reference solution does not
make, because somebody had changed the record.
"""

GROUPS: Mapping[Group, tuple[Expected, str]] = {
    "gold": ("pass", "the reference solution"),
    "equivalent": ("pass", "an equivalent route or spelling"),
    "idle": ("fail", "finishes at once or never finishes"),
    "constant answer": ("fail", "answers a common word, a number or a part of the prompt without any request"),
    "guessed number": ("may pass", "answers a number without any request, in tasks that ask for a number"),
    "says none": ("fail unless gold's", "reads everything, then always answers that there is nothing"),
    "first hit": ("may pass", "drops one or more search conditions and takes the first hit"),
    "hasty search": ("may pass", "leaves out one condition of a search"),
    "no paging": ("may pass", "reads only the first page of each search"),
    "status ignored": ("may pass", "treats every record as if it had the right status"),
    "always create": ("fail", "creates a resource of a required type without reading"),
    "other variation": ("fail", "replays the solution of another variation"),
    "wrong answer": ("fail", "does everything right but gives another answer"),
    "wrong value": ("fail unless replaced", "writes one wrong element"),
    "missing value": ("fail unless replaced", "leaves out one element of a written resource"),
    "neighbour's value": ("fail unless replaced", "writes one element with the value from another record"),
    "wrong item more": ("fail unless replaced", "adds a wrong item to a list in a written resource"),
    "meaning reversed": ("fail unless replaced", "adds an element that changes the meaning of a written resource"),
    "ignores decoys": ("fail unless gold's", "mistakes a decoy for the target, in all actions or in one"),
    "write left out": ("fail unless replaced", "leaves out one write"),
    "right answer, no write": ("fail", "leaves out all writes"),
    "twice": ("fail", "creates a resource twice instead of once"),
    "delete and recreate": ("fail", "deletes the resource that it should update, then creates it again"),
    "something else touched": ("fail unless refused", "does everything right, and also changes another record"),
    "odd url": ("fail unless refused", "does everything right, and also writes another record through an unusual URL"),
    "odd url in a bundle": (
        "fail unless refused",
        "writes another record, or writes before reading, by an unusual URL in a Bundle",
    ),
    "changed and changed back": (
        "fail unless refused",
        "does everything right, and also changes another record and restores it",
    ),
    "deleted and put back": (
        "fail unless refused",
        "does everything right, and also deletes another record and creates it again",
    ),
    "labels only": ("fail unless refused", "does everything right, and also changes the labels of another record"),
    "list reversed": ("fail unless refused", "does everything right, and also reverses a list of another record"),
    "prohibited tool": ("fail", "does everything right, and also uses a prohibited tool without effect"),
    "no look": ("fail", "writes and answers correctly, but reads no records or the wrong ones"),
    "looks at what is new": ("fail", "writes and answers correctly, but looks only at the records that changed last"),
    "acts in batches": (
        "fail",
        "in a live task, begins and ends the work on Tasks in one Bundle, or changes a record beside a look",
    ),
    "closes early": ("fail", "in a live task, closes Tasks before the work is done"),
    "by hand": ("fail", "follows wrong actions that the task defines"),
}
"""The expected result and a description of each group."""


def expected_result(group: Group) -> Expected:
    """The expected result of a group."""
    return GROUPS[group][0]
