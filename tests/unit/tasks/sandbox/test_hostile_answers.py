"""Every hostile answer against a built-in scorer and against one that executes answers: nothing escapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2prl.tasks.sandbox.confinement import LANDLOCK, SECCOMP
from p2prl.tasks.sandbox.overruns import SHORTEST_LIMIT_S
from p2prl.tasks.sandbox.pool import PoolConfig, ScorerPool, TaskScoring
from p2prl.testing.hostile_answers import Kind
from p2prl.testing.sandbox_attack import ROW, Attack, attack, processes_of_session

EVALUATING = {"evaluating": TaskScoring("evaluating"), "exact": TaskScoring("exact")}


@pytest.fixture
def attacked(tmp_path: Path) -> Iterator[Attack]:
    with attack(tmp_path) as made:
        yield made


def test_the_corpus_is_large_and_has_every_kind(attacked: Attack) -> None:
    kinds = Counter(answer.kind for answer in attacked.answers)
    assert sum(kinds.values()) >= 200
    assert min(kinds[kind] for kind in Kind) >= 80


def test_nothing_escapes_from_a_scorer_that_executes_answers(attacked: Attack) -> None:
    config = PoolConfig(workers=3, limit_s=SHORTEST_LIMIT_S, memory_mb=256)
    with ScorerPool(EVALUATING, config, builder="p2prl.testing.sandbox_scorers") as pool:
        if not {LANDLOCK, SECCOMP} <= set(pool.protection.layers):
            pytest.skip(f"this system protects with: {pool.protection}")
        outcomes = attacked.run(pool, "evaluating", together=True)
        assert attacked.escapes(outcomes) == []
        assert [o.answer.text for o in outcomes if o.answer.kind is Kind.TEXT and o.scored.value] == []
        for task, answer in (("exact", "42"), ("evaluating", "result = '42'")):
            assert [s.value for s in pool.score(task, ROW, [(answer, True)], account=b"honest")] == [1.0]
        session = pool.fork_server_pid
    assert processes_of_session(session) == []
