"""Self-test of an engine at join: draw the golden groups, and judge the result as the learner would.

It tells a machine's owner what would otherwise come to light after a night of refused work. Nothing leaves the machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum, auto

import numpy as np

from p2prl.errors import ConfigError, MachineError
from p2prl.models.replay_statistics.baselines import NoiseEvidence
from p2prl.models.replay_statistics.judge import TokenScores, judge_group
from p2prl.models.replay_statistics.noise import noise_scale, widest_scale
from p2prl.models.run_model import RunModel
from p2prl.models.sampler_port import GenerationRequest, Sampler, Weights
from p2prl.models.sampling import sample_all
from p2prl.models.self_test.golden_groups import GOLDEN_FILE, GoldenGroups, GoldenRow, read_golden
from p2prl.models.self_test.golden_policy import BY_USE, MOST_BYTES, golden_weights, is_tame
from p2prl.protocol.rejection_reasons import RejectionReason

_ROUNDS = 4
"""Times that completions are begun again behind a token that differs. In bfloat16 one token in fifty may."""

ADVICE = "Undo any overclock, of the memory above all, try another driver version, or use --device cpu."
"""What the owner of a machine that errs can do."""

NOTHING_SENT = "Nothing has been sent, so nothing counts against you."


class SelfTestVerdict(Enum):
    """What the learner would make of this machine's work."""

    FITS = auto()
    NOISY = auto()
    """Outside the widest band of the run's dtype, though some class explains it: refused, and never a fault."""
    WRONG = auto()
    UNDECIDED = auto()
    """Nothing: the run's golden policy magnifies rounding, and this machine's results differ."""


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Result of a self-test."""

    verdict: SelfTestVerdict
    noise: float
    """Deviation of one logit from the learner's, in logits; infinite when the results are wrong."""
    allowed: float
    """Least noise that is accepted, in logits."""
    tokens: int
    differing: int

    @property
    def symptom(self) -> str:
        """Predicate of a machine or an engine that does not fit."""
        if self.verdict is SelfTestVerdict.NOISY:
            return (
                f"computes with a noise of {self.noise:.1g} logits, more than the {self.allowed:.1g} of this run's "
                "number type"
            )
        return (
            f"computes other results than the learner: {self.differing} of {self.tokens} known tokens differ, far "
            "beyond rounding"
        )

    @property
    def message(self) -> str:
        """One or two sentences for the machine's owner. `MachineError` when its results are wrong."""
        if self.verdict is SelfTestVerdict.FITS:
            return f"Self-test passed: noise of {self.noise:.1g} logits; up to {self.allowed:.1g} is accepted."
        if self.verdict is SelfTestVerdict.NOISY:
            return f"Self-test: this machine {self.symptom}, so most of its work would be refused. {ADVICE}"
        if self.verdict is SelfTestVerdict.UNDECIDED:
            return (
                "Self-test: nothing can be said. An older version of this program made this run's known completions, "
                "and in a model of this shape they differ on sound machines too."
            )
        raise MachineError(f"this machine {self.symptom}", remedy=f"{ADVICE} {NOTHING_SENT}")


def self_test(run: RunModel, sampler: Sampler, *, dtype: str, temperature: float) -> SelfTest | None:
    """Test the sampler of a run that computes in `dtype`; it holds no policy of the run afterwards.

    None when the run ships no golden groups, or they do not fit this engine, or a later version of this program made
    them. `RemoteProtocolError` when they are damaged.
    """
    raw = run.files.get(GOLDEN_FILE)
    if raw is None or run.layout.size_bytes > MOST_BYTES:
        return None
    config = run.skeleton.config.get_text_config()
    golden = read_golden(raw, vocabulary=config.vocab_size, temperature=temperature)
    if golden.revision > BY_USE:
        return None
    weights = golden_weights(run, golden.revision)
    try:
        tested = run_self_test(sampler, golden, weights, run_dtype=dtype, layers=config.num_hidden_layers)
    except ConfigError:  # longer than the context that fits this engine
        return None
    if tested.verdict is not SelfTestVerdict.FITS and not is_tame(run, golden.revision):
        return replace(tested, verdict=SelfTestVerdict.UNDECIDED)
    return tested


def run_self_test(sampler: Sampler, golden: GoldenGroups, weights: Weights, *, run_dtype: str, layers: int) -> SelfTest:
    """Sample the golden groups with `weights`, the golden policy's, and judge them.

    The sampler must have nothing in flight, and holds the golden policy afterwards. `ConfigError` when the completions
    do not fit its context, `IntegrityError` when it cannot hold the policy.
    """
    sampler.swap(sampler.stage(weights, 0))
    tokens = _sampled(sampler, golden)
    mine = sampler.engine_class
    scale = noise_scale(claimed_dtype=mine.dtype, run_dtype=run_dtype, scorer_dtype=golden.engine.dtype, layers=layers)
    judged = judge_group(tokens, scale, widest_scale(layers), golden.temperature)
    noise = _noise(tokens, golden.temperature)
    allowed = float(np.sqrt(np.mean(scale.of_rows(tokens.sizes, golden.temperature) ** 2))) * golden.temperature
    if judged.reason not in ("", RejectionReason.ENGINE_MISMATCH):
        verdict = SelfTestVerdict.WRONG
    elif judged.reason or noise > allowed:  # these few tokens may pass where a longer group would not
        verdict = SelfTestVerdict.NOISY
    else:
        verdict = SelfTestVerdict.FITS
    return SelfTest(verdict, noise, allowed, int(tokens.margins.size), judged.mismatched)


def _noise(tokens: TokenScores, temperature: float) -> float:
    """Noise of one logit, in logits, from all log-probs: known here without rounding, they show the least noise."""
    spread = NoiseEvidence.of(tokens, temperature).spread
    return float(np.sum(np.abs(tokens.claimed - tokens.logprobs))) / spread if spread > 0.0 else math.inf


def _sampled(sampler: Sampler, golden: GoldenGroups) -> TokenScores:
    """The engine's tokens as the learner's numbers score them. Behind a token that differs, its completion goes on from
    the golden one, so that every position has the context it was computed with."""
    scores: list[tuple[float, float, float, float, float]] = []
    begun = [(row, 0) for row in golden.rows]
    for _ in range(_ROUNDS):
        requests = [_request(row, start, golden.temperature) for row, start in begun]
        again: list[tuple[GoldenRow, int]] = []
        for (row, start), made in zip(begun, sample_all(sampler, requests), strict=True):
            for place, (token, claimed) in enumerate(zip(made.token_ids, made.logprobs, strict=True), start):
                scores.append(_score(row, place, token, claimed))
                if token != row.tokens[place]:
                    again += [(row, place + 1)] * (place + 1 < len(row.positions))
                    break
        begun = again
        if not begun:
            break
    margins, logprobs, best, sizes, claims = np.asarray(scores, dtype=np.float64).T
    return TokenScores(margins=margins, logprobs=logprobs, best_logprobs=best, sizes=sizes, claimed=claims)


def _score(row: GoldenRow, place: int, token: int, claimed: float) -> tuple[float, float, float, float, float]:
    """Fields of `TokenScores` of one token. One that is no candidate lies infinitely far below."""
    position = row.positions[place]
    best = position.candidates[0]
    found = next((each for each in position.candidates if each.token == token), None)
    if found is None:
        return math.inf, best.logprob, best.logprob, position.size, best.logprob
    return found.margin, found.logprob, best.logprob, position.size, claimed


def _request(row: GoldenRow, start: int, temperature: float) -> GenerationRequest:
    return GenerationRequest(
        prompt_ids=(*row.prompt, *row.tokens[:start]),
        seed=row.seed,
        max_new_tokens=len(row.positions) - start,
        temperature=temperature,
        stop_ids=frozenset(),
        first_position=start,
    )
