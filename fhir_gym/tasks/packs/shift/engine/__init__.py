"""What several kinds of request have in common."""
