"""The queue's rules: authors in turn, a lane kept free from each author and from suspects, slow answers make room."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from p2prl.tasks.sandbox.answer_queue import MAX_JOB_ANSWERS, MAX_JOB_CHARS, AnswerQueue, Job, split


def job(account: bytes, number: int = 0) -> Job[None]:
    return Job(None, account, (number,))


def nobody(_account: bytes) -> bool:
    return False


def test_authors_take_turns() -> None:
    queue: AnswerQueue[None] = AnswerQueue(2)
    for number in range(3):
        queue.add(job(b"a", number))
    queue.add(job(b"b"))
    order = []
    while (taken := queue.take(nobody)) is not None:
        order.append((taken.account, taken.numbers))
        queue.finish(taken)
    assert order == [(b"a", (0,)), (b"b", (0,)), (b"a", (1,)), (b"a", (2,))]
    assert len(queue) == 0


def test_a_job_put_first_comes_before_its_authors_others() -> None:
    queue: AnswerQueue[None] = AnswerQueue(1)
    queue.add(job(b"a", 1))
    queue.add(job(b"a", 2), first=True)
    taken = queue.take(nobody)
    assert taken is not None
    assert taken.numbers == (2,)


def test_as_many_jobs_run_as_there_are_workers_and_slow_ones_make_room() -> None:
    queue: AnswerQueue[None] = AnswerQueue(2)
    for account in (b"a", b"b", b"c", b"d", b"e"):
        queue.add(job(account))
    first, second = queue.take(nobody), queue.take(nobody)
    assert first is not None
    assert second is not None
    assert queue.take(nobody) is None
    queue.mark_slow(first)
    queue.mark_slow(first)
    third = queue.take(nobody)
    assert third is not None
    assert queue.take(nobody) is None  # marking it twice made room once
    queue.finish(first)
    assert queue.take(nobody) is None  # it had given its place already
    queue.finish(second)
    assert queue.take(nobody) is not None


def test_one_author_leaves_a_lane_to_others() -> None:
    queue: AnswerQueue[None] = AnswerQueue(2)
    for number in range(9):
        queue.add(job(b"a", number))
    running = 0
    while (taken := queue.take(nobody)) is not None:
        queue.mark_slow(taken)
        running += 1
    assert running == queue.lanes - 1 == 3
    queue.add(job(b"b"))
    other = queue.take(nobody)
    assert other is not None
    assert other.account == b"b"


def test_suspects_share_one_lane() -> None:
    queue: AnswerQueue[None] = AnswerQueue(2)
    for account in (b"bad", b"worse", b"good"):
        queue.add(job(account))
    first, second = (queue.take(lambda account: account != b"good") for _ in range(2))
    assert first is not None
    assert second is not None
    assert (first.account, second.account) == (b"bad", b"good")
    queue.finish(second)
    assert queue.take(lambda account: account != b"good") is None
    queue.finish(first)
    third = queue.take(lambda account: account != b"good")
    assert third is not None
    assert third.account == b"worse"


def test_drained_jobs_are_those_that_wait() -> None:
    queue: AnswerQueue[None] = AnswerQueue(1)
    queue.add(job(b"a"))
    queue.add(job(b"b", 7))
    queue.take(nobody)
    assert [left.numbers for left in queue.drain()] == [(7,)]
    assert len(queue) == 0


@given(st.lists(st.integers(0, 200_000), max_size=200), st.booleans())
def test_jobs_hold_every_answer_once_in_order_and_within_bounds(lengths: list[int], together: bool) -> None:
    jobs = split(lengths, together=together)
    assert [number for numbers in jobs for number in numbers] == list(range(len(lengths)))
    for numbers in jobs:
        assert 1 <= len(numbers) <= (MAX_JOB_ANSWERS if together else 1)
        assert len(numbers) == 1 or sum(lengths[number] for number in numbers) <= MAX_JOB_CHARS
    if together:  # and none could have been joined to the one before
        for before, after in pairwise(jobs):
            chars = sum(lengths[number] for number in (*before, after[0]))
            assert len(before) == MAX_JOB_ANSWERS or chars > MAX_JOB_CHARS
