"""The spread benchmark: how fast a blob reaches every peer."""
