"""The line that tells an owner what others see of a machine that works for a run. Pure, and light: it is said first."""

from __future__ import annotations

_SEEN = "The learner and every other peer of the run can see this machine's IP address beside its id"


def visibility_line(*, is_seeder: bool, is_public: bool) -> str:
    """The line. It holds for a worker whose record is listed (`--public`, or a seeder), and for one whose is not."""
    if not (is_seeder or is_public):
        return f"{_SEEN}; no link, page or ledger joins the two."
    reason = "a seeder is public" if is_seeder else "--public"
    return f"{_SEEN}, and everybody else may ({reason}): join links and the pages that show them name both."
