"""Options of a lab run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from p2prl_lab.home_networks.sites import USUAL_KINDS, LineSpeed

DISTURBANCES = (
    "learner-restart",
    "learner-moves",
    "learner-away",
    "home-moves",
    "home-offline",
    "home-asleep",
    "relay-restart",
    "router-restart",
    "learner-line-moves",
)
"""What may be done to a settled swarm: kill the learner and start it again, also at another address, or only after
`away_s`, half of it with a newcomer; give a home another address; take its line down for 30 s; stop its processes for
two minutes; kill the first public seeder and start it again after 20 s; take a home's line down for 20 s while its
router forgets connections and opened ports; give the learner another address while it runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LabConfig:
    """What to build and how long to look: many fields, because each is an option of `nat_lab`."""

    homes: tuple[str, ...] = USUAL_KINDS
    """Kind of each home."""
    learner: str = "public"
    """Kind of the learner's site. One at home dials the first public seeder, which waits for it."""
    public: int = 2
    """Public volunteers beside the learner; they seed."""
    samplers: int = 99
    """Homes that sample (`p2prl join`), the first of them; the others seed, which needs no torch."""
    speed: LineSpeed = field(default_factory=LineSpeed)
    """Lines of the homes."""
    join_s: float = 90.0
    """Time for the homes to find each other, after the last has started."""
    leave_early: bool = False
    """Whether joining ends as soon as every worker has the learner and all punchable pairs talk."""
    steady_s: float = 60.0
    """Window of the shares, before and after a restart of the learner."""
    patience_s: float = 180.0
    """How long to wait for links to come back."""
    disturb: tuple[str, ...] = ("learner-restart",)
    away_s: float = 600.0
    """How long the learner stays away (`learner-away`)."""
    churn_s: float = 0.0
    """How long homes come and go after the disturbances; 0 for no churn."""
    share: float = 0.0
    """Share of the time in which a home samples; 0 for no bound."""
    run: Path | None = None
    """A run folder to copy; None makes one, in half a minute."""
    weight_bytes: int = 0
    """Size of random weights, sent by network processes alone; 0 runs the commands, with a model."""
    period_s: float = 10.0
    """Time between versions of random weights."""
    home_transport: str = "hivemind"
    """Transport of the homes that send random weights."""
    seed: int = 0
