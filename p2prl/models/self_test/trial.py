"""Build the sampler of a run and test it, and tell an engine that errs from a machine that errs.

Both show as wrong results in an engine's self-test. So when another engine than transformers fails, transformers draws
the same golden groups on the same device: if they pass, the machine computes well.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch

from p2prl.errors import IntegrityError, MachineError
from p2prl.models.engines.engine_names import DEFAULT_ENGINE, ChosenEngine
from p2prl.models.engines.registry import build_sampler
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.hardware.failures import release_memory
from p2prl.models.run_model import RunModel
from p2prl.models.sampler_port import Sampler
from p2prl.models.self_test.self_test import ADVICE, NOTHING_SENT, SelfTest, SelfTestVerdict, self_test

_REFERENCE = ChosenEngine(DEFAULT_ENGINE, "as learners replay with it")

_PASSED = (SelfTestVerdict.FITS, SelfTestVerdict.UNDECIDED)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The self-test of one engine."""

    verdict: SelfTestVerdict
    symptom: str
    """Predicate of an engine that does not pass."""
    tested: SelfTest | None = None
    """None when there was none, or the engine failed in the middle of it."""

    @property
    def passed(self) -> bool:
        """Whether the engine may work."""
        return self.verdict in _PASSED


def build_tested_sampler(
    engine: ChosenEngine,
    run: RunModel,
    *,
    device: torch.device,
    dtype: str,
    temperature: float,
    memory_bytes: int | None = None,
    on_notice: Callable[[str], None] = lambda _: None,
) -> Sampler:
    """The sampler of an engine, tested, or that of its fallback where the engine errs or cannot run the model.

    Arguments as for `build_sampler` and `self_test`; `on_notice` gets the result. `MachineError` when the machine
    computes wrong results, or the engine that its owner asked for does.
    """

    def build(chosen: ChosenEngine) -> Sampler:
        return build_sampler(chosen, run, device=device, dtype=dtype, memory_bytes=memory_bytes, on_notice=on_notice)

    def test(sampler: Sampler) -> _Outcome:
        return _outcome(lambda: self_test(run, sampler, dtype=dtype, temperature=temperature))

    sampler = build(engine)
    found = test(sampler)
    if found.passed or isinstance(sampler, TransformersSampler):
        _tell(found, on_notice)
        return sampler
    with suppress(MachineError):  # of steps in flight behind one that failed
        sampler.sleep()
    del sampler  # with the last reference to it, all its memory is free before another engine needs it
    release_memory()
    on_notice(f"Self-test: {engine.name} {found.symptom}. Testing {DEFAULT_ENGINE} on the same device.")
    try:
        reference = build(_REFERENCE)
    except MachineError as error:
        raise MachineError(
            f"{engine.name} {found.symptom}, and whether it errs or this machine does cannot be told, as "
            f"{DEFAULT_ENGINE} does not run here: {error}",
            remedy=f"{error.remedy} {ADVICE}".strip(),
        ) from error
    judged = test(reference)
    _tell(judged, on_notice)
    if judged.verdict is not found.verdict:
        passes = "passes" if judged.passed else "is merely noisy"
        fault = (
            f"{engine.name} {found.symptom}, while {DEFAULT_ENGINE} {passes} on the same device: the fault is in "
            f"{engine.name}, not in this machine"
        )
        if not engine.fallback:
            raise MachineError(fault, remedy=f"Use --engine {DEFAULT_ENGINE}. {NOTHING_SENT}")
        on_notice(f"{fault}. Sampling with {DEFAULT_ENGINE} instead.")
    elif not engine.fallback:  # the machine is noisy, whatever computes: its owner's engine goes on
        reference.sleep()
        del reference
        release_memory()
        return build(engine)
    return reference


def _outcome(test: Callable[[], SelfTest | None]) -> _Outcome:
    try:
        tested = test()
    except (IntegrityError, MachineError) as error:
        return _Outcome(SelfTestVerdict.WRONG, f"fails in its self-test: {error}")
    if tested is None:
        return _Outcome(SelfTestVerdict.FITS, "")
    return _Outcome(tested.verdict, tested.symptom, tested)


def _tell(outcome: _Outcome, on_notice: Callable[[str], None]) -> None:
    """The outcome as one about the machine. `MachineError` when its results are wrong."""
    if outcome.tested is not None:
        on_notice(outcome.tested.message)
    elif not outcome.passed:
        raise MachineError(f"this machine's engine {outcome.symptom}", remedy=f"{ADVICE} {NOTHING_SENT}")
