"""The order in which Java's ``HashMap`` iterates, which HAPI shows in some answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_FIRST_ID = 6  # HAPI's internal ids of resources begin at 7, our row ids at 1


def names_in_hash_order(names: Iterable[str]) -> list[str]:
    """Return the distinct names in hash order.

    HAPI keeps the parameters of a request in a hash map, so this order decides which of several errors it reports.
    """
    distinct = list(dict.fromkeys(names))
    size = _table_size(len(distinct))
    return sorted(distinct, key=lambda name: _spread_hash(name) & (size - 1))


def resources_in_hash_order(rids: Sequence[int]) -> list[int]:
    """Return row ids in the hash order of HAPI's internal ids, as in a server that was loaded in the same order."""
    size = _table_size(len(rids))
    return sorted(rids, key=lambda rid: (rid + _FIRST_ID) & (size - 1))


def _table_size(entries: int) -> int:
    """Return the number of slots of a ``HashMap`` that grew to a number of entries."""
    size = 16
    while entries > size * 3 // 4:
        size *= 2
    return size


def _spread_hash(text: str) -> int:
    """Return Java's hash code of a string, spread as in ``HashMap``."""
    code = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8) + low) & 0xFFFFFFFF
    return code ^ (code >> 16)
