"""FHIRAgent/ActionReasoning-v0: tasks of action-based reasoning over laboratory results, after ART."""
