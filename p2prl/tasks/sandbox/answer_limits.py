"""Limits on what a scorer may take for one answer: time and memory."""

ANSWER_S = 2.0
"""Wall-clock seconds for one answer, unless a pool is told otherwise."""

ANSWER_MEMORY_MB = 512
"""Memory of a worker beyond that of the scorers themselves, 1e6 bytes, unless a pool is told otherwise."""
