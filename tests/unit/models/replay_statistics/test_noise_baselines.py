"""Noise baselines: what a pair's peers show, who moves its band, and what survives on disk."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from p2prl.errors import RemoteProtocolError
from p2prl.models.replay_statistics import baselines as noise_baselines
from p2prl.models.replay_statistics.baselines import (
    LEAST_PEERS,
    MOST_TOKENS,
    SAFETY,
    KeptBaselines,
    NoiseBaselines,
    NoiseEvidence,
    Pair,
    own_band,
)
from p2prl.models.replay_statistics.judge import TokenScores, judge_group
from p2prl.models.replay_statistics.noise import noise_scale, widest_scale
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.rollout_group import EngineClass
from p2prl.protocol.standing import HALF_LIFE_S
from tests.unit.models.replay_statistics.test_replay_statistics import simulated

CARD = EngineClass("transformers", "5.1", "bfloat16", "a card")
SCORER = EngineClass("transformers", "5.1", "bfloat16", "another card")
PAIR: Pair = (CARD, SCORER)
NOW = 1_800_000_000.0
KNOWN = 8
"""Passed groups that give standing."""


def peer(number: int) -> bytes:
    return number.to_bytes(32, "big")


def evidence(noise: float, tokens: int = 2048, seed: int = 0, temperature: float = 1.0) -> NoiseEvidence:
    return NoiseEvidence.of(simulated(tokens, noise=noise, temperature=temperature, seed=seed), temperature)


def fill(
    made: NoiseBaselines, *noises: float, first: int = 0, groups: int = KNOWN, reason: str = "", at: float = NOW
) -> None:
    """Each of these noises shown by a peer of its own."""
    for number, noise in enumerate(noises):
        shown = evidence(noise, seed=number)
        for _ in range(groups):
            made.record(PAIR, peer(first + number), shown, reason, now=at)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
@pytest.mark.parametrize("noise", [0.005, 0.02, 0.1])
def test_estimate_is_the_noise(noise: float, temperature: float) -> None:
    """In logits, whatever the temperature; rather too high than too low."""
    total = NoiseEvidence()
    for seed in range(8):
        total = total.plus(evidence(noise, seed=seed, temperature=temperature))
    assert 0.85 * noise < total.noise < 2.0 * noise


@pytest.mark.parametrize("shown", ["number", "margins", "logprobs"])
def test_each_of_the_three_signs_raises_the_estimate(shown: str) -> None:
    quiet = {"tokens": 1e4, "ties": 1e4, "squares": 1e4, "spread": 1e4}
    signs = {"number": {"mismatched": 900.0}, "margins": {"margins": 81.0}, "logprobs": {"deviation": 900.0}}
    assert NoiseEvidence(**quiet).noise == pytest.approx(2e-4)
    raised = NoiseEvidence(**quiet, **signs[shown]).noise
    assert raised == pytest.approx(0.09, rel=0.08)


def test_few_tokens_show_little() -> None:
    assert NoiseEvidence().noise == math.inf
    assert evidence(0.0, tokens=16).noise > 0.1 > evidence(0.0).noise


def test_replay_that_is_not_a_number_is_no_evidence() -> None:
    tokens = simulated(24, noise=0.1)
    tokens.claimed[3] = math.nan
    assert NoiseEvidence.of(tokens, 1.0) == NoiseEvidence()


def own_judgement(tokens: TokenScores, temperature: float) -> str:
    """Reason of a group in bfloat16 whose pair nobody has measured."""
    dtype = "bfloat16"
    band = own_band(tokens, temperature)
    scale = noise_scale(claimed_dtype=dtype, run_dtype=dtype, scorer_dtype=dtype, layers=4, measured=band)
    return judge_group(tokens, scale, widest_scale(4), temperature).reason


@pytest.mark.parametrize("noise", [0.005, 0.02, 0.05, 0.1])
def test_honest_group_of_an_unmeasured_pair_passes_by_its_own_noise(noise: float) -> None:
    for size in (8, 512, 2048):
        for seed in range(6):
            tokens = simulated(size, noise=noise, temperature=0.6, seed=seed)
            assert own_band(tokens, 0.6) > 1.2 * noise
            assert own_judgement(tokens, 0.6) == ""


def test_token_far_from_its_draw_does_not_vouch_for_itself() -> None:
    """1.05 nats at a temperature of .6 may be rounding in a group with the most noise that counts as honest. In one
    with a fifth of it they are not, and nobody needs to know the engine to see it."""
    for noise, reason in ((0.1, ""), (0.02, RejectionReason.ENGINE_MISMATCH)):
        honest = simulated(4096, noise=noise, temperature=0.6)
        margins = honest.margins.copy()
        margins[7] = 1.05
        invented = replace(honest, margins=margins)
        assert own_judgement(invented, 0.6) == reason
        assert own_band(invented, 0.6) == pytest.approx(own_band(honest, 0.6), rel=0.1)
    assert own_band(simulated(1, noise=0.0), 1.0) == math.inf, "one token says nothing about the others"


def test_band_is_the_upper_quartile_of_enough_peers_with_standing() -> None:
    made = NoiseBaselines()
    fill(made, *[0.02] * (LEAST_PEERS - 1))
    assert made.measured(PAIR) is None, "one or two machines are no class"
    fill(made, 0.02, first=LEAST_PEERS - 1, groups=KNOWN - 1)
    assert made.measured(PAIR) is None, "a newcomer does not count"
    fill(made, 0.02, first=LEAST_PEERS - 1, groups=1)
    band = made.measured(PAIR)
    assert band is not None
    assert 0.85 * SAFETY * 0.02 < band < 1.5 * SAFETY * 0.02
    assert made.measured((SCORER, CARD)) is None


def test_neither_a_newcomer_nor_a_quarter_of_the_peers_moves_the_band() -> None:
    made = NoiseBaselines()
    fill(made, *[0.02] * 8)
    before = made.measured(PAIR)
    assert before is not None
    fill(made, *[0.5] * 50, first=100, groups=KNOWN - 1)
    fill(made, *[0.0] * 50, first=200, groups=KNOWN - 1)
    assert made.measured(PAIR) == before
    fill(made, 0.5, 0.5, first=300)
    after = made.measured(PAIR)
    assert after is not None
    assert after <= 1.2 * before
    fill(made, *[0.0] * 8, first=400)
    lower = made.measured(PAIR)
    assert lower is not None
    assert lower > 0.7 * before, "half of the peers show no noise: the others' work must not be refused"


def test_band_that_became_too_narrow_widens_with_the_groups_it_refused() -> None:
    made = NoiseBaselines()
    fill(made, *[0.01] * 4)
    before = made.measured(PAIR)
    assert before is not None
    fill(made, *[0.08] * 4, reason=RejectionReason.ENGINE_MISMATCH, groups=24)
    after = made.measured(PAIR)
    assert after is not None
    assert after > 3 * before
    fill(made, *[0.08] * 4, groups=32)
    settled = made.measured(PAIR)
    fill(made, *[0.5] * 4, reason=RejectionReason.SEED_MISMATCH, groups=1)
    assert made.measured(PAIR) == settled, "what no class explains says nothing about the class"
    fill(made, *[0.5] * 4, reason=RejectionReason.SEED_MISMATCH, groups=30)
    assert made.measured(PAIR) is None, "and costs standing"


def test_refused_groups_earn_no_standing() -> None:
    made = NoiseBaselines()
    fill(made, *[0.08] * 4, reason=RejectionReason.ENGINE_MISMATCH, groups=50)
    assert made.measured(PAIR) is None


def test_evidence_decays() -> None:
    made = NoiseBaselines()
    fill(made, *[0.08] * 4)
    assert made.measured(PAIR, NOW + 8 * HALF_LIFE_S) is None, "standing has decayed"
    before = made.measured(PAIR)
    fill(made, *[0.01] * 4, at=NOW + 4 * HALF_LIFE_S)
    after = made.measured(PAIR)
    assert before is not None
    assert after is not None
    assert after < before / 3


def test_weight_of_old_evidence_is_bounded() -> None:
    old = NoiseEvidence(*[float(MOST_TOKENS)] * 7)
    new = NoiseEvidence(*[1024.0] * 7)
    assert old.plus(new).tokens == MOST_TOKENS
    assert old.plus(NoiseEvidence(*[2.0 * MOST_TOKENS] * 7)).tokens == 2.0 * MOST_TOKENS


def test_records_are_bounded_over_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of keys and of claimed classes pushes out newcomers, not the peers with standing."""
    monkeypatch.setattr(noise_baselines, "MOST_RECORDS", 10)
    made = NoiseBaselines()
    fill(made, *[0.02] * 4)
    band = made.measured(PAIR)
    shown = evidence(0.1, tokens=64)
    for number in range(40):
        invented = EngineClass("transformers", str(number), "bfloat16", "cpu")
        made.record((invented, SCORER), peer(1000 + number), shown, "", now=NOW + number)
        assert len(made) <= 10
    assert made.measured(PAIR) == band


def test_records_survive_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "run" / "noise.json"
    kept = KeptBaselines(path)
    kept.save()
    assert not path.exists(), "nothing to keep"
    for number in range(4):
        for _ in range(KNOWN):
            kept.record(PAIR, peer(number), evidence(0.02), "", now=NOW)
    kept.save()
    assert kept.measured(PAIR) is not None
    assert KeptBaselines(path).measured(PAIR) == kept.measured(PAIR)
    path.write_bytes(path.read_bytes()[:-9])
    assert KeptBaselines(path).measured(PAIR) is None
    assert not path.exists(), "a damaged file is begun anew"


def test_file_is_written_now_and_then(tmp_path: Path) -> None:
    path = tmp_path / "noise.json"
    kept = KeptBaselines(path)
    shown = evidence(0.02, tokens=64)
    for _ in range(511):
        kept.record(PAIR, peer(1), shown, "", now=NOW)
    assert not path.exists()
    kept.record(PAIR, peer(1), shown, "", now=NOW)
    assert path.exists()


@pytest.mark.parametrize("bad", [b"", b"{}", b"[[1]]", b"\xff", b"[" * 100_000])
def test_damaged_records_are_refused(bad: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        NoiseBaselines.decode(bad)


def test_impossible_numbers_are_refused() -> None:
    made = NoiseBaselines()
    fill(made, 0.02)
    raw = made.encode()
    assert NoiseBaselines.decode(raw).encode() == raw
    with pytest.raises(RemoteProtocolError):
        NoiseBaselines.decode(raw.replace(b'"tokens":', b'"tokens":-'))
    with pytest.raises(RemoteProtocolError):
        NoiseBaselines.decode(raw + b" " * noise_baselines.MAX_FILE_BYTES)


def test_temperature_and_size_enter_the_sums() -> None:
    tokens = simulated(512, noise=0.05)
    cold, warm = NoiseEvidence.of(tokens, 0.5), NoiseEvidence.of(tokens, 1.0)
    assert cold.ties == pytest.approx(2 * warm.ties)
    assert cold.squares == pytest.approx(4 * warm.squares)
    assert cold.spread == pytest.approx(2 * warm.spread)
    assert warm.tokens == 512
    assert warm.mismatched == np.count_nonzero(tokens.margins)
