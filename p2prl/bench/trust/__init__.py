"""Benchmarks of trust: what cheats gain, with the defence and without it."""
