"""Timing of one thing many times, reported as one JSON line.

Beside each time stands that of a fixed loop, the machine unit, taken in between: `units` are the same on any machine,
as far as its processor treats all Python code alike.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

__all__ = ["PASSES", "Report", "Times", "machine_unit", "measure", "memory_mib", "percentile", "timed"]

PASSES = 100_000
"""Passes of the loop that is the machine unit."""

_UNITS = 10
"""How often it is timed in one measurement."""


def percentile(sorted_values: list[float], share: float) -> float:
    """The value below which `share` of the values lie (nearest rank)."""
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


def machine_unit() -> int:
    """The work that machines are compared by: a loop that adds up numbers."""
    total = 0
    for number in range(PASSES):
        total += number
    return total


def timed(work: Callable[[], object], clock: Callable[[], int]) -> float:
    """Microseconds of one call by a clock that tells nanoseconds."""
    start = clock()
    work()
    return (clock() - start) / 1_000


class Times(list[float]):
    """Times in microseconds, ascending.

    Attributes:
        unit_us: Median processor time of the machine unit meanwhile.
        raw: Times of the same work by other means, each taken beside one of these; None if there are no others.
    """

    def __init__(self, times: Iterable[float], unit_us: float, raw: Times | None = None) -> None:
        super().__init__(sorted(times))
        self.unit_us = unit_us
        self.raw = raw


def measure(
    action: Callable[[int], object],
    n: int,
    *,
    prepare: Callable[[int], object] | None = None,
    raw: Callable[[int], object] | None = None,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Times:
    """Times of `n` calls, after a tenth as many to warm up.

    Args:
        action: What is measured; gets the number of the call, so that calls differ.
        n: How many calls are measured.
        prepare: Called before each call, outside the measured time.
        raw: The same work by other means, measured beside it.
        clock: What measures, in nanoseconds; `time.process_time_ns` leaves out what other processes take.
    """
    warm, every = max(1, n // 10), max(1, n // _UNITS)
    times, raws, units = [], [], []
    gc.collect()
    gc.disable()
    try:
        for call in range(-warm, n):
            if call % every == 0:
                units.append(timed(machine_unit, time.process_time_ns))
            if prepare is not None:
                prepare(call)
            elapsed = timed(partial(action, call), clock)
            if call >= 0:
                times.append(elapsed)
            if raw is not None and call >= 0:
                raws.append(timed(partial(raw, call), clock))
    finally:
        gc.enable()
    unit = median(units)
    return Times(times, unit, Times(raws, unit) if raw else None)


def memory_mib(pid: int | str, *, own: bool = False) -> float:
    """Resident memory of a process (Linux).

    Args:
        pid: Its id; ``self`` for this one.
        own: Without the pages of files (worlds, libraries), which the system takes back where it needs them.
    """
    resident, shared = map(int, Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1:3])
    return round((resident - shared * own) * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


@dataclass(frozen=True)
class Report:
    """Prints the figures of one world.

    Attributes:
        world: The world's name.
        records: How many resources it holds.
    """

    world: str
    records: int

    def line(self, name: str, **figures: object) -> None:
        """Print one figure."""
        print(json.dumps({"name": name, "world": self.world, "records": self.records, **figures}))
        sys.stdout.flush()

    def times(self, name: str, times: list[float], **figures: object) -> None:
        """Print the middle and the slow end of measured times (microseconds).

        Beside them stand the machine unit, the middle in units, and the same work by other means with the ratio of both
        middles, as far as they were measured.
        """
        p50, p95 = percentile(times, 0.5), percentile(times, 0.95)
        found: dict[str, object] = {"n": len(times), "p50_us": round(p50, 1), "p95_us": round(p95, 1)}
        if isinstance(times, Times):
            found |= {"unit_us": round(times.unit_us, 1), "units": float(f"{p50 / times.unit_us:.3g}")}
            if times.raw is not None:
                raw = percentile(times.raw, 0.5)
                found |= {"raw_us": round(raw, 1), "times_raw": round(p50 / raw, 2)}
        self.line(name, **found, **figures)
