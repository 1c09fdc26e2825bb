"""Versions of benchmark results: a kept result is used again only by code that would give the same figures.

Every part of the code that decides figures (a training loop, an environment, a loss) declares a small whole number,
its result version, and a person raises it whenever a change moves figures. Moving or renaming code raises nothing.
`tests/unit/bench/test_result_versions.py` pins figures, so that a change cannot go unnoticed.
"""

from __future__ import annotations


def result_version(**versions: int) -> str:
    """The version of a result as it is written beside it: `training=1 environment=1 loss=1`."""
    return " ".join(f"{part}={version}" for part, version in versions.items())
