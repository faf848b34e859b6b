"""Code that several kinds of request share."""

__all__: list[str] = []
