"""Statistics of a replay, against simulated pairs of engines: a noisy Gumbel race sampled and scored twice."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from p2prl.errors import ConfigError
from p2prl.models.replay_statistics.judge import (
    FALSE_REJECTS,
    MOST_MARGIN,
    TokenScores,
    impossible_tokens,
    judge_group,
    judge_tokens,
    largest_margin,
)
from p2prl.models.replay_statistics.noise import (
    LOGIT_FLOOR,
    UNIT_ROUNDOFF,
    Floats,
    NoiseScale,
    noise_scale,
    widest_scale,
)
from p2prl.protocol.rejection_reasons import RejectionReason

VOCABULARY = 64


def simulated(
    tokens: int, *, noise: float, spread: float = 3.0, temperature: float = 1.0, seed: int = 0
) -> TokenScores:
    """Tokens drawn by an engine whose logits differ from the scorer's by `noise`."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0.0, spread, (tokens, VOCABULARY))
    gumbel = rng.gumbel(size=logits.shape)
    theirs = (logits + rng.normal(0.0, noise, logits.shape)) / temperature
    ours = logits / temperature
    drawn = (theirs + gumbel).argmax(axis=1)
    noisy = ours + gumbel
    best = noisy.argmax(axis=1)
    rows = np.arange(tokens)

    def logprobs(scaled: Floats) -> Floats:
        made: Floats = scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
        return made

    own = logprobs(ours)
    return TokenScores(
        margins=noisy[rows, best] - noisy[rows, drawn],
        logprobs=own[rows, drawn],
        best_logprobs=own[rows, best],
        sizes=np.sqrt((ours**2).mean(axis=1)),
        claimed=logprobs(theirs)[rows, drawn].astype("<f2").astype(np.float64),
    )


def scale_of(noise: float) -> NoiseScale:
    """A scale that is exactly the noise, without slack."""
    return NoiseScale(relative=0.0, floor=noise)


@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_margins_follow_the_law_of_near_ties(noise: float) -> None:
    """The docstring's three moments, with ρ from the exact probabilities."""
    rng = np.random.default_rng(5)
    tokens = 60_000
    logits = rng.normal(0.0, 2.0, (tokens, 16))
    gumbel = rng.gumbel(size=logits.shape)
    drawn = (logits + rng.normal(0.0, noise, logits.shape) + gumbel).argmax(axis=1)
    noisy = logits + gumbel
    margins = noisy.max(axis=1) - noisy[np.arange(tokens), drawn]
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    density, sigma = float((1 - (p**2).sum(axis=1)).mean()), noise * math.sqrt(2)
    assert (margins > 0).mean() == pytest.approx(density * sigma / math.sqrt(2 * math.pi), rel=0.12)
    assert margins.mean() == pytest.approx(density * sigma**2 / 4, rel=0.25)
    assert (margins**2).mean() == pytest.approx(density * sigma**3 * 2 / (3 * math.sqrt(2 * math.pi)), rel=0.4)


@pytest.mark.parametrize(("noise", "temperature"), [(1e-3, 1.0), (1e-3, 0.6), (0.05, 1.0), (0.2, 0.6)])
@pytest.mark.parametrize("tokens", [1, 24, 512, 4096])
def test_honest_groups_of_any_size_pass(noise: float, temperature: float, tokens: int) -> None:
    for seed in range(3 if tokens == 4096 else 30):
        honest = simulated(tokens, noise=noise, temperature=temperature, seed=seed)
        judged = judge_tokens(honest, scale_of(noise), temperature)
        assert judged.reason == ""
        assert judged.logprob_excess < 1.0


def test_single_far_token_fails_at_every_size() -> None:
    for tokens in (1, 24, 4096):
        honest = simulated(tokens, noise=0.05)
        for margin in (1.0, 16.0):
            margins = honest.margins.copy()
            margins[tokens // 2] = margin
            judged = judge_tokens(replace(honest, margins=margins), scale_of(0.05), 1.0)
            assert judged.reason == RejectionReason.SEED_MISMATCH
            assert judged.worst_margin == margin


def test_cap_of_a_token_is_where_the_chance_is_used_up() -> None:
    """With a density and a size, `largest_margin` separates what passes from what fails."""
    tokens = 1000
    flat = np.zeros(tokens)
    group = TokenScores(
        margins=flat, logprobs=flat - 3.0, best_logprobs=flat - 9.0, sizes=flat + 1.0, claimed=flat - 3.0
    )
    cap = largest_margin(tokens, 0.1)
    sigma = 0.1 * math.sqrt(2)
    grid = np.linspace(cap, cap + 12 * sigma, 200_001)
    tail = np.array([math.erfc(x / sigma / math.sqrt(2)) / 2 for x in grid])
    assert tokens * float(np.trapezoid(tail, grid)) == pytest.approx(FALSE_REJECTS, rel=1e-3)
    for factor, fails in ((0.99, False), (1.01, True)):
        margins = flat.copy()
        margins[0] = factor * cap
        assert bool(judge_tokens(replace(group, margins=margins), scale_of(0.1), 1.0).reason) is fails
    assert largest_margin(tokens, 50.0) == pytest.approx(MOST_MARGIN)


def test_near_certain_position_has_a_lower_cap() -> None:
    flat = np.zeros(200)
    margins = flat.copy()
    margins[0] = 0.97 * largest_margin(200, 0.1)
    unsure = TokenScores(margins, flat - 3.0, flat - 9.0, flat + 1.0, flat - 3.0)
    certain = replace(unsure, best_logprobs=flat - 1e-4)
    assert judge_tokens(unsure, scale_of(0.1), 1.0).reason == ""
    assert judge_tokens(certain, scale_of(0.1), 1.0).reason == RejectionReason.SEED_MISMATCH


def test_many_small_margins_fail_by_number() -> None:
    """Each token alone is a near tie; so many are not."""
    flat = np.zeros(96)
    group = TokenScores(flat, flat - 3.0, flat - 9.0, flat + 1.0, flat - 3.0)
    expected = 96 * 0.05 * math.sqrt(2) / math.sqrt(2 * math.pi)
    assert 2.0 < expected < 3.0
    for count, fails in ((8, False), (24, True)):
        margins = flat.copy()
        margins[:count] = 1e-3
        judged = judge_tokens(replace(group, margins=margins), scale_of(0.05), 1.0)
        assert (bool(judged.reason), judged.mismatched) == (fails, count)


def test_margins_too_large_on_average_fail() -> None:
    """As many as are expected, none above its cap, yet all near it."""
    tokens = 20_000
    flat = np.zeros(tokens)
    group = TokenScores(flat, flat - 3.0, flat - 9.0, flat + 1.0, flat - 3.0)
    expected = int(tokens * 0.05 * math.sqrt(2) / math.sqrt(2 * math.pi))
    for share, fails in ((0.11, False), (0.3, True)):
        margins = flat.copy()
        margins[:expected] = share * largest_margin(tokens, 0.05)
        assert bool(judge_tokens(replace(group, margins=margins), scale_of(0.05), 1.0).reason) is fails


@pytest.mark.parametrize("broken", ["margins", "sizes", "best_logprobs"])
def test_replay_that_is_not_a_number_fails(broken: str) -> None:
    honest = simulated(24, noise=0.01)
    values = getattr(honest, broken).copy()
    values[3] = math.nan
    judged = judge_tokens(replace(honest, **{broken: values}), NoiseScale(0.01, 0.01), 1.0)
    if broken == "margins":
        assert judged.reason == RejectionReason.SEED_MISMATCH
    assert judged.reason


def test_logprobs_are_judged_by_the_noise_of_their_rows() -> None:
    honest = simulated(400, noise=0.1, spread=2.0)
    wide, narrow = scale_of(0.1), scale_of(0.001)
    lied = replace(honest, claimed=honest.claimed - 0.15)
    assert judge_tokens(honest, wide, 1.0).reason == ""
    assert judge_tokens(lied, wide, 1.0).reason == "", "nobody trains on a claim"
    assert judge_tokens(replace(lied, margins=lied.margins * 0), narrow, 1.0).reason == RejectionReason.LOGPROB_MISMATCH
    made_up = replace(honest, claimed=np.full(400, -1.0))
    assert judge_tokens(made_up, wide, 1.0).reason == RejectionReason.LOGPROB_MISMATCH
    nan = replace(honest, claimed=np.full(400, math.nan))
    assert judge_tokens(nan, wide, 1.0).reason == RejectionReason.LOGPROB_MISMATCH


# --- the scale -------------------------------------------------------------------------------------------------


def scale(**changes: object) -> NoiseScale:
    base = {"claimed_dtype": "bfloat16", "run_dtype": "bfloat16", "scorer_dtype": "bfloat16", "layers": 24}
    return noise_scale(**{**base, **changes})  # type: ignore[arg-type]


def test_claims_only_narrow_the_scale() -> None:
    widest = scale()
    assert scale(claimed_dtype="float32").relative == pytest.approx(widest.relative / math.sqrt(2), rel=1e-4)
    for claim in ("int4", "float8", ""):
        assert scale(claimed_dtype=claim) == widest
    exact = {"run_dtype": "float32", "scorer_dtype": "float32"}
    assert scale(**exact, claimed_dtype="bfloat16") == scale(**exact, claimed_dtype="float32")
    with pytest.raises(ConfigError, match="dtype"):
        scale(run_dtype="int4")


def test_scale_follows_logits_temperature_and_depth() -> None:
    deep, shallow = scale(layers=28), scale(layers=4)
    ratio = deep.relative / shallow.relative
    assert ratio == pytest.approx(3.2 / 1.8, rel=0.05), "seen between two engines in bfloat16"
    measured = scale(layers=4, measured=0.0)
    rows = measured.of_rows(np.array([6.0, 18.0, 0.0]), 0.5)
    assert rows[1] == pytest.approx(3 * rows[0])
    assert rows[2] == pytest.approx(LOGIT_FLOOR / 0.5)
    assert (shallow.of_rows(np.array([6.0, 18.0, 0.0]), 0.5) >= rows).all()
    exact = scale(run_dtype="float32", scorer_dtype="float32")
    assert exact.of_rows(np.array([18.0]), 1.0)[0] == pytest.approx(LOGIT_FLOOR), "roundoff is far below the floor"


def test_measured_pair_stays_between_roundoff_and_the_widest_of_its_dtype() -> None:
    """.1 logits are honest in bfloat16; nothing that a pair shows, or claims, widens its band beyond."""
    widest = scale().floor
    assert 0.1 <= widest < 0.11
    assert scale(measured=0.05).floor == 0.05
    assert scale(measured=math.inf).floor == scale(measured=1.0).floor == widest
    assert scale(measured=0.0).floor == LOGIT_FLOOR
    half = {"run_dtype": "float16", "scorer_dtype": "float16", "claimed_dtype": "bfloat16"}
    assert scale(**half).floor == pytest.approx(widest / 8)
    exact = {"run_dtype": "float32", "scorer_dtype": "float32"}
    assert scale(**exact).floor == scale(**exact, measured=0.5).floor == scale(**exact, measured=0.0).floor == 1e-3
    assert widest_scale(24) == scale()


# --- classes of engines ----------------------------------------------------------------------------------------


def test_noise_that_another_class_explains_is_no_fault() -> None:
    """A machine as noisy as bfloat16 in a float32 run: nothing is paid, nobody is blamed."""
    narrow, widest = scale(run_dtype="float32", scorer_dtype="float32"), widest_scale(24)
    noisy = simulated(2000, noise=0.05)
    assert judge_tokens(noisy, narrow, 1.0).reason == RejectionReason.SEED_MISMATCH
    assert judge_group(noisy, narrow, widest, 1.0).reason == RejectionReason.ENGINE_MISMATCH
    assert judge_group(noisy, scale(), widest, 1.0).reason == ""
    assert judge_group(simulated(2000, noise=0.5), scale(), widest, 1.0).reason == RejectionReason.SEED_MISMATCH
    exact = simulated(200, noise=0.0)
    lied = replace(exact, claimed=exact.claimed - 0.04)
    assert judge_group(lied, narrow, widest, 1.0).reason == RejectionReason.ENGINE_MISMATCH
    far = replace(exact, claimed=exact.claimed - 4.0)
    assert judge_group(far, narrow, widest, 1.0).reason == RejectionReason.LOGPROB_MISMATCH


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
@pytest.mark.parametrize("tokens", [8, 512, 16_384])
def test_float32_pays_no_token_beyond_what_its_noise_explains(tokens: int, temperature: float) -> None:
    """Against the integral of the tail of a difference between two logits, at a noise of .001."""
    exact = scale(run_dtype="float32", scorer_dtype="float32")
    sigma = 1e-3 * math.sqrt(2) / temperature
    flat = np.zeros(tokens)
    for margin in np.array([3.0, 4.0, 5.0, 6.0]) * sigma:
        grid = np.linspace(margin, margin + 10 * sigma, 20_001)
        tail = [math.erfc(x / sigma / math.sqrt(2)) / 2 for x in grid]
        is_explained = tokens * float(np.trapezoid(tail, grid)) >= FALSE_REJECTS
        margins = flat.copy()
        margins[tokens // 2] = margin
        group = TokenScores(margins, flat - 3.0, flat - 9.0, flat + 1.0, flat - 3.0)
        assert (judge_group(group, exact, widest_scale(24), temperature).reason == "") is is_explained


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
def test_no_class_gets_a_token_paid_that_lies_a_logit_below(temperature: float) -> None:
    """However wide the band of a pair and however large its logits: the cap is in logits, so in nats it is 1 / T."""
    wide = NoiseScale(relative=0.0, floor=2.0)
    honest = simulated(64, noise=0.0, temperature=temperature)
    for logits, paid in ((0.99, True), (1.01, False)):
        margins = honest.margins.copy()
        margins[5] = logits / temperature
        judged = judge_group(replace(honest, margins=margins), wide, wide, temperature)
        assert judged.reason == ("" if paid else RejectionReason.ENGINE_MISMATCH)
        assert judged.worst_margin == margins[5]


def test_wider_types_round_less() -> None:
    assert sorted(UNIT_ROUNDOFF, key=UNIT_ROUNDOFF.__getitem__) == ["float32", "float16", "bfloat16"]


def test_token_that_one_rule_rejects_is_not_yet_a_forgery() -> None:
    """A few forgeries exclude a peer, so they need a margin that no honest engine reaches in a lifetime."""
    flat = np.zeros(1000)
    tokens = TokenScores(flat.copy(), flat - 3.0, flat - 9.0, flat + 1.0, flat - 3.0)
    cap = largest_margin(1000, 0.1)
    found = RejectionReason.SEED_MISMATCH
    for margin, reason, forged in ((0.99 * cap, "", []), (1.1 * cap, found, []), (1.5 * cap, found, [7])):
        tokens.margins[7] = margin
        assert judge_tokens(tokens, scale_of(0.1), 1.0).reason == reason
        assert impossible_tokens(tokens, scale_of(0.1), 1.0, group_tokens=1000) == forged
