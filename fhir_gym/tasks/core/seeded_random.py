"""The random number generator of variations."""

from __future__ import annotations

import random
from hashlib import blake2b


def seeded_random(*parts: object) -> random.Random:
    """Return a generator whose draws depend only on the texts of `parts`."""
    digest = blake2b("\n".join(map(str, parts)).encode(), digest_size=16).digest()
    return random.Random(int.from_bytes(digest, "big"))
