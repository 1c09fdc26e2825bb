"""The pool's scores, failures and limits, with real workers."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from p2prl.errors import ConfigError, LocalProtocolError
from p2prl.tasks.data.packed_data import MAX_ROW_BYTES
from p2prl.tasks.sandbox.pool import PoolConfig, ScoredAnswer, ScorerPool, TaskScoring
from p2prl.tasks.task import MAX_SCORED_CHARS

BUILDER = "tests.unit.tasks.sandbox.scorer_builder"
TASKS = {name: TaskScoring(name) for name in ("exact", "forked exact", "evaluating", "obeying", "forked obeying")}
ROW = {"answer": "42"}
LIMIT_S = 1.0


@pytest.fixture(scope="module")
def pool() -> Iterator[ScorerPool]:
    with ScorerPool(TASKS, PoolConfig(limit_s=LIMIT_S, memory_mb=256), builder=BUILDER) as made:
        yield made


def scores(pool: ScorerPool, task: str, texts: Sequence[str], *, account: bytes = b"author") -> list[ScoredAnswer]:
    return list(pool.score(task, ROW, [(text, True) for text in texts], account=account))


@pytest.mark.parametrize("task", ["exact", "forked exact"])
def test_scores_come_in_the_order_of_the_answers(pool: ScorerPool, task: str) -> None:
    answers = [("42", True), ("41", True), ("42", False), ("", True), ("42", True)]
    assert [s.value for s in pool.score(task, ROW, answers, account=b"a")] == [1.0, 0.0, 0.0, 0.0, 1.0]
    assert all(not scored.failure for scored in pool.score(task, ROW, answers, account=b"a"))
    assert pool.score(task, ROW, [], account=b"a") == ()


@pytest.mark.parametrize("text", ["\ud800", "\x00", "𝟜\u202e", "\udfff\ud800" * 100])
def test_any_text_reaches_the_scorer_as_it_is(pool: ScorerPool, text: str) -> None:
    assert pool.score("exact", {"answer": text}, [(text, True)], account=b"a")[0] == ScoredAnswer(1.0)


@pytest.mark.parametrize("task", ["obeying", "forked obeying"])
def test_each_failure_scores_zero_and_says_why(pool: ScorerPool, task: str) -> None:
    texts = ["value 3.5", "raise boom", "value nan", "value 101", "text 1.0", "value -100", "end", "value 2"]
    assert scores(pool, task, texts, account=f"failing {task}".encode()) == [
        ScoredAnswer(3.5),
        ScoredAnswer(0.0, "error: ValueError: boom"),
        ScoredAnswer(0.0, "value: nan"),
        ScoredAnswer(0.0, "value: 101.0"),
        ScoredAnswer(0.0, "value: a value of type str"),
        ScoredAnswer(-100.0),
        ScoredAnswer(0.0, "ended"),
        ScoredAnswer(2.0),
    ]


@pytest.mark.parametrize("task", ["obeying", "forked obeying"])
def test_memory_is_limited_and_others_of_the_call_are_scored(pool: ScorerPool, task: str) -> None:
    texts = ["value 1", f"allocate {10**9}", f"allocate {10**7}", "value 2"]
    expected = [ScoredAnswer(1.0), ScoredAnswer(0.0, "memory"), ScoredAnswer(1.0), ScoredAnswer(2.0)]
    assert scores(pool, task, texts, account=f"large {task}".encode()) == expected


@pytest.mark.parametrize("task", ["obeying", "forked obeying"])
def test_a_hung_answer_ends_and_others_of_the_call_are_scored(pool: ScorerPool, task: str) -> None:
    before = pool.statistics
    got = scores(pool, task, ["value 1", "hang", "value 2", "sleep 1000"], account=f"hung {task}".encode())
    assert got == [ScoredAnswer(1.0), ScoredAnswer(0.0, "timeout"), ScoredAnswer(2.0), ScoredAnswer(0.0, "timeout")]
    after = pool.statistics
    assert after.overruns == before.overruns + 2
    assert after.failures[task, "timeout"] == before.failures.get((task, "timeout"), 0) + 2
    assert after.answers[task] == before.answers.get(task, 0) + 4


def test_overruns_shorten_the_limit_of_their_author_alone(pool: ScorerPool) -> None:
    for _ in range(2):
        scores(pool, "forked obeying", ["end"], account=b"crashing")
    assert pool.limit_s(b"crashing") == 0.25
    assert pool.limit_s(b"another") == LIMIT_S
    assert scores(pool, "forked obeying", ["sleep 0.4", "value 1"], account=b"crashing") == [
        ScoredAnswer(0.0, "timeout"),
        ScoredAnswer(1.0),
    ]


def test_an_answer_that_hangs_does_not_stop_others(pool: ScorerPool) -> None:
    hung = pool.submit("forked obeying", ROW, [("sleep 1000", True)] * 3, account=b"hog")
    assert [s.value for s in scores(pool, "exact", ["42"] * 20, account=b"honest")] == [1.0] * 20
    assert not hung.done()
    assert {s.failure for s in hung.result()} == {"timeout"}


def test_a_scorer_that_draws_numbers_draws_the_same_in_every_worker(pool: ScorerPool) -> None:
    drawn = {scored.value for scored in scores(pool, "forked obeying", ["draw"] * 8)}
    assert len(drawn) == 1


def test_an_answer_changes_nothing_for_the_next(pool: ScorerPool) -> None:
    spoil = f"from {BUILDER} import Evaluating\nEvaluating.score = lambda *a: 1.0\nraise ValueError"
    got = scores(pool, "evaluating", [spoil, "result = '41'", "result = '42'", spoil, "result = 0"], account=b"spoiler")
    assert [scored.value for scored in got] == [0.0, 0.0, 1.0, 0.0, 0.0]


def test_replies_forged_for_other_answers_do_not_count(pool: ScorerPool) -> None:
    forge = (
        "import os\nfrom p2prl.tasks.sandbox import frames\n"
        "data = b''.join(frames.reply_bytes(frames.Reply(n, 0, 7.0)) for n in range(9))\n"
        "for fd in range(3, 64):\n    try: os.write(fd, data)\n    except OSError: pass\n"
    )
    got = scores(pool, "evaluating", [forge, "result = '42'", "result = '41'", forge, "pass"], account=b"forger")
    assert [scored.value for scored in got] == [7.0, 1.0, 0.0, 7.0, 0.0]  # its own it may choose: docs/sandbox.md


def test_long_answers_and_unusable_rows_are_not_sent(pool: ScorerPool) -> None:
    longest, too_long = ("42" + " " * (MAX_SCORED_CHARS - n) for n in (2, 1))
    got = scores(pool, "exact", [too_long, "42", longest])
    assert got == [ScoredAnswer(0.0, "too long"), ScoredAnswer(1.0), ScoredAnswer(0.0)]
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    for row in ({"answer": "4" * MAX_ROW_BYTES}, {"answer": nested}, {"answer": object()}):
        assert pool.score("exact", row, [("42", True)] * 2, account=b"a") == (ScoredAnswer(0.0, "row"),) * 2
    while nested:
        nested = nested.pop()


def test_asyncio_and_threads_work_in_a_scorer(pool: ScorerPool) -> None:
    code = (
        "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return await asyncio.to_thread(lambda: '42')\n"
        "result = asyncio.run(f())"
    )
    assert scores(pool, "evaluating", [code], account=b"asynchronous") == [ScoredAnswer(1.0)]


def test_the_environment_is_the_same_everywhere(pool: ScorerPool) -> None:
    code = (
        "import os, sys, time, locale\n"
        "assert set(os.environ) <= {'PYTHONHASHSEED', 'PYTHONDONTWRITEBYTECODE', 'LC_ALL', 'TZ', 'PATH', 'HOME',"
        " 'OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS', 'LC_CTYPE'}, os.environ\n"
        "assert not sys.flags.hash_randomization and time.tzname == ('UTC', 'UTC')\n"
        "assert 'torch' not in sys.modules and os.getcwd() == '/'\n"
        "assert sorted(fd for fd in range(256) if is_open(fd)) == [0, 1, 2, own], 'descriptors'\n"
        "result = '42'"
    )
    find = (
        "import os\ndef is_open(fd):\n    try: os.fstat(fd)\n    except OSError: return False\n    return True\n"
        "own = next(fd for fd in range(3, 256) if is_open(fd))\n"
    )
    assert scores(pool, "evaluating", [find + code], account=b"curious") == [ScoredAnswer(1.0)]


def test_callers_in_several_threads_get_their_own_scores(pool: ScorerPool) -> None:
    wrong: list[object] = []

    def ask(account: int) -> None:
        for number in range(20):
            value = account * 100 + number
            got = pool.score("obeying", ROW, [(f"value {value / 10_000}", True)] * 2, account=b"%d" % account)
            if [s.value for s in got] != [value / 10_000] * 2:
                wrong.append(got)

    threads = [threading.Thread(target=ask, args=(account,)) for account in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_unknown_tasks_and_closed_pools_are_errors_of_the_caller(pool: ScorerPool) -> None:
    with pytest.raises(LocalProtocolError, match="no task 'other'"):
        pool.score("other", ROW, [("42", True)], account=b"a")


def test_a_scorer_that_cannot_be_built_is_named() -> None:
    with pytest.raises(ConfigError, match=r"task 'broken'.*nonsense"):
        ScorerPool({"broken": TaskScoring("nonsense", Path("/nonexistent"))}, builder=BUILDER)
    with pytest.raises(ConfigError, match="task 'extra': a package is missing") as refused:
        ScorerPool({"extra": TaskScoring("not installed")}, builder=BUILDER)
    assert refused.value.remedy == "Run pip install extra."
    with pytest.raises(ConfigError, match="no_such_module"):
        ScorerPool(TASKS, builder="no_such_module")


@pytest.mark.parametrize(
    ("setting", "value"), [("workers", -1), ("workers", 257), ("limit_s", 0.2), ("limit_s", 61.0), ("memory_mb", 15)]
)
def test_settings_outside_their_range_are_refused(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=setting):
        PoolConfig(**{setting: value})


def test_the_number_of_workers_follows_the_cores() -> None:
    assert PoolConfig(workers=7).worker_count() == 7
    assert 2 <= PoolConfig().worker_count() <= 4
