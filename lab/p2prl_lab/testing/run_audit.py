"""Independent audit of a finished run: its journal, spools, ledger and weights must agree.

The learner drops groups it has trained on. `record_everything` puts triggers into its journal before the first start,
so that every group's bytes and every change of state stay readable, written in the transactions that changed them. The
audit reads only files, and shares with the learner only the wire format and the trainer's arithmetic.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from p2prl.config.new_run import RunFolder, open_run
from p2prl.learner.journal.journal import Journal
from p2prl.learner.training.checkpoints import complete_checkpoints
from p2prl.learner.training.memory_config import weight_dtype
from p2prl.learner.training.training_group import TrainingGroup
from p2prl.models.base_model.pretrained import load_pretrained
from p2prl.models.weights.layout import flatten, layout_of, weights_digest
from p2prl.protocol.envelope import body_of, envelope_digest, open_envelope
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_chain import GENESIS, LedgerEntry, entry_digest
from p2prl.protocol.ledger_messages import Receipt, Receipts, ReceiptState
from p2prl.protocol.manifests import PolicyManifest
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.protocol.signed_group import read_group
from p2prl_lab.testing.swarm_processes import rows
from p2prl_lab.testing.trainer_by_plan import trainer_by_plan

_TRIGGERS = """
CREATE TABLE witness_groups (digest BLOB PRIMARY KEY, raw BLOB, behavior BLOB, rewards BLOB, body BLOB);
CREATE TABLE witness_states (digest BLOB, old TEXT, new TEXT);
CREATE TRIGGER witness_forgotten BEFORE UPDATE OF raw ON groups
    WHEN OLD.state = 'used' AND OLD.raw IS NOT NULL AND NEW.raw IS NULL
    BEGIN INSERT INTO witness_groups VALUES (OLD.digest, OLD.raw, OLD.behavior, OLD.rewards,
        (SELECT body FROM group_bodies WHERE digest = OLD.digest)); END;
CREATE TRIGGER witness_arrival AFTER INSERT ON groups
    BEGIN INSERT INTO witness_states VALUES (NEW.digest, '', NEW.state); END;
CREATE TRIGGER witness_state AFTER UPDATE OF state ON groups
    BEGIN INSERT INTO witness_states VALUES (NEW.digest, OLD.state, NEW.state); END;
"""

_LEGAL_MOVES = {
    ("", "stored"),
    ("stored", "verified"),
    ("stored", "rejected"),
    ("stored", "expired"),
    ("verified", "used"),
    ("verified", "unused"),
}


@dataclass(frozen=True, slots=True)
class RunAudit:
    """Counts of an audited run. A record: every field is one figure of the report."""

    updates: int
    versions: int
    groups: int
    verified: int
    expired: int
    rejected: int
    spooled: int
    policies_reproduced: int
    receipts: dict[bytes, tuple[int, Receipt]]
    """(learner step, receipt) by group digest."""


def record_everything(run: Path) -> None:
    """Record a run from before its first start."""
    journal = run / "journal.db"
    assert not journal.exists()
    Journal(journal).close()
    connection = sqlite3.connect(journal)
    connection.executescript(_TRIGGERS)
    connection.close()


def recorded_steps(run: Path) -> int:
    """Updates begun so far: the step at which a restarted learner must resume."""
    return int(rows(run / "journal.db", "SELECT COALESCE(MAX(step) + 1, 0) FROM batches")[0][0])


def audit_run(run: Path, spool_files: list[Path], *, has_ended: bool = True) -> RunAudit:
    """Check every guarantee on a stopped run. Raises an AssertionError that describes the contradiction.

    Groups may wait for their check only if the run was stopped before its end.
    """
    folder = open_run(run)
    receipts = _ledger(folder)
    _states(run, receipts, has_ended=has_ended)
    batches = _batches(run)
    manifests = _policies(folder)
    spooled = _spools(run, spool_files, receipts)
    _metrics(run, updates=len(batches), versions=len(manifests))
    reproduced = _replay(folder, batches, manifests)
    states = Counter(ReceiptState(receipt.state) for _, receipt in receipts.values())
    return RunAudit(
        updates=len(batches),
        versions=len(manifests),
        groups=len(receipts),
        verified=states[ReceiptState.VERIFIED],
        expired=states[ReceiptState.EXPIRED],
        rejected=states[ReceiptState.REJECTED],
        spooled=spooled,
        policies_reproduced=reproduced,
        receipts=receipts,
    )


def _ledger(folder: RunFolder) -> dict[bytes, tuple[int, Receipt]]:
    """Receipts of a ledger, checked: an unbroken chain, one receipt per group, one credit per slot."""
    found: dict[bytes, tuple[int, Receipt]] = {}
    credited: Counter[tuple[bytes, int]] = Counter()
    head = GENESIS
    entries = rows(folder.paths.journal, "SELECT height, raw FROM ledger ORDER BY height")
    for expected, (height, raw) in enumerate(entries):
        entry = msgspec.msgpack.decode(raw, type=LedgerEntry)
        assert (height, entry.height, entry.previous) == (expected, expected, head), f"ledger broken at {expected}"
        head = entry_digest(raw)
        opened = open_envelope(entry.envelope, now=None)
        if opened.kind is not Kind.RECEIPTS:
            continue
        assert opened.author == folder.manifest.learner
        body = body_of(opened, Receipts)
        for receipt in body.receipts:
            assert receipt.group not in found, f"two receipts for group {receipt.group.hex()[:8]}"
            found[receipt.group] = body.step, receipt
            credited[receipt.peer, receipt.slot] += receipt.state == ReceiptState.VERIFIED
    twice = [key for key, count in credited.items() if count > 1]
    assert not twice, f"slots credited twice: {twice}"
    return found


def _states(run: Path, receipts: dict[bytes, tuple[int, Receipt]], *, has_ended: bool) -> None:
    """Check that each group made only legal transitions, each once, and that ledger and journal agree on its state."""
    moves = rows(run / "journal.db", "SELECT digest, old, new FROM witness_states")
    illegal = {(old, new) for _, old, new in moves} - _LEGAL_MOVES
    assert not illegal, illegal
    repeated = [move for move, count in Counter(moves).items() if count > 1]
    assert not repeated, repeated
    journal = dict(rows(run / "journal.db", "SELECT digest, state FROM groups"))
    waiting = {digest for digest, state in journal.items() if state == "stored"}
    assert not (waiting and has_ended), f"{len(waiting)} groups were stored and never resolved"
    assert set(journal) - waiting == set(receipts)
    names = {
        ReceiptState.VERIFIED: {"verified", "used", "unused"},
        ReceiptState.REJECTED: {"rejected"},
        ReceiptState.EXPIRED: {"expired"},
    }
    for digest, (_, receipt) in receipts.items():
        assert journal[digest] in names[ReceiptState(receipt.state)], (journal[digest], receipt)


def _batches(run: Path) -> list[list[bytes]]:
    """Batches by step, checked to have no gap and no group twice."""
    found = rows(run / "journal.db", "SELECT step, digests FROM batches ORDER BY step")
    assert [step for step, _ in found] == list(range(len(found)))
    batches = [[raw[i : i + 32] for i in range(0, len(raw), 32)] for _, raw in found]
    uses = Counter(digest for batch in batches for digest in batch)
    assert max(uses.values()) == 1, "a group was trained on twice"
    used = dict(rows(run / "journal.db", "SELECT digest, used_step FROM groups WHERE state = 'used'"))
    assert used == {digest: step for step, batch in enumerate(batches) for digest in batch}
    return batches


def _policies(folder: RunFolder) -> list[PolicyManifest]:
    """Manifests by version, checked: one chain, one per version and step, and the only ones that groups reference."""
    found = rows(folder.paths.journal, "SELECT version, step, raw FROM policies ORDER BY version")
    manifests = [body_of(open_envelope(raw, now=None), PolicyManifest) for _, _, raw in found]
    assert [m.version for m in manifests] == [version for version, _, _ in found] == list(range(len(found)))
    steps = [m.step for m in manifests]
    assert steps == [step for _, step, _ in found]
    assert len(set(steps)) == len(steps)
    previous = b""
    for manifest, (_, _, raw) in zip(manifests, found, strict=True):
        assert manifest.previous == previous
        previous = envelope_digest(raw)
    names = {version: envelope_digest(raw) for version, _, raw in found}
    for group, _, _ in _kept(folder.directory).values():
        assert names[group.version] == group.policy, f"a second manifest of version {group.version} was used"
    return manifests


def _spools(run: Path, spool_files: list[Path], receipts: dict[bytes, tuple[int, Receipt]]) -> int:
    """Check that spools agree with the ledger and that delivered groups are in the journal. Returns the group count."""
    journal = {digest for (digest,) in rows(run / "journal.db", "SELECT digest FROM groups")}
    state_names = {
        ReceiptState.VERIFIED: "verified",
        ReceiptState.REJECTED: "rejected",
        ReceiptState.EXPIRED: "expired",
    }
    total = 0
    for spool in spool_files:
        slots = Counter(rows(spool, "SELECT slot FROM groups"))
        assert max(slots.values(), default=1) == 1
        for digest, state in rows(spool, "SELECT digest, state FROM groups"):
            total += 1
            if state != "generated":
                assert digest in journal, f"a group that is {state} in its spool is not in the journal"
            if state not in ("generated", "delivered"):
                assert state == state_names[ReceiptState(receipts[digest][1].state)]
    return total


def _metrics(run: Path, *, updates: int, versions: int) -> None:
    """Check that there is one line per update, even after replayed ones."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, updates + 1))
    assert all(0 <= line["version"] < versions for line in lines)


def _kept(run: Path) -> dict[bytes, tuple[RolloutGroup, bytes, bytes]]:
    """Every group that was trained on, with the log-probs and rewards of the learner."""
    used = (
        "SELECT g.digest, g.raw, g.behavior, g.rewards, b.body FROM groups AS g"
        " LEFT JOIN group_bodies AS b ON b.digest = g.digest WHERE g.state = 'used' AND g.raw IS NOT NULL"
    )
    witnessed = "SELECT digest, raw, behavior, rewards, body FROM witness_groups"
    found = rows(run / "journal.db", f"{used} UNION ALL {witnessed}")
    return {
        digest: (read_group(raw, body or b"").group, behavior, rewards)
        for digest, raw, behavior, rewards, body in found
    }


def _replay(folder: RunFolder, batches: list[list[bytes]], manifests: list[PolicyManifest]) -> int:
    """Train again from the initial weights without interruption, and reproduce every published policy."""
    kept = _kept(folder.directory)
    published = {manifest.step: manifest for manifest in manifests}
    step_of_version = {manifest.version: manifest.step for manifest in manifests}
    reproduced = 0
    words = np.empty(0)
    newest = complete_checkpoints(folder.paths.checkpoints)[-1]
    held_in = weight_dtype(folder.settings.learner.memory.precision_on("cpu", folder.manifest.engine_dtype))
    saved = load_pretrained(str(newest), device=torch.device("cpu"), dtype=held_in).model
    layout = layout_of(saved, folder.manifest.dtype)
    with trainer_by_plan(folder) as run:
        for step in range(len(batches) + 1):
            if step in published:
                word = f"<u{layout.size_bytes // layout.parameters}"
                fresh = np.frombuffer(run.trainer.engine.copy_weights(layout), dtype=word)
                words = _banded(fresh, words, folder.settings.learner.dead_band_ulp)
                state = weights_digest(words.tobytes())
                assert state == published[step].weights_digest, (
                    f"version {published[step].version} differs from the result of its batches"
                )
                reproduced += 1
            if step < len(batches):
                run.at(step).update([_group(kept[digest], step, step_of_version) for digest in batches[step]])
        assert flatten(saved, layout) == run.trainer.engine.copy_weights(layout), (
            "the checkpoint differs from the trained model"
        )
    return reproduced


def _banded(fresh: Any, published: Any, band_ulp: int) -> Any:
    """The published words: a new word if it left the band around the previous one, else the previous one."""
    if not len(published):
        return fresh
    sign = 1 << (8 * fresh.itemsize - 1)
    before, now = (np.where(w < sign, w, sign - 1 - w) for w in (published.astype(np.int64), fresh.astype(np.int64)))
    return np.where(abs(now - before) > band_ulp, fresh, published)


def _group(kept: tuple[RolloutGroup, bytes, bytes], step: int, step_of_version: dict[int, int]) -> TrainingGroup:
    group, behavior, rewards = kept
    completions = tuple(np.frombuffer(completion.tokens, dtype="<u4") for completion in group.completions)
    ends = np.cumsum([len(ids) for ids in completions])
    return TrainingGroup(
        prompt_ids=np.frombuffer(group.prompt, dtype="<u4"),
        completions=completions,
        behavior_logprobs=tuple(np.split(np.frombuffer(behavior, dtype="<f4"), ends[:-1])),
        rewards=np.frombuffer(rewards, dtype="<f4"),
        staleness=step - step_of_version[group.version],
    )


def settled_groups(run: Path) -> tuple[int, int]:
    """(groups verified, groups rejected) by the receipts of the ledger."""
    states = Counter(ReceiptState(receipt.state) for _, receipt in _ledger(open_run(run)).values())
    return states[ReceiptState.VERIFIED], states[ReceiptState.REJECTED]
