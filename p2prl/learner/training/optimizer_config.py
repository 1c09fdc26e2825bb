"""AdamW's settings, the learning-rate schedule (warm-up and fall), and the norm at which a gradient is clipped."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from p2prl.errors import require


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """AdamW and its learning-rate schedule."""

    learning_rate: float = 2.5e-4
    """Peak learning rate. 2.5e-4 suits the 59k-parameter chain4 model; use 1e-6 for billions of parameters."""
    beta1: float = 0.9
    """Decay of the gradient's running mean, per update."""
    beta2: float = 0.99
    """Decay of the squared gradient's running mean, per update. Less than the usual .999: off-policy gradients change
    direction faster."""
    weight_decay: float = 0.0
    """Decoupled weight decay, as a factor on the learning rate; 0 for none."""
    warmup_updates: int = 10
    """Updates over which the learning rate rises linearly, while Adam's second moment is still inaccurate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate goes on after its rise: as it is, or down to `final_share` of its peak in `decay_updates`
    updates, in a straight line or along half a cosine."""
    decay_updates: int = 0
    """Updates over which it falls, after the warm-up; later ones keep the last rate."""
    final_share: float = 0.1
    """The last rate, as a share of the peak."""
    gradient_clip: float = 1.0
    """Largest gradient norm; a larger gradient is scaled down to it."""
    global_amsgrad: bool = True
    """Whether the learning rate follows the gradient's norm down, so that rare small gradients take small steps. Runs
    whose rollouts are hundreds of updates old lose what they had learned without it."""

    def __post_init__(self) -> None:
        require("learning_rate", self.learning_rate, 0.0 < self.learning_rate < math.inf, "above 0")
        require("beta1", self.beta1, 0.0 <= self.beta1 < 1.0, "within 0..1, 1 excluded")
        require("beta2", self.beta2, 0.0 <= self.beta2 < 1.0, "within 0..1, 1 excluded")
        require("weight_decay", self.weight_decay, 0.0 <= self.weight_decay < math.inf, "0 or more")
        require("warmup_updates", self.warmup_updates, self.warmup_updates >= 0, "0 or more")
        falls = self.schedule != "constant"
        require("decay_updates", self.decay_updates, self.decay_updates >= falls, "1 or more with a schedule")
        require("final_share", self.final_share, 0.0 <= self.final_share <= 1.0, "within 0..1")
        require("gradient_clip", self.gradient_clip, 0.0 < self.gradient_clip < math.inf, "above 0")

    def rate_share(self, step: int) -> float:
        """The learning rate of update `step`, from 0, as a share of its peak."""
        warm = min(1.0, (step + 1) / max(1, self.warmup_updates))
        if self.schedule == "constant" or step < self.warmup_updates:
            return warm
        done = min(1.0, (step - self.warmup_updates) / self.decay_updates)
        left = 1.0 - done if self.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return self.final_share + (1.0 - self.final_share) * left
