"""Reasons of rejected groups in words."""

from __future__ import annotations

from collections.abc import Mapping

from p2prl.protocol.rejection_reasons import RejectionReason


def rejection_lines(reasons: Mapping[str, int]) -> list[str]:
    """A line for each reason, most frequent first. `reasons` counts groups by the code in their receipt."""
    most_first = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return [f"{count:,}: {explanation(code)}" for code, count in most_first]


def explanation(code: str) -> str:
    """The sentence of a code. Unknown codes are not shown: a stranger may have written them."""
    try:
        return RejectionReason(code).explanation
    except ValueError:
        return "A reason that this release does not know."
