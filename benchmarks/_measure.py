"""Timing of one thing many times, reported as one JSON line."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Report", "measure", "memory_mib", "percentile"]


def percentile(sorted_values: list[float], share: float) -> float:
    """The value below which `share` of the values lie (nearest rank)."""
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


def measure(
    action: Callable[[int], object],
    n: int,
    *,
    prepare: Callable[[int], object] | None = None,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> list[float]:
    """Times of `n` calls in microseconds, ascending, after a tenth as many calls to warm up.

    Args:
        action: What is measured; gets the number of the call, so that calls differ.
        n: How many calls are measured.
        prepare: Called before each call, outside the measured time.
        clock: What measures, in nanoseconds; `time.process_time_ns` leaves out what other processes take.
    """
    warm = max(1, n // 10)
    times = []
    gc.collect()
    gc.disable()
    try:
        for call in range(-warm, n):
            if prepare is not None:
                prepare(call)
            start = clock()
            action(call)
            elapsed = (clock() - start) / 1_000
            if call >= 0:
                times.append(elapsed)
    finally:
        gc.enable()
    return sorted(times)


def memory_mib(pid: int) -> float:
    """Resident memory of a process (Linux)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


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
        """Print the middle and the slow end of measured times (microseconds)."""
        p50, p95 = round(percentile(times, 0.5), 1), round(percentile(times, 0.95), 1)
        self.line(name, n=len(times), p50_us=p50, p95_us=p95, **figures)
