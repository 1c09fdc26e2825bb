"""Looks at a crowd, the times that follow from them, and the report of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MOST_UNSERVED_S = 120.0
"""Until every run has a volunteer."""

MOST_LEAVING_S = 60.0
"""From an event of a run until its last volunteer has left it."""


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen at one moment."""

    at: float
    serving: tuple[str, ...]
    """The run of each volunteer; empty for none."""
    wants: Mapping[str, int] = field(default_factory=dict)
    """Volunteers that each listed run is believed to want."""
    kept: Mapping[str, int] = field(default_factory=dict)
    """Groups in all spools, by run."""
    lies: tuple[int, ...] = ()
    """Groups of each volunteer that the lying run has rejected."""


def all_taken_after(looks: Sequence[Look], runs: Sequence[str], since: float) -> float | None:
    """Seconds from `since` until each run had been taken by a volunteer; None if one never was."""
    firsts = [next((look.at for look in looks if run in look.serving), None) for run in runs]
    taken = [first for first in firsts if first is not None]
    return max(taken) - since if len(taken) == len(firsts) else None


def sampled_after(looks: Sequence[Look], runs: Sequence[str], since: float) -> float | None:
    """Seconds from `since` until each run had a group of a volunteer; None if one never had."""
    firsts = [next((look.at for look in looks if look.kept.get(run)), None) for run in runs]
    found = [first for first in firsts if first is not None]
    return max(found) - since if len(found) == len(firsts) else None


def left_after(looks: Sequence[Look], run: str, since: float) -> float | None:
    """Seconds from `since` until nobody served a run any more; None if somebody still does."""
    later = [look for look in looks if look.at >= since]
    return next((look.at - since for look in later if run not in look.serving), None)


def lied_to(looks: Sequence[Look], run: str) -> dict[int, float | None]:
    """By volunteer that a run has lied to: seconds from the first lie until it had left; None if it never did."""
    found: dict[int, float | None] = {}
    for number in range(max((len(look.lies) for look in looks), default=0)):
        told = [look for look in looks if number < len(look.lies) and look.lies[number]]
        if told:
            found[number] = next((look.at - told[0].at for look in told if look.serving[number] != run), None)
    return found


def came_back(looks: Sequence[Look], run: str) -> list[int]:
    """The volunteers that served a run again after it had lied to them and they had left it."""
    found = []
    for number, left in lied_to(looks, run).items():
        told = next(look.at for look in looks if number < len(look.lies) and look.lies[number])
        later = [look for look in looks if left is not None and look.at >= told + left]
        if any(look.serving[number] == run for look in later):
            found.append(number)
    return found


def parts(looks: Sequence[Look], runs: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Each run's part of the volunteers' time, and of what all runs want, means over the looks."""
    served, wanted = Counter[str](), Counter[str]()
    for look in looks:
        served.update(run for run in look.serving if run)
        wanted.update(look.wants)
    return {run: (served[run] / max(1, served.total()), wanted[run] / max(1, wanted.total())) for run in runs}


@dataclass(frozen=True, kw_only=True, slots=True)
class CrowdReport:
    """A crowd and what it did."""

    taken_s: float | None
    """Until each run had a volunteer, from the start of the volunteers."""
    sampled_s: float | None
    """Until each run had a group of theirs."""
    parts: dict[str, tuple[float, float]]
    """By run: part of the volunteers' time, and of the wants."""
    left_s: dict[str, float | None]
    """By run: from its event until nobody served it any more."""
    lied_to_s: list[float | None]
    """By volunteer that the lying run rejected: from the first rejection until it had left."""
    lies: int
    """Groups that the run rejected."""
    came_back: int
    """Volunteers that served it again."""
    states: dict[str, int]
    """Groups of the honest runs in the spools at the end, by state."""
    returned: int
    """Groups of the paused run that waited on disk when it was back and were delivered then."""
    lost: list[str]
    """What contradicts that nothing sampled is lost; empty when all is there."""
    load: float
    """Mean of processes that wanted a core, as the system counts them."""

    @property
    def holds(self) -> bool:
        """Whether it did what is promised."""
        return (
            self.taken_s is not None
            and self.taken_s <= MOST_UNSERVED_S
            and bool(self.lied_to_s)
            and all(left is not None and left <= MOST_LEAVING_S for left in [*self.left_s.values(), *self.lied_to_s])
            and not self.came_back
            and not self.lost
        )


def as_markdown(report: CrowdReport) -> str:
    """The report as a Markdown table."""

    def seconds(value: float | None) -> str:
        return "–" if value is None else f"{value:.0f} s"

    lines = ["| | |", "|---|--:|", f"| every run has a volunteer | {seconds(report.taken_s)} |"]
    lines.append(f"| every run has a group of one | {seconds(report.sampled_s)} |")
    for name, (served, wanted) in report.parts.items():
        lines.append(f"| `{name}`: part of the volunteers' time, of the wants | {served:.0%}, {wanted:.0%} |")
    for name, left in report.left_s.items():
        lines.append(f"| `{name}`: left after | {seconds(left)} |")
    lied = ", ".join(map(seconds, report.lied_to_s)) or "it lied to nobody"
    lines.append(f"| `lies`: left by each that it lied to after its first lie | {lied} |")
    lines.append(f"| `lies`: groups it rejected, volunteers that came back | {report.lies}, {report.came_back} |")
    counts = ", ".join(f"{count:,} {state}" for state, count in report.states.items())
    lines += [f"| groups of the others in the spools | {counts} |", f"| lost | {len(report.lost)} |"]
    return "\n".join([*lines, f"| load of the machine | {report.load:.1f} |"]) + "\n"
