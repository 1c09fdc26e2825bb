"""RolloutBuffer and epochs: nothing stale leaves, nothing is used twice, and a version follows every κ updates."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from p2prl.learner.schedule import Action, Schedule, ScheduleConfig
from p2prl.learner.staleness_buffer import ReadyGroup, RolloutBuffer
from p2prl.protocol.digests import Digest


def ready(number: int, policy_step: int) -> ReadyGroup:
    return ReadyGroup(Digest(number.to_bytes(32, "big")), b"", policy_step, 0.0)


@given(st.lists(st.integers(0, 30), max_size=40), st.integers(0, 40), st.integers(0, 10))
def test_a_buffer_keeps_order_and_drops_only_what_is_past_the_bound(ages: list[int], step: int, bound: int) -> None:
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


def test_the_state_table_of_epochs() -> None:
    config = ScheduleConfig(groups_per_update=4, publish_every=3, updates=7)
    table = {
        # (step, published step, ready groups): what is due
        (0, None, 0): Action.PUBLISH,
        (0, None, 9): Action.PUBLISH,
        (0, 0, 3): Action.COLLECT,
        (0, 0, 4): Action.STEP,
        (2, 0, 4): Action.STEP,
        (3, 0, 9): Action.PUBLISH,
        (3, 3, 0): Action.COLLECT,
        (7, 6, 9): Action.PUBLISH,
        (7, 7, 9): Action.FINISH,
        (9, 9, 9): Action.FINISH,
    }
    for (step, published, groups), expected in table.items():
        assert Schedule(config, step=step, published_step=published).next_action(groups) is expected


@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 20), st.data())
def test_a_run_publishes_every_kappa_updates_and_at_its_end(
    per_update: int, publish_every: int, updates: int, data: st.DataObject
) -> None:
    config = ScheduleConfig(groups_per_update=per_update, publish_every=publish_every, updates=updates)
    epochs, published, groups = Schedule(config, step=0, published_step=None), list[int](), 0
    while (action := epochs.next_action(groups)) is not Action.FINISH:
        if action is Action.PUBLISH:
            published.append(epochs.step)
            epochs.published()
        elif action is Action.STEP:
            assert groups >= per_update
            groups -= per_update
            epochs.stepped()
        else:
            assert groups < per_update
            groups += data.draw(st.integers(1, 4))
    every = set(range(0, updates + 1, publish_every)) | {updates}
    assert published == sorted(every)
    assert epochs.step == updates


def test_a_run_without_an_end_goes_on() -> None:
    config = ScheduleConfig(groups_per_update=1, publish_every=10, updates=0)
    assert Schedule(config, step=10_000, published_step=9_995).next_action(1) is Action.STEP
