"""Task packs that are part of fhir_gym."""

__all__: list[str] = []
