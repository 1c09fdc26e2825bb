"""Human-readable reasons for rejected groups."""

from __future__ import annotations

from collections.abc import Mapping

from p2prl.client.spool import GIVEN_UP
from p2prl.protocol.rejection_reasons import explain


def rejection_lines(reasons: Mapping[str, int]) -> list[str]:
    """A line for each reason, most frequent first. `reasons` counts groups by the code in their receipt or spool."""
    most_first = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return [f"{count:,}: {GIVEN_UP.get(code) or explain(code)}" for code, count in most_first]
