"""Attacks on a real learner: how many forged groups of each kind and size are credited, and trained on."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from p2prl.models.replay_statistics.judge import largest_margin
from p2prl_lab.bench.trust.attack_run import CLASS_NOISE, AttackRun, Entry
from p2prl_lab.bench.trust.attacked_learner import AttackedLearner, Settled
from p2prl_lab.bench.trust.forged_groups import ATTACKS, Attack

SAMPLED_SHARE = 8
"""Times fewer groups of an attack that samples its own, where `cell_tokens` is what limits their number."""


@dataclass(frozen=True, kw_only=True)
class AttackRow:
    """One attack on one kind of run."""

    attack: str
    dtype: str
    tokens: int
    """Of a group."""
    temperature: float
    delivered: int
    """Groups offered to the learner."""
    credited: int
    forged_credited: int
    """Credited groups with a token that the class's noise does not explain, as a replay in float32 sees it."""
    worst_margin: float
    """Nats that a token of a credited group lies below its seeded draw, at most, in the same replay."""
    trained_on: int
    reasons: dict[str, int]
    """Why the others were not credited."""


def groups_of(attack: Attack, tokens: int, *, groups: int, cell_tokens: int) -> int:
    """Groups to try an attack with: at most `groups`, and `cell_tokens` tokens, or a part of them where it has to
    sample. 0 for no limit. At least 1, and those that the attack takes."""
    if not cell_tokens or attack.least_groups:
        return max(groups, attack.least_groups)
    most = cell_tokens // (tokens * max(1, attack.samples * SAMPLED_SHARE))
    return max(1, min(groups, most))


def attack_row(run: AttackRun, name: str, groups: int) -> AttackRow:
    """Try an attack on a fresh learner."""
    attack = ATTACKS[name]
    with tempfile.TemporaryDirectory() as folder:
        learner = AttackedLearner(run, Path(folder), groups=groups)
        settled = learner.settle(attack.forge(run, groups), wait_s=attack.wait_s)
    credited = [each for each in settled if each.credited]
    forged, worst = _forged(run, [each.entry for each in credited])
    return AttackRow(
        attack=name,
        dtype=run.size.dtype,
        tokens=run.size.tokens,
        temperature=run.size.temperature,
        delivered=len(settled),
        credited=len(credited),
        forged_credited=forged,
        worst_margin=worst,
        trained_on=sum(each.trained_on for each in settled),
        reasons=_reasons(settled),
    )


def _forged(run: AttackRun, entries: list[Entry]) -> tuple[int, float]:
    """Groups with a token farther from its draw than the class's noise explains, and the farthest of all, in nats.

    By a replay that is no part of the learner's check: in float32, at the noise that honest engines of the class have,
    instead of the band that the check allows.
    """
    noise = CLASS_NOISE[run.size.dtype] / run.size.temperature
    allowed = largest_margin(run.size.tokens, noise)
    worst = [0.0]
    for key, group in entries:
        requests = run.assign(key, group.slot).requests
        ids = [tuple(np.frombuffer(each.tokens, dtype="<u4").tolist()) for each in group.completions]
        worst.append(max(max(each.margins) for each in run.reference.replay(requests, ids)))
    return sum(margin > allowed for margin in worst), max(worst)


def _reasons(settled: list[Settled]) -> dict[str, int]:
    return dict(Counter(each.reason for each in settled if not each.credited))
