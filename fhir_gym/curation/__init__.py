"""Looking after task files: audit, review by people, rewording, and sweeps of what tasks depend on."""
