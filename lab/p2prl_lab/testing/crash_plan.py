"""The plan of a run under kills, and the report of what it kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from p2prl_lab.testing.run_audit import RunAudit


@dataclass(frozen=True, kw_only=True, slots=True)
class CrashPlan:
    """Number, order and timing of the kills. Many fields, because each is an option of `p2prl_lab.torture`."""

    kills: int
    updates: int
    """Of the run; where every role or the volunteers alone are killed, it has more if the kills take longer."""
    seed: int
    volunteers: int = 3
    pause_s: tuple[float, float] = (1.0, 3.0)
    """Time between two kills, drawn evenly from this range."""
    naps: int = 0
    """Times that a volunteer's machine sleeps, and goes on where it was: spread over the kills, and beside them."""
    nap_s: float = 5.0
    finish_s: float = 300.0
    """Longest time from the last kill to the end of the run."""
    every_role: bool = False
    """Kill learner, volunteers, validator and seeder equally often; else the learner in two of five kills, any other
    role in the rest, and there is no seeder."""
    volunteers_only: bool = False
    """Kill nobody but volunteers, and the learner once at the end."""
    patience: float = 1.0
    """Multiplies every limit on waiting. While others keep the processors busy, limits are longer by themselves
    (`StarvedTime`)."""
    storm_keys: int = 0
    """Keys of the floods that go on all the time (`storm`); 0 for none."""
    share: float = 0.0
    """Of the time in which a volunteer computes; 0 for no bound. All that it samples is checked."""
    owner: bool = False
    """Whether the volunteers' owner pauses, resumes and limits them meanwhile."""

    @property
    def is_open_ended(self) -> bool:
        """Whether the run goes on until all kills are done."""
        return self.every_role or self.volunteers_only


@dataclass(slots=True)
class CrashReport:
    """Kills of a run, and its final audit. Many fields, because each is a figure of the report."""

    killed: list[str] = field(default_factory=list)
    slept: list[str] = field(default_factory=list)
    """Volunteers whose machine slept and woke up."""
    states: Counter[str] = field(default_factory=Counter)
    """What the volunteers that were killed or put to sleep were doing, by their status files."""
    resumes_checked: int = 0
    orphans_ended_s: list[float] = field(default_factory=list)
    left_at_end: int = 0
    """Groups that the learner stored and had no time to check before it ended the run; it is started again for them."""
    learner_back_s: float = 0.0
    """From the moment the restarted learner listened to the first group that reached it."""
    audit: RunAudit | None = None
    reward: float = 0.0
    wall_s: float = 0.0
    flood: dict[str, int] = field(default_factory=dict)
    """Messages that the floods sent, by kind."""
    revived: Counter[str] = field(default_factory=Counter)
    """Roles that gave up by themselves and were started again, as a service does."""
    commands: dict[str, int] = field(default_factory=dict)
    """Commands of a restless owner that workers have answered, by kind."""

    def summary(self) -> dict[str, Any]:
        """The figures, for JSON."""
        audit = self.audit
        assert audit is not None
        return {
            "kills": Counter(self.killed),
            "naps": Counter(self.slept),
            "states": dict(self.states),
            "resumes_checked": self.resumes_checked,
            "orphans_ended_s_max": round(max(self.orphans_ended_s, default=0.0), 2),
            "learner_back_s": round(self.learner_back_s, 2),
            "updates": audit.updates,
            "versions": audit.versions,
            "policies_reproduced": audit.policies_reproduced,
            "groups": audit.groups,
            "left_at_end": self.left_at_end,
            "verified": audit.verified,
            "expired": audit.expired,
            "rejected": audit.rejected,
            "spooled": audit.spooled,
            "flood": self.flood,
            "commands": self.commands,
            "revived": dict(self.revived),
            "reward": round(self.reward, 4),
            "wall_s": round(self.wall_s, 1),
        }
