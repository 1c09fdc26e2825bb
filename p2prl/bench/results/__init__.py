"""Kept benchmark results on disk."""
