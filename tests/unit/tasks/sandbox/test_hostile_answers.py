"""Every hostile answer against each scorer, and against a researcher's that executes answers: nothing escapes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2prl.errors import ConfigError
from p2prl.tasks.sandbox.confinement import LANDLOCK, SECCOMP
from p2prl.tasks.sandbox.overruns import SHORTEST_LIMIT_S
from p2prl.tasks.sandbox.pool import PoolConfig, ScorerPool, TaskScoring
from p2prl.tasks.scorers.build import build_scorer
from p2prl.tasks.scorers.spec import Reward, Scoring, scoring_spec
from p2prl.tasks.scorers.spec_options import SCORER_OPTIONS, THIRD_PARTY
from p2prl.testing.hostile_answers import Kind
from p2prl.testing.sandbox_attack import ROW, Attack, attack, sandbox_processes

NEEDED = {
    "regex": {"pattern": "([0-9]+)$"},
    "format": {"pattern": "(a+)+b"},
    "json": {"column": "answer"},
    "choice": {"column": "letter"},
}
"""Options of scorers that need some."""

EVALUATING = """
def evaluate(completions, answer, **columns):
    names = {"row": {"answer": answer[0]}}
    exec(completions[0], names)
    return [float(names.get("result") == answer[0])]
"""


def spec_of(scorer: str, **options: str) -> str:
    return scoring_spec(Scoring(rewards=(Reward(scorer=scorer, options=options),)))


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
    code = tmp_path / "rewards.py"
    code.write_text(EVALUATING)
    tasks = {"evaluating": TaskScoring(spec_of("function", function="evaluate"), code)}
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
    specs = {name: spec_of(name, **NEEDED.get(name, {})) for name in SCORER_OPTIONS if name not in THIRD_PARTY}
    built = [name for name in specs if _is_installed(specs[name])]
    assert {"exact", "contains", "number", "boxed", "hash", "choice"} <= set(built)
    with ScorerPool({name: TaskScoring(specs[name]) for name in built}) as pool:
        for name in built:
            outcomes = attacked.run(pool, name, together=True)
            assert attacked.traces(outcomes) == []
            assert {o.scored.failure for o in outcomes} <= {"", "too long"}, name
        assert pool.statistics.overruns == 0


def _is_installed(spec: str) -> bool:
    try:
        build_scorer(spec, None)
    except ConfigError as error:
        return "pip install" not in error.remedy
    return True
