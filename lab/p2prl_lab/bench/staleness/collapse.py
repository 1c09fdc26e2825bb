"""Collapse of a run, read from its gradient norm, entropy and completion length, and from lost skill.

The rule. Each figure is compared with the same run's start: entropy and length with the evaluation before the first
update, the gradient norm with its median over the first period between evaluations. A figure is out of bounds when
three evaluations in a row say so, so that one spike is not a collapse:

* gradient: the median norm of a period is ten times that of the first (exploded), or a thousandth of it (silent);
* entropy: above twice the start and above .5 nats a token (noise), or below a twentieth of the start (silent);
* length: below half of the start, or at least half of the completions do not finish.

A run has collapsed when two of the three figures are out of bounds at the same evaluation, when greedy reward and
pass@8 are both at most half of their best so far for three evaluations in a row, or when a figure is not a finite
number. The two silent signs alone are also how success looks (a policy that is certain and right has no gradient), so
they count only where greedy reward is below that of the start. Lost skill counts by itself because a policy of a few
tokens can be ruined while all three figures look healthy, as REINFORCE without weights is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from p2prl_lab.bench.staleness.measures import NOT_FINITE, Evaluation

IN_A_ROW = 3
"""Evaluations in a row that must agree: as many as `last` is the mean of."""

EXPLODED, SILENT = 10.0, 1e-3
"""Gradient norm relative to the first period's. Stable runs stay within a factor of 3; GRPO's spikes reach 100."""

NOISE, NOISE_NATS, CERTAIN = 2.0, 0.5, 0.05
"""Entropy relative to the start, and the least that is noise: twice nearly nothing is still nearly nothing."""

LOST = 0.5
"""Greedy reward and pass@8 relative to the best so far: what was learned counts, not only what the start could do.
Learning may cost one of the two for a while, hardly both."""

SHORT, UNFINISHED = 0.5, 0.5
"""Length relative to the start, and share of completions that never end."""


def collapsed_at(evaluations: Sequence[Evaluation]) -> int | None:
    """The update of the first evaluation at which a run counts as collapsed; None for one that never did."""
    for evaluation in evaluations:
        if NOT_FINITE in (evaluation.grad_norm, evaluation.entropy, evaluation.length):
            return evaluation.update
    if len(evaluations) < 2:
        return None
    start, first = evaluations[0], evaluations[1]
    signs: tuple[Callable[[Evaluation], bool], ...] = (
        lambda now: _gradient_sign(now, start, first.grad_norm),
        lambda now: _entropy_sign(now, start),
        lambda now: now.length < SHORT * start.length or 1 - now.finished >= UNFINISHED,
    )
    streaks, lost, best = [0] * len(signs), 0, (start.greedy, start.pass_at_8)
    for now in evaluations[1:]:
        streaks = [streak + 1 if sign(now) else 0 for streak, sign in zip(streaks, signs, strict=True)]
        lost = lost + 1 if _has_lost(now, best) else 0
        best = (max(best[0], now.greedy), max(best[1], now.pass_at_8))
        if sum(streak >= IN_A_ROW for streak in streaks) >= 2 or lost >= IN_A_ROW:
            return now.update
    return None


def _has_lost(now: Evaluation, best: tuple[float, float]) -> bool:
    """Whether both skills are at most half of their best so far, (greedy, pass@8)."""
    pairs = zip((now.greedy, now.pass_at_8), best, strict=True)
    return all(after <= LOST * before and before > 0 for after, before in pairs)


def _gradient_sign(now: Evaluation, start: Evaluation, typical: float) -> bool:
    silent = now.grad_norm <= SILENT * typical and now.greedy < start.greedy
    return now.grad_norm >= EXPLODED * typical > 0 or silent


def _entropy_sign(now: Evaluation, start: Evaluation) -> bool:
    noise = now.entropy >= max(NOISE * start.entropy, NOISE_NATS)
    return noise or (now.entropy <= CERTAIN * start.entropy and now.greedy < start.greedy)
