"""Probe of a policy on its run's own tasks: a few groups, sampled and scored as the run would, within a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from p2prl.clock import Clock
from p2prl.errors import RemoteProtocolError
from p2prl.models.groups.group_work import GroupWork, SlotAssignment
from p2prl.models.rewards.scoring import failure_kind
from p2prl.models.sampler_port import Generation, GenerationStopped, Sampler
from p2prl.models.sampling import sample_all
from p2prl.protocol.digests import digest
from p2prl.tasks.new_run_verdict import ProbeFigures, figures_of
from p2prl.tasks.sandbox.batch import TIMEOUT

_FIRST_GROUPS = 2
"""Groups of the first batch, whose speed says how many fit the time. Later batches double."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What a probe came to."""

    tasks: dict[str, ProbeFigures]
    """By task; a task is missing when the time was over before its first group."""
    tokens_per_s: float
    """Over all completions, scoring included."""
    groups: int
    longest_prompt: int
    """Tokens of the longest prompt; 0 without groups."""
    complete: bool
    """Whether all groups were sampled; otherwise the time was over, or no answer could be scored in its time."""


def probe(
    sampler: Sampler,
    work: GroupWork,
    *,
    groups: int,
    limit_s: float,
    clock: Clock,
    on_progress: Callable[[float], None],
) -> ProbeResult:
    """Sample up to `groups` groups of slots that no peer has, within about `limit_s` seconds.

    Only whole batches count: those of them that end first are the short ones. A scorer that takes too long for every
    answer of the first batch ends the probe.
    """
    nobody = digest("p2prl/probe/v1", b"")
    began = clock.now()
    rewards: dict[str, list[tuple[float, ...]]] = {}
    made: dict[str, list[Generation]] = {}
    failures: dict[str, list[str]] = {}
    done, longest, batch = 0, 0, _FIRST_GROUPS
    while done < groups and batch:
        assignments: list[SlotAssignment] = []
        for slot in range(done, min(groups, done + batch)):
            with contextlib.suppress(RemoteProtocolError):  # its prompt does not fit: volunteers skip it too
                assignments.append(work.assign(beacon=nobody, peer=nobody, slot=slot))
        requests = [request for assignment in assignments for request in assignment.requests]
        try:
            sampled = iter(sample_all(sampler, requests, should_stop=lambda: clock.now() - began > limit_s))
        except GenerationStopped:
            break
        for assignment in assignments:
            longest = max(longest, len(assignment.prompt_ids))
            group = [next(sampled) for _ in assignment.requests]
            made.setdefault(assignment.task, []).extend(group)
            scored = work.start_rewards(assignment, [each.token_ids for each in group])()
            rewards.setdefault(assignment.task, []).append(scored.values)
            failures.setdefault(assignment.task, []).extend(scored.failures)
        done += min(batch, groups - done)
        if _all_late(made, failures):
            break
        spent = clock.now() - began
        on_progress(min(1.0, max(done / groups, spent / limit_s)))
        fitting = groups if spent <= 0.0 else int((limit_s - spent) * done / spent)
        batch = max(0, min(2 * batch, fitting))
    seconds = clock.now() - began
    tokens = sum(each.sampled_tokens for group in made.values() for each in group)
    return ProbeResult(
        tasks={
            task: figures_of(
                rewards[task],
                [each.sampled_tokens for each in group],
                sum(not each.finished for each in group),
                failures[task],
            )
            for task, group in made.items()
        },
        tokens_per_s=tokens / seconds if seconds > 0.0 else 0.0,
        groups=sum(map(len, rewards.values())),
        longest_prompt=longest,
        complete=done >= groups,
    )


def _all_late(made: Mapping[str, Sequence[Generation]], failures: Mapping[str, Sequence[str]]) -> bool:
    """Whether there are completions, and the scorer took too long for each."""
    late = sum(failure_kind(failure) == TIMEOUT for each in failures.values() for failure in each)
    return 0 < sum(map(len, made.values())) == late
