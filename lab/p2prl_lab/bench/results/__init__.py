"""Benchmark results on disk, and their versions."""
