"""Make untrusted text safe to print."""

from __future__ import annotations

from functools import lru_cache

__all__ = ["JSON_ESCAPES", "encodable", "markdown_text", "one_line", "visible"]

_OBEYED = (
    *((0x00, 0x1F), (0x7F, 0x9F)),  # control characters, which change colours or titles, move the cursor or end lines
    *((0x061C, 0x061C), (0x200E, 0x200F), (0x202A, 0x202E), (0x2066, 0x2069)),  # marks of the writing direction
    *((0x2028, 0x2029), (0xD800, 0xDFFF)),  # Unicode line ends, and surrogates, which streams cannot encode
)
_ESCAPES = {code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for a, b in _OBEYED for code in range(a, b + 1)}
JSON_ESCAPES = {code: f"\\u{code:04x}" for code in _ESCAPES if code != ord("\n")}
"""How JSON text shows each control character except line ends, by its code."""
_MARKDOWN = str.maketrans({letter: f"\\{letter}" for letter in "\\|`*_<>[]~$"})


def one_line(text: str, max_chars: int = 400) -> str:
    """Replace unprintable characters, such as line ends and escape codes, with `?`; truncate to `max_chars`."""
    shown = "".join(char if char.isprintable() else "?" for char in text[:max_chars])
    return shown if len(text) <= max_chars else f"{shown}…"


def visible(text: str, *, keep: str = "") -> str:
    """Escape control characters, so that a terminal shows them instead of executing them.

    Printed names, records, server responses and agent output may contain any characters.

    Args:
        text: The text.
        keep: Control characters to keep.
    """
    return text.translate(_escapes_without(keep))


@lru_cache(maxsize=16)
def _escapes_without(kept: str) -> dict[int, str]:
    return {code: shown for code, shown in _ESCAPES.items() if chr(code) not in kept}


def encodable(text: str) -> str:
    """Escape lone surrogates; agents and servers may write them, but UTF-8 files and requests cannot contain them."""
    return text.encode("utf-8", "backslashreplace").decode()


def markdown_text(text: str, max_chars: int = 400) -> str:
    """Return a text on one line, with control characters and the marks of Markdown and HTML escaped."""
    shown = " ".join(text.split())
    shown = shown if len(shown) <= max_chars else f"{shown[:max_chars]}…"
    return visible(shown).translate(_MARKDOWN)
