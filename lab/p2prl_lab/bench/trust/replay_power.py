"""Measure the replay's judge: false rejects of honest groups, and groups credited with one invented token.

Synthetic groups of any size go through the product's own judge; `model_groups` sends real models through real scorers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from p2prl.models.replay_statistics.baselines import own_band
from p2prl.models.replay_statistics.judge import TokenScores, judge_group
from p2prl.models.replay_statistics.noise import NoiseScale, noise_scale, widest_scale
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl_lab.bench.trust.synthetic_groups import Policy, drawn_tokens, policy, race, with_invented

TOKENS = (8, 40, 512, 4096, 16_384)
"""Tokens of a group, all completions together."""

TEMPERATURES = (0.6, 1.0, 1.5)

NOISES = {"float32": (0.0, 1e-3), "bfloat16": (0.02, 0.1)}
"""Noise of honest engines in logits: usual, and the most that counts as honest."""

MARGINS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)
"""Nats that an invented token lies below the best, and a thousandth more."""

LAYERS = 24

POLICIES: dict[str, dict[str, float]] = {
    "flat": {"spread": 1.0, "vocabulary": 1024},
    "usual": {"spread": 3.0, "vocabulary": 1024},
    "sharp": {"spread": 6.0, "vocabulary": 64},
    "large": {"spread": 3.0, "vocabulary": 8192},
    "near 18": {"spread": 3.0, "vocabulary": 1024, "mean": 18.0},
}
"""Logits of the policies: high and low entropy, small and large vocabularies, and logits near 18."""


_POOL = 1 << 18
"""Positions that the groups of a cell are cut from: drawing them is the work."""


@dataclass(frozen=True, kw_only=True)
class FalseRejects:
    """Honest groups of one kind."""

    policy: str
    dtype: str
    noise: float
    temperature: float
    tokens: int
    groups: int
    rejected: int
    """For whatever reason."""
    faults: int
    """Rejected for a reason that counts against their author."""


@dataclass(frozen=True, kw_only=True)
class Power:
    """Groups with one invented token."""

    policy: str
    dtype: str
    noise: float
    temperature: float
    tokens: int
    margin: float
    groups: int
    credited: int
    faults: int


def scale_of(group: TokenScores, dtype: str, temperature: float) -> NoiseScale:
    """The scale of a group of a pair of engines that nobody has measured, or of a class that a cheat invents."""
    band = own_band(group, temperature)
    return noise_scale(claimed_dtype=dtype, run_dtype=dtype, scorer_dtype=dtype, layers=LAYERS, measured=band)


def made(name: str, temperature: float) -> Policy:
    """A policy of `POLICIES`."""
    kind = POLICIES[name]
    return policy(
        spread=kind["spread"], vocabulary=int(kind["vocabulary"]), temperature=temperature, mean=kind.get("mean", 0.0)
    )


def cells(
    groups: int,
    seed: int = 0,
    *,
    policies: Sequence[str] = tuple(POLICIES),
    temperatures: Sequence[float] = TEMPERATURES,
    sizes: Sequence[int] = TOKENS,
    dtypes: Sequence[str] = tuple(NOISES),
) -> Iterator[FalseRejects | Power]:
    """Honest groups of every policy, type, temperature and size, and the same groups with one token replaced.

    Positions come from a pool, with noise of their own in each group.
    """
    for name, temperature, tokens in itertools.product(policies, temperatures, sizes):
        kind, rng = made(name, temperature), np.random.default_rng(seed)
        is_usual = name == "usual" and temperature == 1.0
        found: dict[tuple[str, float, float], list[str]] = {}
        pool = race(kind, _POOL + tokens, rng)
        for _ in range(groups):
            run = pool.part(int(rng.integers(_POOL)), tokens)
            for dtype in dtypes:
                for noise in NOISES[dtype]:
                    group = drawn_tokens(run, noise, rng)
                    found.setdefault((dtype, noise, 0.0), []).append(_reason(group, dtype, temperature))
                    for margin in MARGINS if is_usual else (1.0,):
                        cheated = with_invented(group, margin + 1e-3, rng)
                        found.setdefault((dtype, noise, margin), []).append(_reason(cheated, dtype, temperature))
        for (dtype, noise, margin), reasons in found.items():
            rejected, faults = sum(map(bool, reasons)), _faults(reasons)
            if margin:
                yield Power(
                    policy=name, dtype=dtype, noise=noise, temperature=temperature, tokens=tokens, margin=margin,
                    groups=groups, credited=groups - rejected, faults=faults,
                )  # fmt: skip
            else:
                yield FalseRejects(
                    policy=name, dtype=dtype, noise=noise, temperature=temperature, tokens=tokens,
                    groups=groups, rejected=rejected, faults=faults,
                )  # fmt: skip


def _reason(group: TokenScores, dtype: str, temperature: float) -> str:
    """The judge's reason; empty for a credited group."""
    return judge_group(group, scale_of(group, dtype, temperature), widest_scale(LAYERS), temperature).reason


def _faults(found: Sequence[str]) -> int:
    return sum(reason not in ("", RejectionReason.ENGINE_MISMATCH) for reason in found)
