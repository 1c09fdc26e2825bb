"""Every hostile answer against each scorer, and against a researcher's that executes answers: nothing escapes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2prl.confinement.layers import LANDLOCK, SECCOMP
from p2prl.errors import ConfigError
from p2prl.tasks.sandbox.overrun_ledger import SHORTEST_LIMIT_S
from p2prl.tasks.sandbox.pool import PoolConfig, ScorerPool, TaskScoring
from p2prl.tasks.scorers.build import build_scorer
from p2prl.tasks.scorers.spec import Reward, Scoring, scoring_spec
from p2prl.tasks.scorers.spec_options import SCORER_OPTIONS, THIRD_PARTY
from p2prl_lab.testing.hostile_answers import Kind
from p2prl_lab.testing.hostile_scorer import hostile_scorer
from p2prl_lab.testing.sandbox_attack import ROW, Attack, attack, sandbox_processes

NEEDED = {
    "choice": {"column": "letter"},
    "format": {"pattern": "(a+)+b"},
    "function": {"function": "evaluate"},
    "json": {"column": "answer"},
    "regex": {"pattern": "([0-9]+)$"},
}
"""Options of scorers that need some."""


def spec_of(*scorers: str) -> str:
    return scoring_spec(Scoring(rewards=tuple(Reward(scorer=name, options=NEEDED.get(name, {})) for name in scorers)))


@pytest.fixture
def attacked(tmp_path: Path) -> Iterator[Attack]:
    folder = tmp_path / "key folder"
    folder.mkdir()
    with attack(folder) as made:
        yield made


def test_the_corpus_is_large_and_has_every_kind(attacked: Attack) -> None:
    kinds = Counter(answer.kind for answer in attacked.answers)
    assert sum(kinds.values()) >= 200
    assert min(kinds[kind] for kind in Kind) >= 80


def test_nothing_escapes_from_a_function_that_executes_answers(attacked: Attack, tmp_path: Path) -> None:
    tasks = {"evaluating": hostile_scorer(tmp_path)}
    with ScorerPool(tasks, PoolConfig(workers=3, limit_s=SHORTEST_LIMIT_S, memory_mb=256)) as pool:
        if not {LANDLOCK, SECCOMP} <= set(pool.protection.layers):
            pytest.skip(f"this system protects with: {pool.protection}")
        outcomes = attacked.run(pool, "evaluating", together=True)
        assert attacked.escapes(outcomes) == []
        assert [o.answer.text for o in outcomes if o.answer.kind is Kind.TEXT and o.scored.value] == []
        right = pool.score("evaluating", ROW, [("result = '42'", True)], account=b"honest")
        assert [scored.value for scored in right] == [1.0]
    assert sandbox_processes(os.getpid()) == []


def test_built_in_scorers_read_every_hostile_answer_in_time(attacked: Attack) -> None:
    built_in = [name for name in SCORER_OPTIONS if name not in THIRD_PARTY]
    installed = [name for name in built_in if _is_installed(spec_of(name))]
    assert {"exact", "contains", "number", "boxed", "hash", "choice"} <= set(installed)
    config = PoolConfig(limit_s=60)  # none comes near 2 s on a free processor; this one may be busy
    with ScorerPool({"all": TaskScoring(spec_of(*installed))}, config) as pool:
        outcomes = attacked.run(pool, "all", together=True)
        assert attacked.traces(outcomes) == []
        assert {o.scored.failure for o in outcomes} <= {"", "too long"}
        assert pool.statistics.overruns == 0


def _is_installed(spec: str) -> bool:
    try:
        build_scorer(spec, None)
    except ConfigError as error:
        return "pip install" not in error.remedy
    return True
