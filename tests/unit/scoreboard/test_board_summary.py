"""Summary JSON against a committed document: a changed key would contradict docs/leaderboard.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from p2prl.scoreboard.summary import summary
from p2prl_lab.testing.sample_ledgers import LedgerWriter, MemorySource, identity, receipt

GOLDEN = Path(__file__).with_name("summary_golden.json")
GUIDE = Path(__file__).parents[3] / "docs" / "leaderboard.md"


def small_run() -> MemorySource:
    writer = LedgerWriter()
    ann, bob = identity("ann"), identity("bob")
    rows = [
        receipt(0, ann, reward=0.25),
        receipt(1, ann, reward=0.75, version=1, tokens=60),
        receipt(2, bob, state=3, reason="seed_mismatch", tokens=0, completions=0, reward=0.0),
        receipt(3, bob, state=4, reason="too_stale", tokens=0, completions=0, reward=0.0),
        receipt(4, bob, state=2, version=1),
    ]
    writer.now += 10
    writer.receipts(0, *rows[:3])
    writer.verdict(identity("validator a"), rows[0])
    writer.now += 10
    writer.receipts(1, *rows[3:])
    return MemorySource(writer, total_steps=10, policy_version=2, learner_step=2, join_link="p2prl://x@y")


def test_the_summary_is_the_committed_one() -> None:
    source = small_run()
    document = json.loads(json.dumps(summary(source), allow_nan=False))
    # Digests depend on the wire bytes, which have their own golden vectors.
    assert document["run"].pop("run_id") == document["run"]["ledger"].pop("run_id") == source.writer.run.hex()
    assert document["run"]["ledger"].pop("head") == source.writer.head.hex()
    assert document == json.loads(GOLDEN.read_text())


def test_every_key_of_the_summary_is_explained() -> None:
    explained = set(re.findall(r"`([a-z_0-9]+)`", GUIDE.read_text()))
    missing = {key for key in _keys(summary(small_run())) if key not in explained}
    assert not missing


def _keys(value: Any) -> set[str]:
    maps = ("rejected_by_reason", "expired_by_reason", "neighbours", "ignored_lines")
    if isinstance(value, dict):
        inner = [_keys(v) for k, v in value.items() if k not in maps]
        return set(value).union(*inner) if inner else set(value)
    if isinstance(value, list):
        return set().union(*(_keys(v) for v in value))
    return set()
