"""Time a call many times and print the result as one JSON line.

Every measurement also times a fixed loop, the machine unit. A time divided by the machine unit (`units`) can be
compared between machines.
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
"""Iterations of the loop that defines the machine unit."""

_UNITS = 10
"""Number of runs of that loop per measurement."""


def percentile(sorted_values: list[float], share: float) -> float:
    """Return a percentile of sorted values (nearest rank); `share` is between 0 and 1."""
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


def machine_unit() -> int:
    """Run the loop that defines the machine unit: it adds up numbers."""
    total = 0
    for number in range(PASSES):
        total += number
    return total


def timed(work: Callable[[], object], clock: Callable[[], int]) -> float:
    """Return the duration of one call in microseconds; the clock returns nanoseconds."""
    start = clock()
    work()
    return (clock() - start) / 1_000


class Times(list[float]):
    """Times in microseconds, ascending.

    Attributes:
        unit_us: Median CPU time of the machine unit during the measurement.
        baseline: Times of the baseline; None without a baseline.
    """

    def __init__(self, times: Iterable[float], unit_us: float, baseline: Times | None = None) -> None:
        super().__init__(sorted(times))
        self.unit_us = unit_us
        self.baseline = baseline


def measure(
    action: Callable[[int], object],
    n: int,
    *,
    prepare: Callable[[int], object] | None = None,
    baseline: Callable[[int], object] | None = None,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Times:
    """Time `n` calls after `n / 10` warm-up calls.

    Args:
        action: The call to measure. Its argument is the number of the call, so that calls can differ.
        n: Number of measured calls.
        prepare: Called before each call, outside the measured time.
        baseline: The same work without the server; its calls alternate with those of `action`.
        clock: Clock in nanoseconds; `time.process_time_ns` excludes other processes.
    """
    warm, every = max(1, n // 10), max(1, n // _UNITS)
    times, baselines, units = [], [], []
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
            if baseline is not None and call >= 0:
                baselines.append(timed(partial(baseline, call), clock))
    finally:
        gc.enable()
    unit = median(units)
    return Times(times, unit, Times(baselines, unit) if baseline else None)


def memory_mib(pid: int | str, *, own: bool = False) -> float:
    """Return the resident memory of a process in MiB (Linux).

    Args:
        pid: Process id; ``self`` for this process.
        own: Whether to exclude file-backed pages (worlds, libraries), because the system can reclaim them.
    """
    resident, shared = map(int, Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1:3])
    return round((resident - shared * own) * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


@dataclass(frozen=True)
class Report:
    """Prints the measurements on one world.

    Attributes:
        world: The world's name.
        records: Number of resources in the world.
    """

    world: str
    records: int

    def line(self, name: str, **figures: object) -> None:
        """Print one measurement."""
        print(json.dumps({"name": name, "world": self.world, "records": self.records, **figures}))
        sys.stdout.flush()

    def times(self, name: str, times: list[float], **figures: object) -> None:
        """Print the median and the 95th percentile of times in microseconds.

        For a `Times` object, the line also has the machine unit and the median in machine units. If the object has a
        baseline, the line also has the baseline's median and the ratio of the two medians.
        """
        p50, p95 = percentile(times, 0.5), percentile(times, 0.95)
        found: dict[str, object] = {"n": len(times), "p50_us": round(p50, 1), "p95_us": round(p95, 1)}
        if isinstance(times, Times):
            found |= {"unit_us": round(times.unit_us, 1), "units": float(f"{p50 / times.unit_us:.3g}")}
            if times.baseline is not None:
                baseline = percentile(times.baseline, 0.5)
                found |= {"baseline_us": round(baseline, 1), "times_baseline": round(p50 / baseline, 2)}
        self.line(name, **found, **figures)
