"""What several kinds of request have in common."""

__all__: list[str] = []
