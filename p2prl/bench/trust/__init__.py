"""Benchmarks of trust: what attacks on a run cost it, and what they cost whoever attacks."""
