"""Stages and the time of the training thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from p2prl.learner.timing.stages import InlineStage, Stage, ThreadStage
from p2prl.learner.timing.training_stage import Activity, TrainingTime


@pytest.fixture(params=["inline", "thread"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    made: Stage = InlineStage() if request.param == "inline" else thread_stage()
    yield made
    made.close()


def thread_stage(
    *, on_start: Callable[[], None] = lambda: None, on_done: Callable[[], None] = lambda: None
) -> ThreadStage:
    return ThreadStage("test", on_start=on_start, on_done=on_done)


def test_each_result_is_taken_once(stage: Stage) -> None:
    assert (stage.busy, stage.take(), stage.take(wait=True)) == (False, [], [])
    for number in range(3):
        stage.start(lambda number=number: number)  # type: ignore[misc]
        assert stage.busy
        assert stage.take(wait=True) == [number]
        assert (stage.busy, stage.take()) == (False, [])


def test_thread_runs_while_the_caller_goes_on() -> None:
    go, done, seen = threading.Event(), threading.Event(), []
    stage = thread_stage(on_start=lambda: seen.append(threading.current_thread()), on_done=done.set)
    assert seen != [threading.current_thread()]
    assert len(seen) == 1, "the thread is prepared before the stage is used"
    done.clear()
    stage.start(lambda: go.wait(10) and threading.current_thread())
    assert stage.take() == []
    assert not done.is_set()
    go.set()
    assert done.wait(10)
    assert stage.take() == seen
    stage.close()
    assert not seen[0].is_alive()


def test_error_of_a_job_is_raised_where_its_result_is_taken() -> None:
    stage = thread_stage()

    def fail() -> None:
        raise LookupError("of the job")

    stage.start(fail)
    with pytest.raises(LookupError, match="of the job"):
        stage.take(wait=True)
    stage.start(lambda: 7)
    assert stage.take(wait=True) == [7], "the thread goes on"
    stage.close()


def test_error_at_the_start_of_the_thread_is_raised() -> None:
    def fail() -> None:
        raise LookupError("at the start")

    with pytest.raises(LookupError, match="at the start"):
        thread_stage(on_start=fail)


def test_shares_of_the_training_thread() -> None:
    time = TrainingTime(100.0)
    time.switch(Activity.UPDATE, 101.0)
    time.switch(Activity.PUBLISH, 107.0)
    time.switch(Activity.WAIT_REPLAY, 109.0)
    shares = time.take_shares(110.0)
    assert shares == {
        "training/busy": 0.6,
        "training/publishing": 0.2,
        "training/checkpoint": 0.0,
        "training/waiting_groups": 0.1,
        "training/waiting_replay": 0.1,
    }
    assert time.take_shares(110.0) == {}
    assert time.take_shares(112.0)["training/waiting_replay"] == 1.0


def test_a_job_is_timed_apart_from_the_wait_for_its_result() -> None:
    assert InlineStage().job_s == 0.0
    stage = thread_stage()
    stage.start(lambda: sum(range(300_000)))
    (_,) = stage.take(wait=True)
    worked = stage.job_s
    assert worked > 0.0
    stage.start(lambda: None)
    (_,) = stage.take(wait=True)
    assert 0.0 <= stage.job_s < worked, "that of the newest job"
    stage.close()
