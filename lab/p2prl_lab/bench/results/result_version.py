"""Versions of benchmark results: a stored result is reused only by code that would give the same figures.

Every part of the code that affects figures (a training loop, an environment, a loss) declares a small integer, its
result version, which is incremented by hand when a change affects figures. Moving or renaming code does not change it.
`tests/unit/lab/bench/test_result_versions.py` pins figures, so that a change cannot go unnoticed.
"""

from __future__ import annotations


def result_version(**versions: int) -> str:
    """The version stored with a result, such as `training=1 environment=1 loss=1`."""
    return " ".join(f"{part}={version}" for part, version in versions.items())
