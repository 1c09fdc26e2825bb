"""Measure what the learner's checks cost: their share of an update, and signatures checked a second.

    python -m p2prl_lab.bench.trust.check_cost --json

The learner's own update, replay and envelope code run in turns in one process on one thread, on groups that the
product's sampler made. Times are medians of processor seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch

from p2prl.models.seeded_draw.draw import draw, draw_with_logprobs
from p2prl_lab.bench.trust.learner_checks import CheckCostConfig, LearnerChecks

MOST_OF_STEP = 0.10
"""Wanted: the checks cost at most this share of an update where the training forward pass gives the logits."""

MOST_OF_STEP_WITH_REPLAY = 0.40
"""Wanted: with a replay of every group, at most this share."""

LEAST_SIGNATURES_PER_S = 3_000.0
"""Wanted: envelopes of groups whose size, signature and schema one core checks in a second."""

_NORMALIZED_ROWS = 64
"""Rows that the time of a log-normalizer is measured on."""


@dataclass(frozen=True, kw_only=True)
class CheckCost:
    """Costs of one model."""

    model: str
    parameters: int
    batch: str
    """Groups x completions x tokens."""
    step_s: float
    """An update: forward, backward and optimizer, without any check."""
    arrival_s: float
    """Size, signature, schema and the rules of its kind for each group, by the node and once more by the learner."""
    replay_s: float
    """Inspection, prefill, draws, statistics and rewards of all groups; all pass."""
    forward_s: float
    """Of `replay_s`, logits and log-normalizers: what a training forward pass computes anyway."""
    load_s: float
    """Loading a policy version for the replay, once an update."""
    checks_of_step: float
    """Everything but `forward_s` and `load_s`, over `step_s`."""
    full_replay_of_step: float
    """Everything, over `step_s`."""
    signatures_per_s: float
    """Groups whose size, signature, schema and rules one core checks in a second."""

    @property
    def met(self) -> bool:
        """Whether all three figures are as wanted."""
        return (
            self.checks_of_step <= MOST_OF_STEP
            and self.full_replay_of_step <= MOST_OF_STEP_WITH_REPLAY
            and self.signatures_per_s >= LEAST_SIGNATURES_PER_S
        )


def measure_check_cost(
    config: CheckCostConfig | None = None, *, on_progress: Callable[[str, float], None] | None = None
) -> CheckCost:
    """Measure one model; `on_progress` gets what is done now and the share that is done."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure(config or CheckCostConfig(), on_progress or (lambda *_: None))
    finally:
        torch.set_num_threads(threads)


def _measure(config: CheckCostConfig, tell: Callable[[str, float], None]) -> CheckCost:
    tell("sampling groups", 0.0)
    bench = LearnerChecks(config)
    envelopes = bench.envelopes()
    steps, arrivals, loads, replays, forwards = [], [], [], [], []
    normalizing = _NormalizerTime(bench.vocabulary)
    bench.update()  # allocates the optimizer's state
    for number in range(config.repeats):
        tell("updates and checks in turns", (1 + number) / (1 + config.repeats))
        steps.append(_timed(bench.update))
        arrivals.append(_timed(partial(bench.arrive, envelopes)) / len(envelopes))
        loads.append(_timed(bench.load))
        forwarded = bench.head.seconds
        replays.append(_timed(bench.check))
        forwards.append(bench.head.seconds - forwarded + bench.tokens * normalizing.measure())
    step_s, load_s, replay_s = (statistics.median(seconds) for seconds in (steps, loads, replays))
    forward_s, envelope_s = statistics.median(forwards), statistics.median(arrivals)
    arrival_s = 2 * envelope_s * config.groups
    return CheckCost(
        model=config.model,
        parameters=bench.layout.parameters,
        batch=f"{config.groups} x {config.completions} x {config.tokens}",
        step_s=step_s,
        arrival_s=arrival_s,
        replay_s=replay_s,
        forward_s=forward_s,
        load_s=load_s,
        checks_of_step=(arrival_s + replay_s - forward_s) / step_s,
        full_replay_of_step=(arrival_s + replay_s + load_s) / step_s,
        signatures_per_s=1.0 / envelope_s,
    )


class _NormalizerTime:
    """Processor seconds of one position's log-normalizer: what draws take longer with log-probs than without."""

    def __init__(self, vocabulary: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self._rows = (
            torch.randn(_NORMALIZED_ROWS, vocabulary, generator=generator),
            torch.ones(_NORMALIZED_ROWS),
            torch.arange(_NORMALIZED_ROWS),
            torch.arange(_NORMALIZED_ROWS),
        )
        self.measure()  # compiles

    def measure(self) -> float:
        """Seconds for one position."""
        alone, both = _timed(lambda: draw(*self._rows)), _timed(lambda: draw_with_logprobs(*self._rows))
        return max(0.0, both - alone) / _NORMALIZED_ROWS


def _tell(text: str, share: float) -> None:
    sys.stderr.write(f"{share:4.0%} {text}\n")


def _timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the costs, as one JSON object or as lines; 1 when one is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--model", default="29m", help="29m, 123m or 494m")
    parser.add_argument("--groups", type=int, default=4, help="groups of one update")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each completion")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args(arguments)
    config = CheckCostConfig(model=given.model, groups=given.groups, tokens=given.tokens, repeats=given.repeats)
    cost = measure_check_cost(config, on_progress=_tell)
    document = asdict(cost) | {"met": cost.met}
    lines = "\n".join(f"{name} {value}" for name, value in document.items())
    sys.stdout.write((json.dumps(document) if given.json else lines) + "\n")
    return 0 if cost.met else 1


if __name__ == "__main__":
    sys.exit(main())
