"""Benchmarks of trust: what cheats and lazy validators earn, and what the checks cost honest work."""
