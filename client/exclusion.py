"""Exclusion of this machine's key, as its owner learns of it: when to stop, and what to say. Pure.

A learner excludes a key after several forgeries that a second replay confirmed. Honest machines do not get there; one
whose memory or graphics card computes wrong numbers may. Going on would cost power for nothing.
"""

from __future__ import annotations

from p2prl.errors import MachineError

RECEIPTS_TO_STOP = 3
"""Groups rejected with `excluded` after which a volunteer stops: one fewer than a learner sends in one exclusion."""

COUNTED_FOR_S = 24 * 3600.0
"""Age of a group from which its rejection counts no more: the exclusion may have ended since."""


def exclusion_error() -> MachineError:
    """What the owner is told."""
    return MachineError(
        "the learner has excluded this machine's key: several of its groups were not what the policy samples, and a "
        "second replay confirmed it each time",
        remedy="If you changed nothing, this machine computes wrong numbers: undo overclocking, test its memory and "
        "graphics card, update the driver. The exclusion ends by itself, the first after an hour, each further one "
        "after twice as long: start again then. Credit that is final stays.",
    )
