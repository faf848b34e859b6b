"""FHIRPath: a parser, a compiler for search parameters, and an evaluator for FHIRPath Patch."""

__all__: list[str] = []
