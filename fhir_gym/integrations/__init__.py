"""Adapters that let other frameworks play episodes. Each module needs the framework that it names."""

__all__: list[str] = []
