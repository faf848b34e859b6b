"""Make untrusted text safe to print on one line."""

from __future__ import annotations

__all__ = ["one_line"]


def one_line(text: str, max_chars: int = 400) -> str:
    """Replace unprintable characters, such as line ends and escape codes, with `?`; truncate to `max_chars`."""
    shown = "".join(char if char.isprintable() else "?" for char in text[:max_chars])
    return shown if len(text) <= max_chars else f"{shown}…"
