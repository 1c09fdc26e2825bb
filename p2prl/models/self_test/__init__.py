"""Self-test of an engine at join: known completions that it has to draw."""
