"""Settings of a learner that may change between starts: the `[learner]` table of run.toml."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from p2prl.errors import require
from p2prl.learner.training.memory_config import MemoryConfig
from p2prl.learner.training.optimizer_config import OptimizerConfig
from p2prl.learner.training.parallel_config import ParallelConfig
from p2prl.patches.dead_band import widest_band_ulp
from p2prl.patches.words import FP32

_MOST_REPLAYERS = 64
"""More processes than one machine has devices or cores for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnerConfig:
    """Training, publishing and pacing of a learner. It has this many fields because each is one key of the table."""

    groups_per_update: int = 16
    """R: groups of one update."""
    updates: int = 200
    """Updates of the run; 0 runs until stopped."""
    checkpoint_every: int = 10
    """Updates between checkpoints. A crash replays the updates since the last one, which costs time but no work."""
    ready_updates: float = 1.5
    """Verified groups to keep ready, as a multiple of `groups_per_update`; more only makes them staler."""
    replay_budget: float = 0.1
    """Time of replays beyond what the buffer lacks, as a share of the time updates take. Groups of peers with few
    verified groups come first, then those that expire soonest: newcomers are judged, and work that waited for the
    learner is credited, although the swarm outruns training."""
    pace_limit: float = 0.25
    """Longest wait between two updates for machines so slow that their groups would be too stale, as a share of the
    time an update takes; 0 never waits."""
    dynamic_sampling: float = 0.0
    """Groups without a learning signal that an update may leave out for others, as a multiple of `groups_per_update`;
    0 leaves out none. They are credited all the same. At that number it takes what comes."""
    chunk_pieces: int = 256
    """Chunks a version's weights are cut into, so that volunteers relay while they still download; fewer when they
    would be smaller than 64 KiB."""
    publish: Literal["manifest", "auto"] = "manifest"
    """When versions are published: every `publish_every` updates of the run manifest, or, with `auto`, as measured
    update and broadcast times allow, but never more often than that."""
    dead_band_ulp: int = 0
    """Weights that moved at most this many ulp of their word type since they were last published are published
    unchanged, which makes patches smaller; 0 publishes all changes. One ulp of bfloat16 is 8 of float16, 65536 of
    float32."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig, metadata={"formerly": "optimiser"})
    """AdamW and its learning rate."""
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    """Precision, optimizer states and micro-batches of a training step (docs/benchmarks/memory.md)."""
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    """Processes that train together."""
    replayers: int = 0
    """Processes that replay groups, on the cards after the learner's or on CPU threads of their own, each with the
    run's model in its memory; 0 replays in the learner. `p2prl plan` says whether they make updates faster."""

    def __post_init__(self) -> None:
        for name in ("groups_per_update", "checkpoint_every", "chunk_pieces"):
            require(name, value := getattr(self, name), value >= 1, "1 or more")
        require("replayers", self.replayers, 0 <= self.replayers <= _MOST_REPLAYERS, f"within 0..{_MOST_REPLAYERS}")
        require("updates", self.updates, self.updates >= 0, "0 or more")
        widest = widest_band_ulp(FP32)  # the run's own word type may allow less (`config.new_run.open_run`)
        require("dead_band_ulp", self.dead_band_ulp, 0 <= self.dead_band_ulp <= widest, f"within 0..{widest}")
        # Below 1 an update's worth would never be ready, and the learner would wait forever.
        require("ready_updates", self.ready_updates, 1.0 <= self.ready_updates <= 1000.0, "within 1..1000")

        require("dynamic_sampling", self.dynamic_sampling, 0.0 <= self.dynamic_sampling <= 100.0, "within 0..100")
        require("pace_limit", self.pace_limit, 0.0 <= self.pace_limit <= 4.0, "within 0..4")
        require("replay_budget", self.replay_budget, 0.0 <= self.replay_budget <= 4.0, "within 0..4")

    @property
    def ready_groups(self) -> int:
        """Verified groups to keep ready."""
        return int(self.ready_updates * self.groups_per_update)

    @property
    def most_left_out(self) -> int:
        """Groups without a learning signal that an update may leave out."""
        return round(self.dynamic_sampling * self.groups_per_update)
