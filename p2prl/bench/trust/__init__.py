"""Benchmarks of trust: what honest machines lose by the checks, and what cheats gain."""
