"""What makes a kept result stale: changed code, and nothing else."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from p2prl.bench.results import code_digest as digests
from p2prl.bench.results.code_digest import code_digest
from p2prl.bench.staleness.methods import method_digest
from p2prl.bench.staleness.results import ResultFile, Setting
from p2prl.bench.staleness.stale_training import SeedResult, TrainingPlan

LEAF = '"""A leaf."""\n\ndef twice(x):\n    """Doubles."""\n    return 2 * x  # plainly\n'


@pytest.fixture
def digest_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """A function that writes a package of two modules, the first importing the second, and digests the first."""
    package = tmp_path / "counted_code"
    package.mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(digests, "_COUNTED", ("counted_code.",))
    (package / "__init__.py").write_text("")
    (package / "root.py").write_text("from counted_code import leaf\n")

    def digest(leaf: str, decided: str = "") -> str:
        (package / "leaf.py").write_text(leaf)
        for cached in (digests._closure, digests._program, digests._source):
            cached.cache_clear()
        importlib.invalidate_caches()
        return code_digest("counted_code.root", decided=decided)

    yield digest
    for name in [name for name in sys.modules if name.startswith("counted_code")]:
        del sys.modules[name]


def test_code_that_is_imported_counts_and_its_comments_do_not(digest_of) -> None:  # type: ignore[no-untyped-def]
    first = digest_of(LEAF)
    assert digest_of(LEAF.replace("Doubles", "Adds to itself").replace("  # plainly", "")) == first
    assert digest_of(LEAF.replace("return 2", "\n    return 2")) == first
    assert digest_of(LEAF.replace("2 * x", "2.0001 * x")) != first
    assert digest_of(LEAF, decided="cap=2") != first
    assert digest_of(LEAF) == first


def test_methods_differ_by_loss_option_and_guard_and_tasks_by_their_lengths() -> None:
    texts = ("grpo", "gex", "gepo_t", "gepo_t:cap=1.5", "gepo_t+brake", "asympo")
    assert len({method_digest(text, "chain4") for text in texts}) == len(texts)
    assert method_digest("gepo_t:cap=2", "chain4") == method_digest("gepo_t", "chain4")
    assert method_digest("dr_grpo", "chain4") != method_digest("dr_grpo", "walk12")


def test_a_result_of_other_code_is_not_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, seeds = TrainingPlan(), range(1)
    done = SeedResult(seed=0, curve=((0, 0.1),) * 3, grad_norm_max=1, weight_max=1, ess_min=1, kl_mean=0, kl_max=0)
    ResultFile(tmp_path / "r.jsonl").add(Setting.of("chain4", "gex", "const:8", plan), [done])
    assert ResultFile(tmp_path / "r.jsonl").missing(Setting.of("chain4", "gex", "const:8", plan), seeds) == []
    monkeypatch.setattr("p2prl.bench.staleness.results.method_digest", lambda *_: "0123456789abcdef")
    changed = ResultFile(tmp_path / "r.jsonl")
    assert changed.missing(Setting.of("chain4", "gex", "const:8", plan), seeds) == [0]
    assert changed.of(Setting.of("chain4", "gex", "const:8", plan), seeds) == []
