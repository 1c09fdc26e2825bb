"""Benchmarks of trust: what attacks on a run cost it, what they earn, and what the checks cost honest work."""
