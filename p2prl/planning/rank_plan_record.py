"""The plans of ranks that a profile found for a run, as they are kept beside it. Imports no torch."""

from __future__ import annotations

from pathlib import Path

import msgspec

from p2prl.learner.training.parallel_config import Zero

_PLAN_FILE = "host-plan.json"


class KeptPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One plan of ranks with its best micro-batches."""

    plan: str
    zero: Zero
    micro_batch_tokens: int
    checkpointing: bool
    seconds: float
    """Of an update, predicted."""
    memory_bytes: int
    """Of each rank, predicted."""


class HostChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What was chosen on a host."""

    host: str
    versions: str
    settings: str
    """What plans were timed for: equal settings have equal texts."""
    profile_s: float
    plans: list[KeptPlan]
    """Fastest first; the first is the chosen one."""
    without_memory: list[str]
    """Plans of which not even one row fits."""
    without_time: list[str]
    """Plans that the model cannot be trained by, or that were not timed within a minute."""


def read_choice(run: Path) -> HostChoice | None:
    """What was chosen for a run folder; None if nothing was, or its file is unreadable."""
    try:
        return msgspec.json.decode((run / _PLAN_FILE).read_bytes(), type=HostChoice)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def choice_lines(choice: HostChoice) -> list[str]:
    """The chosen plan and the next two, a line each, and what could not be chosen."""
    best = choice.plans[0]
    lines = []
    for number, each in enumerate(choice.plans[:3]):
        zero = f", zero {each.zero}" if each.plan.startswith("dp") else ""
        later = f"{each.seconds / best.seconds - 1:.0%} slower" if number else "chosen"
        again = " with checkpointing" if each.checkpointing else ""
        lines.append(
            f"plan {each.plan}{zero}: {each.seconds:.3g} s an update, {each.memory_bytes / 1e9:.2f} GB a rank,"
            f" {each.micro_batch_tokens:,} tokens a micro-batch{again}: {later}"
        )
    if choice.without_memory:
        lines.append(f"no memory for {', '.join(choice.without_memory)}")
    if choice.without_time:
        lines.append(f"not timed: {', '.join(choice.without_time)}")
    return lines


def write_choice(run: Path, choice: HostChoice) -> None:
    """Keep a choice beside its run."""
    new = run / f"{_PLAN_FILE}.new"
    new.write_bytes(msgspec.json.format(msgspec.json.encode(choice)))
    new.rename(run / _PLAN_FILE)
