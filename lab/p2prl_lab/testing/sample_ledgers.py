"""Signed sample ledgers: a writer that signs like a learner, and runs with honest, cheating and slow peers."""

from __future__ import annotations

import random
import sqlite3
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from p2prl.errors import P2PRLError
from p2prl.protocol import ledger_chain, limits
from p2prl.protocol.digests import Digest, digest
from p2prl.protocol.envelope import NO_RUN, body_of, envelope_digest, open_envelope, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.ledger_messages import (
    CheckOutcome,
    LedgerHead,
    Receipt,
    Receipts,
    ReceiptState,
    Verdict,
    VerdictCheck,
    VerdictChecks,
)
from p2prl.protocol.manifests import RunManifest, Sampling, TaskShare
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.wire_codec import Wire
from p2prl.scoreboard.ledger.known_run import open_run_manifest
from p2prl.scoreboard.ledger.ledger_sources import Snapshot
from p2prl.scoreboard.ledger.signed_head import Witness

START_S = 1_790_000_000.0
"""Start of every sample run, seconds since the epoch."""


def identity(name: str) -> Identity:
    """A key derived from a name."""
    return Identity.generate(digest("p2prl/test/identity", name.encode())[:16])


def group_name(number: int) -> bytes:
    """The digest of a group, derived from its number."""
    return digest("p2prl/test/group", number.to_bytes(8, "little"))


def manifest(**changes: Any) -> RunManifest:
    """The manifest of a plausible run."""
    plain = RunManifest(
        name="chain-of-sums",
        goal="Teach a small model to add up chains of numbers without mistakes",
        learner=identity("learner").public_key,
        created_ms=int(START_S * 1000),
        base_model="tiny-gpt 12M",
        parameters=12_000_000,
        layout=bytes(32),
        files=(),
        tokenizer=bytes(32),
        tasks=(TaskShare("chain4", 3.0), TaskShare("sums", 1.0)),
        sampling=Sampling(1.0, 64, 8),
        staleness_bound=64,
        publish_every=1,
        reward="success",
        dtype="float32",
        licence="Apache-2.0",
        content_policy="Arithmetic only.",
    )
    return msgspec.structs.replace(plain, **changes)


def receipt(number: int, peer: Identity, **changes: Any) -> Receipt:
    """A verified group of `peer`, 8 completions, 100 tokens, reward one half."""
    fields: dict[str, Any] = {
        "group": group_name(number),
        "peer": peer.public_key,
        "version": 0,
        "slot": number,
        "state": int(ReceiptState.VERIFIED),
        "reason": "",
        "tokens": 100,
        "completions": 8,
        "reward": 0.5,
    }
    return Receipt(**{**fields, **changes})


def verdict_on(judged: Receipt, *, passed: bool = True, **changes: Any) -> Verdict:
    """A validator's verdict on the group of a receipt."""
    fields: dict[str, Any] = {
        "group": judged.group,
        "peer": judged.peer,
        "version": judged.version,
        "passed": passed,
        "reason": "" if passed else "seed_mismatch",
        "tokens": judged.tokens,
        "mismatched": 0,
        "worst_margin": 0.0,
    }
    return Verdict(**{**fields, **changes})


@dataclass
class LedgerWriter:
    """Appends signed entries as a learner does."""

    manifest: RunManifest = field(default_factory=manifest)
    now: float = START_S

    def __post_init__(self) -> None:
        self.learner = identity("learner")
        self.manifest_raw = seal(self.learner, self.manifest, run=NO_RUN, now=self.now)
        self.run = envelope_digest(self.manifest_raw)
        self.entries: list[bytes] = []
        self.envelopes: list[bytes] = []
        self.head: Digest = ledger_chain.GENESIS

    def add(self, author: Identity, body: Wire) -> bytes:
        """Seal and append; returns the entry."""
        return self.append(seal(author, body, run=self.run, now=self.now))

    def append(self, envelope: bytes) -> bytes:
        """Append a sealed envelope; returns the entry."""
        raw, self.head = ledger_chain.append(len(self.entries), self.head, envelope)
        self.entries.append(raw)
        self.envelopes.append(envelope)
        return raw

    def receipts(self, step: int, *receipts: Receipt) -> bytes:
        """The learner's receipts of a step."""
        return self.add(self.learner, Receipts(step, receipts))

    def verdict(
        self, validator: Identity, judged: Receipt, outcome: CheckOutcome = CheckOutcome.AGREED, **changes: Any
    ) -> None:
        """A validator's verdict on the group of a receipt, and the learner's check of it."""
        self.add(validator, verdict_on(judged, **changes))
        self.check(validator, judged, outcome)

    def check(self, validator: Identity, judged: Receipt, outcome: CheckOutcome, *, tokens: int | None = None) -> None:
        """The learner's check of a verdict."""
        most = judged.tokens if tokens is None else tokens
        check = VerdictCheck(validator.public_key, judged.group, int(outcome), most)
        self.add(self.learner, VerdictChecks((check,)))

    def signed_head(self, *, finished: bool = False, height: int | None = None, head: bytes | None = None) -> bytes:
        """The learner's signed head of the ledger, or of another height and digest."""
        at = len(self.entries) if height is None else height
        body = LedgerHead(at, self.head if head is None else head, 0, finished)
        return seal(self.learner, body, run=self.run, now=self.now)

    def write_journal(self, path: Path, *, versions: int = 0, signed_head: bytes = b"") -> sqlite3.Connection:
        """Write a learner's journal with these entries, in the tables a board reads. Returns its connection."""
        db = sqlite3.connect(path, isolation_level=None)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("CREATE TABLE policies (version INTEGER PRIMARY KEY, step INTEGER NOT NULL, raw BLOB NOT NULL)")
        db.execute("CREATE TABLE ledger (height INTEGER PRIMARY KEY, raw BLOB NOT NULL)")
        if signed_head:
            db.execute("CREATE TABLE ledger_head (only_row INTEGER PRIMARY KEY, raw BLOB NOT NULL)")
            db.execute("INSERT INTO ledger_head VALUES (0, ?)", (signed_head,))
        db.execute("CREATE TABLE batches (step INTEGER PRIMARY KEY, digests BLOB NOT NULL)")
        db.executemany("INSERT INTO batches VALUES (?, x'00')", [(v,) for v in range(versions)])
        db.executemany("INSERT INTO ledger VALUES (?, ?)", enumerate(self.entries))
        db.executemany("INSERT INTO policies VALUES (?, ?, x'00')", [(v, v) for v in range(versions)])
        return db


def sample_run(seed: int, *, steps: int = 60, peers: int = 12, goal: str | None = None) -> LedgerWriter:
    """A run of `peers` volunteers, one of them a cheat and one too slow, and two validators."""
    rng = random.Random(seed)
    writer = LedgerWriter(manifest() if goal is None else manifest(goal=goal))
    volunteers = [identity(f"volunteer {i}") for i in range(peers)]
    validators = [identity("validator a"), identity("validator b")]
    number = 0
    for step in range(steps):
        writer.now += 20 + rng.random() * 5
        learned = 0.05 + 0.75 * (1 - 2.718 ** (-step / (0.35 * steps)))
        rows = []
        for _ in range(10):
            index = min(int(rng.expovariate(0.35)), peers - 1)
            row = receipt(
                number,
                volunteers[index],
                version=max(0, step - rng.choice((0, 0, 1, 1, 2, 3))),
                tokens=rng.randint(120, 480),
                reward=min(1.0, max(0.0, round((learned + rng.gauss(0, 0.12)) * 8) / 8)),
            )
            if index == 4 and rng.random() < 0.7:
                reason = rng.choice(("seed_mismatch", "duplicate_slot"))
                row = msgspec.structs.replace(
                    row, state=int(ReceiptState.REJECTED), reason=reason, tokens=0, completions=0, reward=0.0
                )
            elif index == 6 and rng.random() < 0.5:
                row = msgspec.structs.replace(
                    row, state=int(ReceiptState.EXPIRED), reason="too_stale", tokens=0, completions=0, reward=0.0
                )
            rows.append(row)
            number += 1
        writer.receipts(step, *rows)
        for validator in validators:
            judged = rng.choice(rows)
            writer.verdict(validator, judged, passed=judged.state == ReceiptState.VERIFIED)
    return writer


def crowd(people: int, *, steps: int = 0, reward_goal: float = 0.9) -> LedgerWriter:
    """A run with many contributors who join one after the other, a few very busy, and every kind of rejection."""
    rng = random.Random(people)
    writer = LedgerWriter()
    validators = [identity(f"validator {i}") for i in range(4)]
    keys = [digest("p2prl/test/crowd", index.to_bytes(8, "little")) for index in range(people)]
    rates = [rng.paretovariate(1.1) for _ in keys]
    steps = steps or max(2, people // 100)
    number = 0
    for step in range(steps):
        writer.now += 20 + 10 * rng.random()
        learned = 0.08 + reward_goal * (1 - 2.718 ** (-3 * step / steps))
        newcomers = keys[len(keys) * step // steps : len(keys) * (step + 1) // steps]
        rows = []
        joined = len(keys) * (step + 1) // steps
        for key in [*newcomers, *rng.choices(keys[:joined], rates[:joined], k=100)]:
            row = msgspec.structs.replace(
                receipt(number, validators[0]),
                peer=key,
                version=max(0, step - rng.choice((0, 0, 0, 1, 1, 2, 3))),
                tokens=rng.randint(700, 9_000),
                reward=min(1.0, max(0.0, round((learned + rng.gauss(0, 0.2)) * 8) / 8)),
            )
            if rng.random() < 0.03:
                reason = rng.choice(list(RejectionReason))
                state = ReceiptState.EXPIRED if reason is RejectionReason.TOO_STALE else ReceiptState.REJECTED
                row = msgspec.structs.replace(
                    row, state=int(state), reason=reason.value, tokens=0, completions=0, reward=0.0
                )
            rows.append(row)
            number += 1
        for first in range(0, len(rows), limits.MAX_RECEIPTS_PER_MESSAGE):
            writer.receipts(step, *rows[first : first + limits.MAX_RECEIPTS_PER_MESSAGE])
        for validator in validators:
            judged = rng.choice(rows)
            writer.verdict(validator, judged, passed=judged.state == ReceiptState.VERIFIED)
    return writer


class MemorySource:
    """A ledger source over a writer's entries, in memory."""

    def __init__(self, writer: LedgerWriter, *, signed_head: bytes = b"", known: bool = True, **changes: Any) -> None:
        self.writer = writer
        self._signed_head = signed_head
        self._signed_height = body_of(open_envelope(signed_head, now=None), LedgerHead).height if signed_head else None
        self._known = known
        self._changes = changes
        self._run = open_run_manifest(writer.manifest_raw)
        self._board = self._run.new_fold()

    def snapshot(self) -> Snapshot:
        run, board = self._run, self._board
        for raw in self.writer.entries[board.height :]:
            board.follow(raw)
        plain = Snapshot(
            run=run if self._known else None,
            board=board.state() if self._known else None,
            policy_version=None,
            learner_step=None,
            connected_peers={"learner": 1, "volunteer": 3},
            signed_height=self._signed_height,
            signed_head=self._signed_head,
            finished=False,
            learner_offline_since=None,
            incident=None,
            join_link="",
            total_steps=None,
        )
        return replace(plain, **self._changes)

    def entries(self, from_height: int, limit: int) -> list[bytes]:
        return self.writer.entries[from_height : from_height + limit]

    def witnesses(self) -> tuple[Witness, ...]:
        return ()

    def failure(self) -> P2PRLError | None:
        return None
