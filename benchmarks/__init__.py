"""Figures, one JSON line each: `python -m benchmarks.server`, `python -m benchmarks.env`."""
