"""A campaign of fuzzed inputs, spread over targets: each is judged by the error it raises, its time and its memory."""

from __future__ import annotations

import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from p2prl_lab.testing.fuzz.target import Target

SLOWEST_S = 2.0
"""Processor seconds of one input. Python and msgpack need a millisecond for the largest ones."""

MOST_BYTES = 256 * 1024 * 1024
"""Memory that one input may add to the most that the process held before: thirty times the largest input."""

_HANG_S = 20.0

Timer = Callable[[], float]
"""Seconds of any origin."""

_WHOLE_INPUTS = 3
"""Failing inputs of a target that the report shows."""

_SHOWN_BYTES = 4_096


class _HangError(BaseException):
    """An input took far too long; no `Exception`, so that a decoder does not catch it."""


@dataclass(slots=True)
class TargetReport:
    """What became of a target's inputs."""

    target: str
    inputs: int = 0
    accepted: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    """Inputs by the error they raised."""
    slowest_s: float = 0.0
    """Processor seconds of the slowest input."""
    most_added_bytes: int = 0
    """Most that one input added to the peak of the process's memory."""
    failures: int = 0
    examples: list[dict[str, str]] = field(default_factory=list)
    """Some failures: what happened, and the input as hexadecimal digits."""

    def fail(self, what: str, data: bytes) -> None:
        """Count a failure, and keep the first few."""
        self.failures += 1
        if len(self.examples) < _WHOLE_INPUTS:
            self.examples.append({"what": what, "bytes": str(len(data)), "input": data[:_SHOWN_BYTES].hex()})


def shares(targets: Sequence[Target], inputs: int) -> list[int]:
    """Inputs of each target: by its share, at least one each, `inputs` together or the number of targets if less."""
    total = sum(target.share for target in targets)
    counts = [max(1, int(inputs * target.share / total)) for target in targets]
    counts[0] += max(0, inputs - sum(counts))
    return counts


def run_target(target: Target, inputs: int, *, seed: int, timer: Timer = time.process_time) -> TargetReport:
    """Give a target its inputs. The same seed gives the same inputs, whatever the other targets do."""
    report = TargetReport(target.name)
    rng = random.Random(f"{seed}/{target.name}")
    with _hangs_end():
        for _ in range(inputs):
            data = target.input(rng)
            peak, began = _peak_bytes(), timer()  # making an input may take more than reading it
            _decode(target, data, report)
            spent_s, held = timer() - began, _peak_bytes()
            report.inputs += 1
            report.slowest_s = max(report.slowest_s, spent_s)
            report.most_added_bytes = max(report.most_added_bytes, held - peak)
            if spent_s > SLOWEST_S:
                report.fail(f"{spent_s:.2f} s of processor time", data)
            if held - peak > MOST_BYTES:
                report.fail(f"{held - peak} bytes of memory", data)
    return report


def _decode(target: Target, data: bytes, report: TargetReport) -> None:
    signal.setitimer(signal.ITIMER_PROF, _HANG_S)
    try:
        target.decode(data)
        report.accepted += 1
    except target.allowed as error:
        name = type(error).__name__
        report.refused[name] = report.refused.get(name, 0) + 1
    except (Exception, _HangError) as error:  # noqa: BLE001 - whatever else is raised is what is looked for
        place = traceback.extract_tb(error.__traceback__)[-1]
        report.fail(f"{type(error).__name__}: {str(error)[:200]} at {place.filename}:{place.lineno}", data)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


def run_campaign(targets: Sequence[Target], inputs: int, *, seed: int) -> Iterator[TargetReport]:
    """Spread inputs over the targets, one target after the other."""
    for target, count in zip(targets, shares(targets, inputs), strict=True):
        yield run_target(target, count, seed=seed)


def _peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@contextmanager
def _hangs_end() -> Iterator[None]:
    """Let the timer interrupt Python code that does not come back. What hangs in compiled code must be killed."""

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise _HangError(f"no answer within {_HANG_S:g} s")

    before = signal.signal(signal.SIGPROF, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGPROF, before)
