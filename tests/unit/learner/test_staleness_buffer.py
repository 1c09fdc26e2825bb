"""Rollout buffer: keeps the order and never returns a group whose staleness is above the bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from p2prl.learner.intake.staleness_buffer import RolloutBuffer
from p2prl.learner.intake.verified_group import VerifiedGroup
from p2prl.protocol.digests import Digest
from p2prl.protocol.rollout_group import EngineClass, RolloutGroup

GROUP = RolloutGroup(0, bytes(32), 0, "chain4", b"", (), EngineClass("", "", "", ""), 0.0)


def ready(number: int, policy_step: int) -> VerifiedGroup:
    return VerifiedGroup(Digest(number.to_bytes(32, "big")), b"", GROUP, policy_step, b"", b"")


@given(st.lists(st.integers(0, 30), max_size=40), st.integers(0, 40), st.integers(0, 10))
def test_order_is_kept_and_only_stale_groups_are_dropped(ages: list[int], step: int, bound: int) -> None:
    buffer = RolloutBuffer(staleness_bound=bound)
    groups = [ready(n, policy_step) for n, policy_step in enumerate(ages)]
    for group in groups:
        buffer.add(group)
    stale = buffer.drop_stale(step)
    assert stale == [g for g in groups if step - g.policy_step > bound]
    fresh = [g for g in groups if g not in stale]
    assert len(buffer) == len(fresh)
    half = len(fresh) // 2
    assert buffer.take(half) + buffer.take(len(fresh) - half) == fresh
    assert len(buffer) == 0
