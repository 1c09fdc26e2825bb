"""Measure the replay's judge: false rejects of honest groups, groups credited with an invented token, each rule's ROC.

    python -m p2prl.bench.trust.replay_power --json

Synthetic groups go through the product's own judge; `model_groups` sends real models through real scorers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch

from p2prl.bench.trust.model_groups import ModelRow, model_rows
from p2prl.bench.trust.synthetic_groups import CHEATS, Policy, drawn_tokens, honest_tokens, policy, race, with_invented
from p2prl.models.replay_noise import NoiseScale, noise_scale, widest_scale
from p2prl.models.replay_statistics import TokenScores, judge_group, rule_scores
from p2prl.protocol.rejection_reasons import RejectionReason

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
    """Honest groups of one kind. It has this many fields because each is a column of the table."""

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
    """Groups with one invented token. It has this many fields because each is a column of the table."""

    policy: str
    dtype: str
    noise: float
    temperature: float
    tokens: int
    margin: float
    groups: int
    credited: int
    faults: int


@dataclass(frozen=True, kw_only=True)
class RulePoint:
    """One point of a rule's ROC curve: groups of a cheat found, where this share of honest groups is rejected."""

    rule: str
    cheat: str
    dtype: str
    tokens: int
    threshold: float
    false_rejects: float
    found: float


def scale_of(dtype: str) -> NoiseScale:
    """The widest band of a type: that of a pair of engines nobody has measured, or of a class that a cheat invents."""
    return noise_scale(claimed_dtype=dtype, run_dtype=dtype, scorer_dtype=dtype, layers=LAYERS)


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
) -> Iterator[FalseRejects | Power]:
    """Honest groups of every policy, type, temperature and size, and the same groups with one token replaced.

    The rest of a cheat's group has the most noise. Positions come from a pool, with noise of their own in each group.
    """
    for name, temperature, tokens in itertools.product(policies, temperatures, sizes):
        kind, rng = made(name, temperature), np.random.default_rng(seed)
        is_usual = name == "usual" and temperature == 1.0
        found: dict[tuple[str, float, float], list[str]] = {}
        pool = race(kind, _POOL + tokens, rng)
        for _ in range(groups):
            run = pool.part(int(rng.integers(_POOL)), tokens)
            for dtype, noises in NOISES.items():
                for noise in noises if is_usual else noises[-1:]:
                    group = drawn_tokens(run, noise, rng)
                    found.setdefault((dtype, noise, 0.0), []).append(_reason(group, dtype, temperature))
                for margin in MARGINS if is_usual else (1.0,):
                    cheated = with_invented(group, margin + 1e-3, rng)
                    found.setdefault((dtype, noises[-1], margin), []).append(_reason(cheated, dtype, temperature))
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
    return judge_group(group, scale_of(dtype), widest_scale(LAYERS), temperature).reason


def rule_curves(groups: int, seed: int = 0, tokens: Sequence[int] = (40, 512)) -> Iterator[RulePoint]:
    """Each rule alone, with every threshold that rejects 0 to 5 % of honest groups of the most noise."""
    kind = made("usual", 1.0)
    for dtype, size in itertools.product(NOISES, tokens):
        rng = np.random.default_rng(seed)
        honest = [_suspicion(honest_tokens(kind, size, NOISES[dtype][-1], rng), dtype) for _ in range(groups)]
        for cheat, make in CHEATS.items():
            cheats = [_suspicion(make(kind, size, rng), dtype) for _ in range(groups)]
            for rule in honest[0]:
                clean = np.sort([scores[rule] for scores in honest])[::-1]
                dirty = np.asarray([scores[rule] for scores in cheats])
                for share in (0.0, 1e-3, 1e-2, 5e-2):
                    threshold = float(clean[min(groups - 1, int(share * groups))])
                    yield RulePoint(
                        rule=rule, cheat=cheat, dtype=dtype, tokens=size, threshold=threshold,
                        false_rejects=float(np.mean(clean > threshold)), found=float(np.mean(dirty > threshold)),
                    )  # fmt: skip


def _suspicion(tokens: TokenScores, dtype: str) -> dict[str, float]:
    """Each rule's score, larger where it is more suspicious."""
    scores = rule_scores(tokens, scale_of(dtype), 1.0)
    return {
        "token": -math.log(max(scores.token, 1e-300)),
        "number": -math.log(max(scores.number, 1e-300)),
        "total": scores.total,
        "logprobs": scores.logprobs,
    }


def _faults(found: Sequence[str]) -> int:
    return sum(reason not in ("", RejectionReason.ENGINE_MISMATCH) for reason in found)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print all rows, as one JSON object or as lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--groups", type=int, default=1000, help="groups of each cell, and of each rule")
    parser.add_argument("--model-groups", type=int, default=200, help="groups of each pair of real models; 0 for none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policies", nargs="*", default=list(POLICIES), choices=list(POLICIES))
    parser.add_argument("--temperatures", nargs="*", type=float, default=list(TEMPERATURES))
    parser.add_argument("--tokens", nargs="*", type=int, default=list(TOKENS))
    parser.add_argument("--no-rules", action="store_true", help="leave out the rules' curves")
    given = parser.parse_args(arguments)
    began = time.monotonic()
    torch.set_num_threads(1)
    document: dict[str, list[object]] = {"false_rejects": [], "power": [], "rules": [], "models": []}
    rows = itertools.chain(
        cells(
            given.groups,
            given.seed,
            policies=given.policies,
            temperatures=given.temperatures,
            sizes=given.tokens,
        ),
        () if given.no_rules else rule_curves(given.groups, given.seed),
        model_rows(given.model_groups, given.seed) if given.model_groups else (),
    )
    parts = {FalseRejects: "false_rejects", Power: "power", RulePoint: "rules", ModelRow: "models"}
    for row in rows:
        part = parts[type(row)]
        document[part].append(asdict(row))
        sys.stderr.write(f"{part} {' '.join(f'{key}={value}' for key, value in asdict(row).items())}\n")
    if given.json:
        sys.stdout.write(json.dumps(document | {"wall_s": round(time.monotonic() - began, 1)}) + "\n")


if __name__ == "__main__":
    main()
