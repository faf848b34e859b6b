"""Facts about the tasks of FHIR-AgentEval, for comparing fhir_gym's tasks with them."""

from __future__ import annotations

from collections.abc import Mapping

CALLS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("01", "02a", "02b", "03", "04a", "04b", "05", "06a", "06b", "08a", "08b"), (1, 1)),
    **dict.fromkeys(("09a", "09b", "10a", "10b", "11a", "12a", "12b", "12c"), (1, 1)),
    **dict.fromkeys(("07", "20"), (3, 3)),
    **dict.fromkeys(("09c", "16a", "16c", "22"), (2, 2)),
    **dict.fromkeys(("09d", "11c"), (1, 2)),
    "11b": (2, 3),
    "11d": (1, 3),
    "12d": (1, 5),
    **dict.fromkeys(("13a", "13b"), (2, 4)),
    **dict.fromkeys(("14a", "14b", "15b"), (5, 6)),
    **dict.fromkeys(("15a", "15c"), (5, 5)),
    **dict.fromkeys(("16b", "21a", "21b", "21c"), (4, 4)),
    "17a": (6, 6),
    "17b": (6, 7),
}
"""Minimum and maximum number of requests that an agent needs for each task to look up ids and solve the task.

``FINISH`` does not count as a request.
"""
