"""Schedule: a version is published every κ updates and at the end of the run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from p2prl.learner.timing.next_update import Action, Schedule, ScheduleConfig


def test_state_table() -> None:
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
def test_versions_follow_every_kappa_updates_and_at_the_end(
    per_update: int, publish_every: int, updates: int, data: st.DataObject
) -> None:
    config = ScheduleConfig(groups_per_update=per_update, publish_every=publish_every, updates=updates)
    schedule, published, groups = Schedule(config, step=0, published_step=None), list[int](), 0
    while (action := schedule.next_action(groups)) is not Action.FINISH:
        if action is Action.PUBLISH:
            published.append(schedule.step)
            schedule.published()
        elif action is Action.STEP:
            assert groups >= per_update
            groups -= per_update
            schedule.stepped()
        else:
            assert groups < per_update
            groups += data.draw(st.integers(1, 4))
    every = set(range(0, updates + 1, publish_every)) | {updates}
    assert published == sorted(every)
    assert schedule.step == updates


def test_run_without_an_end_continues() -> None:
    config = ScheduleConfig(groups_per_update=1, publish_every=10, updates=0)
    assert Schedule(config, step=10_000, published_step=9_995).next_action(1) is Action.STEP
