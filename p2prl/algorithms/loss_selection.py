"""Automatic choice of the loss (`loss = "auto"`): a pure state machine over measurements of each batch.

It chooses among three losses without options: GRPO near the policy, GEPO-T far from the samplers, where GRPO stops
learning, and gex in between. (GEPO-T with `sharpness` beats all of them at any distance in
`docs/benchmarks/staleness.md`; a run can select it explicitly.) The choice depends on two smoothed measurements, not on
the delay: the effective sample size of the whole-sequence ratios and the KL per token. Hysteresis and a minimum dwell
time prevent frequent changes. The state is plain numbers, so a replay after a crash chooses the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.algorithms.config_checks import require_between, require_positive
from p2prl.errors import ConfigError

CHOICES = ("grpo", "gex", "gepo_t")
"""Losses from near to far."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectionConfig:
    """Thresholds between near, middle and far. The defaults are those of `loss = "auto"`."""

    near_ess: float = 0.8
    """ESS/n at or above which the samplers are near, if the KL agrees."""
    near_kl: float = 0.01
    """Nats per token at or below which they are near."""
    far_ess: float = 0.3
    """ESS/n below which they are far."""
    far_kl: float = 0.05
    """Nats per token above which they are far: GRPO's clip then mutes or doubles a tenth of the tokens."""
    margin: float = 0.1
    """Hysteresis: fraction by which a figure must pass a threshold before the loss changes."""
    dwell_updates: int = 20
    """Minimum updates between two changes: Adam's moments reflect the previous loss for about that long."""
    smoothing: float = 0.1
    """Weight of the newest batch in the running means, in (0, 1]."""

    def __post_init__(self) -> None:
        require_between("near_ess", self.near_ess, 0.0, 1.0)
        require_between("far_ess", self.far_ess, 0.0, self.near_ess)
        require_positive("near_kl", self.near_kl)
        require_positive("far_kl", self.far_kl)
        require_between("margin", self.margin, 0.0, 1.0)
        require_positive("smoothing", self.smoothing)
        require_between("smoothing", self.smoothing, 0.0, 1.0)
        if self.near_kl > self.far_kl:
            raise ConfigError("near_kl is above far_kl", remedy="Set near_kl to far_kl or less.")
        if self.dwell_updates < 0:
            raise ConfigError("dwell_updates must be 0 or more", remedy="Set dwell_updates to 0 or more.")


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectionState:
    """State kept between batches."""

    loss: str = CHOICES[-1]
    """The current loss; initially the one that works at any staleness."""
    ess: float | None = None
    """Running mean of ESS/n; None before the first batch."""
    kl: float | None = None
    """Running mean of the KL, nats per token; None before the first batch."""
    updates: int = 0
    """Updates since the last change, or since the start."""


def observe(
    state: SelectionState, *, ess_fraction: float, kl_per_token: float, config: SelectionConfig
) -> tuple[SelectionState, str]:
    """The state after another batch, and the reason for a change of loss; empty when it did not change.

    `ess_fraction` in (0, 1] and `kl_per_token` in nats (k3, never below 0), over all completions of the batch.
    """
    ess = _blend(state.ess, ess_fraction, config.smoothing)
    kl = _blend(state.kl, max(0.0, kl_per_token), config.smoothing)  # k3 of equal log-probs may round below 0
    updates = state.updates + 1
    wanted = _wanted(state.loss, ess, kl, config)
    if wanted == state.loss or updates < config.dwell_updates:
        return SelectionState(loss=state.loss, ess=ess, kl=kl, updates=updates), ""
    where = {"grpo": "near the policy", "gex": "some way from the policy", "gepo_t": "far from the policy"}[wanted]
    reason = (
        f"loss {wanted} instead of {state.loss}: the rollouts are {where} "
        f"(ESS {ess:.0%} of a batch, KL {kl:.3f} nats per token)"
    )
    return SelectionState(loss=wanted, ess=ess, kl=kl, updates=0), reason


def _wanted(loss: str, ess: float, kl: float, config: SelectionConfig) -> str:
    """The loss for these figures; every threshold is shifted by the margin in favor of the current loss."""
    up, down = 1 + config.margin, 1 - config.margin
    is_near = loss == "grpo"
    near_ess = min(1.0, config.near_ess * (down if is_near else up))
    near_kl = config.near_kl * (up if is_near else down)
    if ess >= near_ess and kl <= near_kl:
        return "grpo"
    is_far = loss == "gepo_t"
    far_ess = config.far_ess * (up if is_far else down)
    far_kl = config.far_kl * (down if is_far else up)
    return "gepo_t" if ess < far_ess or kl > far_kl else "gex"


def _blend(mean: float | None, value: float, weight: float) -> float:
    return value if mean is None else mean + weight * (value - mean)
