"""Rollout buffer: keeps the order, prefers what was wanted to the surplus, and returns nothing above the bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from p2prl.learner.intake.batch_caps import Contributor
from p2prl.learner.intake.rollout_buffer import RolloutBuffer
from p2prl.learner.intake.verified_group import VerifiedGroup
from p2prl.protocol.digests import Digest
from p2prl.protocol.rollout_group import EngineClass, RolloutGroup

GROUP = RolloutGroup(0, bytes(32), 0, "chain4", b"", (), EngineClass("", "", "", ""), 0.0)


def ready(number: int, policy_step: int, peer: bytes = b"") -> VerifiedGroup:
    return VerifiedGroup(Digest(number.to_bytes(32, "big")), peer, GROUP, policy_step, b"", b"")


@given(st.lists(st.integers(0, 30), max_size=40), st.integers(0, 40), st.integers(0, 10))
def test_order_is_kept_and_only_stale_groups_are_dropped(ages: list[int], step: int, bound: int) -> None:
    buffer = RolloutBuffer(staleness_bound=bound, ready_target=8)
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


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=30), st.integers(0, 12), st.integers(0, 5))
def test_wanted_groups_are_taken_before_the_surplus_and_the_surplus_newest_first(
    added: list[tuple[int, bool]], step: int, target: int
) -> None:
    bound = 6
    buffer = RolloutBuffer(staleness_bound=bound, ready_target=target)
    wanted, surplus, dropped = [], [], []
    for number, (policy_step, is_surplus) in enumerate(added):
        group = ready(number, policy_step)
        if is_surplus:
            surplus.append(group)
            dropped.append(buffer.add_surplus(group))
        else:
            wanted.append(group)
            buffer.add(group)
    assert buffer.wanted == max(0, target - len(wanted))
    gone = [group for group in dropped if group is not None]
    kept = [group for group in surplus if group not in gone]
    assert len(kept) == min(target, len(surplus))
    assert not kept or all(group.policy_step <= min(each.policy_step for each in kept) for group in gone)
    stale = buffer.drop_stale(step)
    assert {g.digest for g in stale} == {g.digest for g in (*wanted, *kept) if step - g.policy_step > bound}
    fresh = [group for group in wanted if group not in stale]
    spare = [group for group in kept if group not in stale]
    taken = buffer.take(len(buffer))
    assert taken[: len(fresh)] == fresh
    assert sorted(taken[len(fresh) :], key=lambda g: g.digest) == sorted(spare, key=lambda g: g.digest)
    steps = [group.policy_step for group in taken[len(fresh) :]]
    assert steps == sorted(steps, reverse=True)


def test_part_of_the_surplus_is_taken_when_too_few_wanted_groups_are_left() -> None:
    buffer = RolloutBuffer(staleness_bound=9, ready_target=4)
    wanted, old, new = ready(0, 1), ready(1, 2), ready(2, 5)
    buffer.add(wanted)
    assert (buffer.add_surplus(old), buffer.add_surplus(new)) == (None, None)
    assert buffer.take(2) == [wanted, new]
    assert len(buffer) == 1
    assert buffer.take(1) == [old]


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 30))
def test_newcomers_fill_no_more_than_their_places_of_the_buffer(known: list[bool], target: int) -> None:
    buffer = RolloutBuffer(
        staleness_bound=9, ready_target=target, contributor=lambda peer: Contributor(peer, is_known=peer == b"known")
    )
    for number, is_known in enumerate(known):
        buffer.add(ready(number, 0, b"known" if is_known else b"%d" % number))
    assert buffer.wanted == max(0, target - len(known))
    counted = sum(known) + min(len(known) - sum(known), 15 * target // 100)
    assert buffer.wanted_of_known == max(0, target - counted) >= buffer.wanted


def test_a_group_past_the_cap_of_newcomers_is_trained_on_later() -> None:
    buffer = RolloutBuffer(
        staleness_bound=9, ready_target=20, contributor=lambda peer: Contributor(peer, is_known=peer[:1] == b"k")
    )
    newcomers = [ready(number, 0, b"%d" % number) for number in range(10)]
    known = [ready(number, 0, b"k%d" % number) for number in range(10, 30)]
    for group in (*newcomers, *known):
        buffer.add(group)
    assert buffer.take(10, step=0) == [newcomers[0], *known[:9]]
    assert buffer.take(10, step=1) == [*newcomers[1:3], *known[9:17]]
    assert buffer.take(10, step=2) == [*newcomers[3:10], *known[17:]]
