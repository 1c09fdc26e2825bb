"""Probes of a replay: log-probs that prove a forward pass, and the comparison of a verdict's with one's own. Pure.

A probe's log-prob deviates between two engines by the difference of its own logit and of the log-sum-exp, each with the
deviation that `replay_statistics/noise` states; the second is shared by the probes of a row. So the mean square of each
row is one observation, and their sum over the rows is compared with the tail of a χ² variable: several probes are
tested together, never the worst of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from p2prl.models.replay_statistics.noise import Floats, NoiseScale
from p2prl.models.scorer_port import Scored
from p2prl.protocol.verdict_probes import CANDIDATES, probe_places

FALSE_FAILURES = 1e-6
"""Probability that an honest validator's probes fail, with the scale's noise."""

_FLOAT16_ROUNDOFF = 2.0**-11


@dataclass(frozen=True, slots=True)
class ReplayProbes:
    """Log-probs of all candidates of a group, as one replay computed them."""

    logprobs: bytes
    """Little-endian float16, `CANDIDATES` for each completion."""
    deviations: bytes
    """Little-endian float32: deviation of a logit between two engines at the last position of each completion, nats."""

    @property
    def completions(self) -> int:
        """Completions of the group."""
        return len(self.deviations) // 4

    def chosen_by(self, validator: bytes, group: bytes) -> bytes:
        """The probes of a validator's verdict: `Verdict.probes`."""
        logprobs = np.frombuffer(self.logprobs, dtype="<f2")
        return logprobs[probe_places(validator, group, self.completions)].tobytes()

    def agree_with(self, probes: bytes, validator: bytes, group: bytes) -> bool:
        """Whether the probes of a verdict are those of a forward pass of this group and policy."""
        places = np.asarray(probe_places(validator, group, self.completions))
        claimed = np.frombuffer(probes, dtype="<f2").astype(np.float64)
        if claimed.size != places.size:
            return False
        own = np.frombuffer(self.logprobs, dtype="<f2").astype(np.float64)[places]
        rows = places // CANDIDATES
        noise = np.frombuffer(self.deviations, dtype="<f4").astype(np.float64)[rows]
        return _mean_squares(claimed, own, noise, rows) <= _largest_sum(self.completions)


def probes_of(rows: Sequence[Scored], scale: NoiseScale, temperature: float) -> ReplayProbes | None:
    """The probes of a group's replayed completions, which were scored with candidates.

    None where the policy's logits are not numbers: no verdict can be checked there.
    """
    sizes = np.asarray([row.sizes[-1] for row in rows], dtype=np.float64)
    logprobs = np.asarray([row.probe_logprobs for row in rows], dtype=np.float64)
    if np.isnan(logprobs).any() or not np.isfinite(sizes).all():
        return None
    return ReplayProbes(
        logprobs=np.clip(logprobs, -6e4, 0.0).astype("<f2").tobytes(),
        deviations=scale.of_rows(sizes, temperature).astype("<f4").tobytes(),
    )


def _mean_squares(claimed: Floats, own: Floats, noise: Floats, rows: Floats) -> float:
    """Sum over the rows of the mean squared deviation of their probes; infinite when one is not a number."""
    variance = 2.0 * noise**2 + 2.0 * (_FLOAT16_ROUNDOFF * own) ** 2
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        squares = (claimed - own) ** 2 / variance
    if not np.all(np.isfinite(squares)):
        return math.inf
    return float(np.sum(squares) / np.count_nonzero(rows == rows[0]))


def _largest_sum(rows: int) -> float:
    """Upper tail of a χ² variable with `rows` degrees of freedom: Laurent and Massart (2000), lemma 1."""
    nats = -math.log(FALSE_FAILURES)
    return rows + 2.0 * math.sqrt(rows * nats) + 2.0 * nats
