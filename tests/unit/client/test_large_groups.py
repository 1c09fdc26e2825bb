"""Large groups at a volunteer: its spool, bodies supplied again, old spools, and groups that cannot be sent."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import msgspec
import pytest

from p2prl.client.delivery import Delivery
from p2prl.client.spool import Added, Spool, SpoolConfig
from p2prl.net.process import control
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import envelope_digest, open_envelope, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Kind, Role
from p2prl.protocol.rollout_group import Completion, RolloutGroup
from p2prl.protocol.signed_group import seal_group
from p2prl.swarm import signals
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl_lab.sim.memory_blobs import MemoryBlobs
from p2prl_lab.testing.protocol_swarm import group_of
from tests.unit.client.volunteer_rig import ME, InboxPort, VolunteerRig
from tests.unit.learner.small_run import NOW, SmallRun, identity

RAW, BODY = b"header", bytes(1_000)

OLD_SCHEMA = """
CREATE TABLE groups (digest BLOB PRIMARY KEY, version INTEGER NOT NULL, slot INTEGER NOT NULL, raw BLOB,
    state TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '', tokens INTEGER NOT NULL DEFAULT 0, reward REAL NOT NULL,
    created REAL NOT NULL, UNIQUE (version, slot));
CREATE INDEX waiting ON groups (state, created);
CREATE TABLE ledger_read (height INTEGER NOT NULL, head BLOB NOT NULL);
INSERT INTO ledger_read VALUES (0, zeroblob(32));
"""
"""Tables of spools made before groups had bodies."""


def large_group(slot: int) -> RolloutGroup:
    one = Completion(bytes(4 * 30_000), bytes(2 * 30_000), finished=False, reward=0.0)
    return msgspec.structs.replace(group_of(slot), completions=(one,) * 3)


def name(slot: int) -> bytes:
    return bytes([slot]) * 32


def add(spool: Spool, slot: int, *, body: bytes = BODY, now: float = NOW) -> Added:
    return spool.add(name(slot), RAW, version=0, slot=slot, tokens=1, reward=0.0, now=now, body=body)


def bodies(spool: Spool) -> int:
    return int(spool._db.execute("SELECT COUNT(*) FROM bodies").fetchone()[0])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool.db"


def test_a_body_stays_until_the_learner_has_the_group(path: Path) -> None:
    spool = Spool(path, SpoolConfig())
    assert add(spool, 0) is Added.STORED
    assert add(spool, 0, body=b"again") is Added.STORED, "repeated after a crash"
    spool.close()
    spool = Spool(path, SpoolConfig())
    assert spool.body(name(0)) == BODY
    assert spool.undelivered(9, created_before=NOW + 1) == [RAW]
    assert spool.body(name(1)) == b""
    spool.mark_stored([name(0)])
    assert spool.body(name(0)) == b""
    assert bodies(spool) == 0
    spool.close()


def test_bodies_count_against_the_spools_size_and_expire_with_their_group(path: Path) -> None:
    spool = Spool(path, SpoolConfig(max_bytes=2_500, max_age_s=100.0))
    for slot, age in enumerate((101.0, 50.0, 40.0, 30.0)):
        add(spool, slot, now=NOW - age)
    assert spool.expire(now=NOW) == 2
    assert spool.reasons() == {"too_late": 1, "spool_full": 1}
    assert bodies(spool) == 2
    assert spool.expire(now=NOW) == 0
    spool.close()


def test_a_group_given_up_is_expired_once_and_never_after_it_was_stored(path: Path) -> None:
    spool = Spool(path, SpoolConfig())
    add(spool, 0)
    add(spool, 1)
    spool.mark_stored([name(1)])
    assert spool.give_up(name(0), "not_sendable")
    assert not spool.give_up(name(0), "not_sendable")
    assert not spool.give_up(name(1), "not_sendable"), "the learner has it"
    assert not spool.give_up(name(2), "not_sendable")
    assert spool.counts() == {"expired": 1, "delivered": 1}
    assert spool.reasons() == {"not_sendable": 1}
    assert (bodies(spool), spool.slot_numbers().lowest) == (0, 2)
    spool.close()


def test_a_body_without_room_on_disk_is_given_up_alone(path: Path) -> None:
    spool = Spool(path, SpoolConfig())
    add(spool, 0)
    pages = spool._db.execute("PRAGMA page_count").fetchone()[0]
    spool._db.execute(f"PRAGMA max_page_count = {pages + 4}")
    assert add(spool, 1, body=bytes(10_000_000)) is Added.NO_ROOM
    assert spool.reasons() == {"disk_full": 1}
    assert add(spool, 2, body=b"") is Added.STORED
    assert spool.counts() == {"generated": 2, "expired": 1}
    assert spool.body(name(0)) == BODY
    spool.close()


class NodePort(InboxPort):
    """A port to a real node without links."""

    def __init__(self, small_run: SmallRun) -> None:
        super().__init__()
        config = NodeConfig(role=Role.VOLUNTEER)
        self.node = Node(ME, small_run.run, MemoryBlobs(), random.Random(1), config, NOW)
        self.node.begin(small_run.manifest_raw)
        self.held: list[bytes] = []

    def send(self, message: control.ToNetwork) -> None:
        super().send(message)
        if isinstance(message, signals.HoldGroup):
            self.held.append(message.digest)
        if not isinstance(message, control.ProcessOrder) and (answer := self.node.order(message, NOW)) is not None:
            self.inbox.append(answer)


def old_spool(path: Path, rows: list[bytes]) -> None:
    path.unlink()
    database = sqlite3.connect(path)
    database.executescript(OLD_SCHEMA)
    database.executemany(
        "INSERT INTO groups (digest, version, slot, raw, state, reward, created)"
        " VALUES (?, 0, ?, ?, 'generated', 0, ?)",
        [(envelope_digest(raw), slot, raw, NOW - 60 + slot) for slot, raw in enumerate(rows)],
    )
    database.commit()
    database.close()


def test_an_old_spool_delivers_and_its_unsendable_groups_stop_nothing(rig: VolunteerRig) -> None:
    run = rig.small_run.run
    good = [seal(ME, group_of(slot), run=run, now=NOW - 30) for slot in (0, 4)]
    one_envelope = seal(ME, large_group(1), run=run, now=NOW - 30)
    assert len(one_envelope) > limits.MAX_ENVELOPE_BYTES
    foreign = seal(identity("another"), group_of(2), run=run, now=NOW - 30)
    rows = [good[0], one_envelope, foreign, b"damaged", good[1]]
    rig.volunteer.close()
    old_spool(rig.spool, rows)
    rig.start()
    rig.port = NodePort(rig.small_run)
    rig.volunteer.attach(rig.port)
    rig.introduce()
    rig.offer(1)
    rig.turns(6)
    assert set(good) <= set(rig.port.published)
    assert len(rig.port.published) > len(rows), "it has sampled groups of its own"
    assert rig.progress[-1].reasons == {"not_sendable": 3}
    assert rig.progress[-1].groups["expired"] == 3
    assert sum("cannot be sent" in notice for notice in rig.notices) == 3
    before = len(rig.port.published)
    rig.clock.time += 10.0
    rig.turns(1)
    assert one_envelope not in rig.port.published[before:]


def test_a_group_larger_than_the_run_allows_is_given_up(rig: VolunteerRig) -> None:
    """The rig's run samples 2 completions of 8 tokens; these were sampled under other settings."""
    small_run = rig.small_run
    port = NodePort(small_run)
    raw, body = seal_group(ME, large_group(1), run=small_run.run, now=NOW)
    assert open_envelope(raw, now=NOW).kind is Kind.GROUP_HEADER
    port.send(signals.HoldGroup(envelope_digest(raw), body))
    port.send(signals.Publish(raw))
    (refused,) = port.inbox
    assert isinstance(refused, signals.PublishRefused)
    assert refused.digest == envelope_digest(raw)
    assert "sampling settings allow" in refused.reason


def test_large_groups_are_handed_over_with_their_body_and_again_when_wanted(path: Path) -> None:
    notices: list[str] = []
    spool = Spool(path, SpoolConfig())
    delivery = Delivery(
        spool,
        author=ME.public_key,
        run=Digest(bytes(32)),
        redeliver_s=5.0,
        on_judged=lambda *_: None,
        on_notice=notices.append,
    )
    raw, body = seal_group(Identity(bytes(16)), large_group(1), run=bytes(32), now=NOW)
    digest = envelope_digest(raw)
    spool.add(digest, raw, version=0, slot=1, tokens=1, reward=0.0, now=NOW, body=body)
    assert delivery.announce(raw, body) == [signals.HoldGroup(digest, body), signals.Publish(raw)]
    assert delivery.announce(b"small", b"") == [signals.Publish(b"small")]
    delivery.set_links({"learner": 1})
    assert signals.Publish(raw) in delivery.due(NOW + 60, run_known=True), "only the header is announced again"
    assert delivery.on_body_wanted(digest) == [signals.HoldGroup(digest, body)]
    spool.mark_stored([digest])
    assert delivery.on_body_wanted(digest) == []
    assert notices == [], "the learner has it: another peer asked too late"
    spool.add(name(7), b"header only", version=0, slot=7, tokens=1, reward=0.0, now=NOW)
    assert delivery.on_body_wanted(name(7)) == []
    assert spool.reasons() == {"not_sendable": 1}
    assert len(notices) == 1
    spool.close()
