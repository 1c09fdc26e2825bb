"""Report of an evaluation: what each prompt's completions came to, and the figures of a task as one JSON object. Pure.

`evaluations.jsonl` of a run folder, `p2prl eval --json` and the board show the same object.

A completion passes above a threshold. A procedural task's score ends at 1. A data task's is a weighted sum: with
`number` at 1 and `format` at .1, a right answer in the wrong form passes and a wrong answer in the right form does not.
Half of the sum of the positive weights decides that for any weights; penalties are left out, since no answer gains by
them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

_HALF = 0.5


def pass_threshold(scoring: str | None) -> float:
    """The threshold of a data task's scoring (`p2prl/tasks/scorers/spec.py`); of a procedural task for None."""
    if scoring is None:
        return _HALF
    rewards = json.loads(scoring)["rewards"]
    return _HALF * sum(max(0.0, float(reward.get("weight", 1.0))) for reward in rewards)


_Z_95 = 1.959963984540054
"""Standard normal quantile of a two-sided 95 % interval."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A mean over prompts of values within 0..1, and its 95 % interval."""

    rate: float
    low: float
    high: float


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Probability that at least one of `k` completions passes, from `samples` ≥ k of which `passed` passed.

    1 − C(n − c, k) / C(n, k): the unbiased estimator of Chen et al. 2021 (arXiv 2107.03374, section 2.1), in exact
    integers. `1 − (1 − c/n)^k` would be biased upwards for k > 1 and small n.
    """
    assert 0 <= passed <= samples
    assert 1 <= k <= samples
    return 1.0 - math.comb(samples - passed, k) / math.comb(samples, k)


def rate_of(values: Iterable[float]) -> Rate:
    """The mean of one value within 0..1 per prompt, and its score interval (Wilson 1927); (0, 1) without values.

    Exact in form where each prompt gives 0 or 1: greedy decoding, and pass@k of exactly k samples. In between, a value
    within 0..1 varies at most as much as a coin of the same mean, so the interval is wider than it need be, never
    narrower. Completions of one prompt are not independent: the unit is the prompt.
    """
    listed = list(values)
    count = len(listed)
    if not count:
        return Rate(0.0, 0.0, 1.0)
    mean = min(1.0, max(0.0, math.fsum(listed) / count))
    spread = _Z_95 * _Z_95 / count
    center = (mean + spread / 2) / (1 + spread)
    half = _Z_95 * math.sqrt(mean * (1 - mean) / count + spread / (4 * count)) / (1 + spread)
    return Rate(mean, max(0.0, min(mean, center - half)), min(1.0, max(mean, center + half)))


def standard_error(values: Iterable[float]) -> float:
    """Standard error of the mean of one value per prompt; 0 with fewer than two."""
    listed = list(values)
    count = len(listed)
    if count < 2:
        return 0.0
    mean = math.fsum(listed) / count
    return math.sqrt(math.fsum((value - mean) ** 2 for value in listed) / (count - 1) / count)


def reported_ks(samples: int) -> tuple[int, ...]:
    """The k of pass@k that a report shows: 1, 2, 4, … and the number of samples; none without samples."""
    powers = [1 << bit for bit in range(samples.bit_length()) if 1 << bit < samples]
    return (*powers, samples) if samples else ()


Split = Literal["held-out", "fresh"]
"""Rows of a data task that are never trained on, or prompts of a procedural task that no work slot can have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletionOutcome:
    """One scored completion."""

    score: float
    """The task's own verdict, without the weights of the run's reward."""
    tokens: int
    """Its length, the stop token included."""
    finished: bool
    """Whether a stop token ended it; otherwise the length limit cut it off."""
    logprob_sum: float = 0.0
    """Sum of its tokens' log-probs at the run's temperature, nats; 0 for a greedy one, whose temperature is another."""
    text: str = ""
    """Text without the stop token; empty where nobody asked for it."""


@dataclass(frozen=True, slots=True)
class PromptOutcome:
    """The completions of one prompt."""

    greedy: CompletionOutcome
    samples: tuple[CompletionOutcome, ...]
    prompt: str = ""
    """Text of the prompt."""
    answer: str = ""
    """Text of the greedy completion."""


def answer_rows(
    task: str, outcomes: Sequence[PromptOutcome], *, split: Split, pass_above: float
) -> Iterator[dict[str, object]]:
    """A row for each completion of a task: its text and what became of it; `sample` is null for the greedy one."""
    for outcome in outcomes:
        for sample, each in ((None, outcome.greedy), *enumerate(outcome.samples)):
            yield {
                "task": task,
                "split": split,
                "prompt": outcome.prompt,
                "sample": sample,
                "completion": each.text,
                "score": each.score,
                "passes": each.score > pass_above,
                "tokens": each.tokens,
                "finished": each.finished,
            }


RECORDED_ANSWERS = 3
"""Prompts of each task whose greedy answers are recorded: the board shows them before and after."""

MAX_RECORDED_CHARS = 800
"""Characters recorded of a prompt and of an answer, so that a line of results stays small."""


def recorded_answers(task: str, outcomes: Sequence[PromptOutcome], *, pass_above: float) -> list[dict[str, object]]:
    """The greedy answers to a task's first prompts, which are the same at every version."""
    return [
        {
            "task": task,
            "prompt": _shortened(outcome.prompt),
            "answer": _shortened(outcome.answer),
            "passes": outcome.greedy.score > pass_above,
        }
        for outcome in outcomes[:RECORDED_ANSWERS]
    ]


def task_report(outcomes: Sequence[PromptOutcome], *, split: Split, pass_above: float) -> dict[str, Any]:
    """Figures of one task (`docs/metrics.md`). A completion passes when its score is above `pass_above`."""
    completions = [(outcome.greedy, *outcome.samples) for outcome in outcomes]
    sampled = [sample for outcome in outcomes for sample in outcome.samples]
    samples = min((len(outcome.samples) for outcome in outcomes), default=0)
    passed = [sum(sample.score > pass_above for sample in outcome.samples) for outcome in outcomes]
    flat = [completion for row in completions for completion in row]
    tokens = sum(sample.tokens for sample in sampled)
    means = [_mean([sample.score for sample in outcome.samples]) for outcome in outcomes if outcome.samples]
    return {
        "split": split,
        "prompts": len(outcomes),
        "samples": samples,
        "pass_above": pass_above,
        "greedy_pass": asdict(rate_of(float(outcome.greedy.score > pass_above) for outcome in outcomes)),
        "greedy_score": _mean([outcome.greedy.score for outcome in outcomes]),
        "greedy_error": standard_error(outcome.greedy.score for outcome in outcomes),
        "pass_at": {
            str(k): asdict(rate_of(pass_at_k(samples, count, k) for count in passed)) for k in reported_ks(samples)
        },
        "score_mean": _mean(means) if means else None,
        "score_error": standard_error(means) if means else None,
        "entropy_per_token": -math.fsum(s.logprob_sum for s in sampled) / tokens if tokens else None,
        "completion_tokens_mean": _mean([float(completion.tokens) for completion in flat]),
        "truncated_share": _mean([float(not completion.finished) for completion in flat]),
    }


def metric_keys(report: dict[str, Any]) -> dict[str, float]:
    """The figures of a task for the metrics log, by the part of their key after the task's name."""
    figures = {
        "greedy_pass": report["greedy_pass"]["rate"],
        "greedy_pass_low": report["greedy_pass"]["low"],
        "greedy_pass_high": report["greedy_pass"]["high"],
        "completion_tokens_mean": report["completion_tokens_mean"],
        "truncated_share": report["truncated_share"],
    }
    if report["samples"]:
        figures |= {
            "pass_at_1": report["pass_at"]["1"]["rate"],
            "pass_at_k": report["pass_at"][str(report["samples"])]["rate"],
            "samples": float(report["samples"]),
            "score_mean": report["score_mean"],
            "entropy_per_token": report["entropy_per_token"],
        }
    return figures


def report_text(report: dict[str, Any]) -> str:
    """A report in one line: greedy accuracy with its interval, then pass@k."""
    greedy, samples = report["greedy_pass"], report["samples"]
    text = f"greedy {greedy['rate']:.3f} ({greedy['low']:.3f} to {greedy['high']:.3f})"
    if samples:
        first, best = report["pass_at"]["1"]["rate"], report["pass_at"][str(samples)]["rate"]
        text += f", pass@1 {first:.3f}" + (f", pass@{samples} {best:.3f}" if samples > 1 else "")
    if report["truncated_share"] >= 0.05:
        text += f", {report['truncated_share']:.0%} cut off"
    return f"{text}; {report['prompts']:,} {report['split']} prompts"


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_RECORDED_CHARS else text[: MAX_RECORDED_CHARS - 1] + "…"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
