"""Learner service: acknowledgements, receipts, ledger heads and pages, groups it turns away, and its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from p2prl.net.process import control
from p2prl.protocol import envelope, ledger_chain, wire_codec
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import seal
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_messages import LedgerHead, Receipts, StorageReceipt
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.swarm import signals
from tests.unit.learner.scripted_swarm import PEERS, UPDATES, ScriptedSwarm, fresh_runs, make_learner, run_through
from tests.unit.learner.small_run import NOW, SmallRun, altered, identity


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[[str], SmallRun]]:
    with fresh_runs(tmp_path) as make:
        yield make


def test_receipts_and_heads_are_consistent(fresh: Callable[[str], SmallRun]) -> None:
    small_run = fresh("run")
    _, swarm, _ = run_through(small_run, None)
    stored = {name for receipt in swarm.port.bodies(Kind.STORAGE_RECEIPT) for name in receipt.groups}
    verified = {r.group for body in swarm.port.bodies(Kind.RECEIPTS) for r in body.receipts if not r.reason}
    assert verified <= stored
    assert len(verified) >= UPDATES * 2
    heads = swarm.port.bodies(Kind.LEDGER_HEAD)
    assert [head.height for head in heads] == sorted(head.height for head in heads)
    assert not any(head.finished for head in heads)
    assert all(isinstance(head, LedgerHead) for head in heads)
    assert all(isinstance(body, Receipts | StorageReceipt) for body in swarm.port.bodies(Kind.RECEIPTS))


def test_ledger_page_follows_the_chain(fresh: Callable[[str], SmallRun]) -> None:
    small_run = fresh("run")
    swarm = ScriptedSwarm(small_run)
    swarm.finish()
    swarm.port.inbox.append(signals.LedgerWanted("peer", 0))
    swarm.turn()
    (page,) = swarm.port.pages
    head: Digest = ledger_chain.GENESIS
    for height, raw in enumerate(page):
        _, head = ledger_chain.follow(
            raw, height=height, head=head, run=small_run.run, learner=small_run.learner.public_key
        )
    newest = swarm.port.bodies(Kind.LEDGER_HEAD)[-1]
    assert (newest.height, newest.head) == (len(page), head)
    swarm.learner.close()


def test_repeated_group_is_acknowledged_again_and_counted_once(fresh: Callable[[str], SmallRun]) -> None:
    small_run = fresh("run")
    swarm = ScriptedSwarm(small_run)
    for _ in range(3):
        swarm.turn()
    (first, *_) = swarm.port.bodies(Kind.STORAGE_RECEIPT)
    before = len(swarm.port.bodies(Kind.STORAGE_RECEIPT))
    group = swarm.small_run.group(small_run.published.add(swarm.port.sent[0]), PEERS[0], 0)
    swarm.port.inbox.append(control.EnvelopeArrived(seal(PEERS[0], group, run=small_run.run, now=NOW)))
    swarm.turn()
    assert len(swarm.port.bodies(Kind.STORAGE_RECEIPT)) == before + 1
    mine = [r for body in swarm.port.bodies(Kind.RECEIPTS) for r in body.receipts if r.group in first.groups]
    assert len({r.group for r in mine}) == len(mine)
    swarm.learner.close()


def test_unknown_policies_and_floods_are_turned_away(
    fresh: Callable[[str], SmallRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2prl.protocol.limits.MAX_UNCHECKED_GROUPS_PER_PEER", 3)
    small_run = fresh("run")
    swarm = ScriptedSwarm(small_run)
    while not swarm.sampled:
        swarm.turn()
    policy = small_run.published.newest
    assert policy is not None
    honest = [small_run.group(policy, identity("flood"), slot) for slot in range(5)]
    alien = small_run.sealed(altered(honest[0], policy=b"x" * 32), identity("alien"))
    flood = [small_run.sealed(group, identity("flood")) for group in honest]
    swarm.port.inbox = [control.EnvelopeArrived(stored.raw) for stored in (alien, *flood)]
    swarm.port.sent.clear()
    swarm.learner._read(0.0)
    answered = [name for receipt in swarm.port.bodies(Kind.STORAGE_RECEIPT) for name in receipt.groups]
    assert answered == [stored.digest for stored in flood[:3]]
    assert swarm.learner._inbox._intake.turned_away == {
        "unknown_policy": 1,
        "too_many": 2,
        "too_fast": 0,
        "slot_gaps": 0,
        "excluded": 0,
    }
    swarm.learner.close()


def test_a_delivered_group_is_decoded_once(fresh: Callable[[str], SmallRun], monkeypatch: pytest.MonkeyPatch) -> None:
    small_run = fresh("run")
    decoded: Counter[bytes] = Counter()
    honest = wire_codec.decode

    def counting(raw: bytes, kind: Any, *, limit_bytes: int) -> Any:
        if kind is RolloutGroup:
            decoded[raw] += 1
        return honest(raw, kind, limit_bytes=limit_bytes)

    monkeypatch.setattr(envelope, "decode", counting)
    monkeypatch.setattr(envelope, "OPENINGS", envelope.Openings(1 << 20))  # nothing that another test opened
    swarm = ScriptedSwarm(small_run)
    swarm.finish()
    monkeypatch.undo()
    assert swarm.learner.counts() == {"used": 2 * UPDATES, "verified": 2}
    assert len(decoded) == 2 * UPDATES + 2
    assert set(decoded.values()) == {1}, "from arrival to training"
    swarm.learner.close()


@pytest.mark.parametrize(("updates", "target"), [(0, 0), (2, 2), (3, 3), (9, 9)])
def test_target_updates_is_where_the_run_ends(fresh: Callable[[str], SmallRun], updates: int, target: int) -> None:
    small_run = fresh("run")
    learner = make_learner(small_run, updates=updates)
    assert (learner.target_updates, learner.finished) == (target, False)
    learner.close()


def test_a_run_past_its_setting_ends_where_it_is(fresh: Callable[[str], SmallRun]) -> None:
    small_run = fresh("run")
    _, swarm, _ = run_through(small_run, None)
    learner = make_learner(small_run, updates=2)
    assert (learner.step, learner.target_updates, learner.finished) == (UPDATES, UPDATES, True)
    learner.close()
    assert swarm.learner.target_updates == UPDATES
