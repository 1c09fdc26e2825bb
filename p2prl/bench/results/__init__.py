"""Benchmark results kept on disk, and their versions."""
