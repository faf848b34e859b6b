"""Live shifts: time passes with every action, requests arrive, and other people write on the same server."""

__all__: list[str] = []
