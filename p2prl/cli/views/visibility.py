"""The line that tells an owner what others see of a machine that joins a run. Pure, and light: it is said first."""

from __future__ import annotations


def visibility_line(
    *, is_seeder: bool = False, is_public: bool = False, on_lan: bool = False, was_listed: bool = False
) -> str:
    """The line. A seeder, and a worker with `--public`, is listed; others are not, boards among them.

    `was_listed` says that a worker with the same key has been: nobody can take back what was copied then.
    """
    others = "every other peer of the run"
    seeing = f"{others} and the machines on this local network (--lan)" if on_lan else others
    seen = f"The learner{',' if on_lan else ' and'} {seeing} can see this machine's IP address beside its id"
    if is_seeder or is_public:
        reason = "a seeder is public" if is_seeder else "--public"
        return f"{seen}, and everybody else may ({reason}): join links and the pages that show them name both."
    if was_listed:
        return f"{seen}; no new link, page or ledger joins the two, but those made while it was listed do."
    return f"{seen}; no link, page or ledger joins the two."
