"""Everybody who reads the same receipts and checks computes the same standing, in whatever order they arrive."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.learner.intake.peer_standings import PeerStandings
from p2prl.protocol import frames, wire_version
from p2prl.protocol.digests import digest
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_messages import (
    CheckOutcome,
    Receipt,
    Receipts,
    ReceiptState,
    Verdict,
    VerdictCheck,
    VerdictChecks,
)
from p2prl.protocol.link_messages import Hello, Push
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.standing import HALF_LIFE_S, Standing
from p2prl.scoreboard.ledger.ledger_fold import LedgerFold
from p2prl.scoreboard.ledger.plain_chain import PlainChain
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of
from p2prl.swarm.gossip.verdict_gate import VerdictGate
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl_lab.sim.memory_blobs import MemoryBlobs
from p2prl_lab.testing.sample_ledgers import LedgerWriter

NOW = 1_800_000_000.0
LEARNER, SOURCE = identity_of("learner"), identity_of("source")
PEERS = [identity_of(f"peer {number}") for number in range(3)]
MANIFEST = seal(LEARNER, run_manifest_of(LEARNER), run=bytes(32), now=NOW)
RUN = envelope_digest(MANIFEST)

RECEIPTS = st.builds(
    lambda peer, state, reason: Receipt(bytes(32), peer.public_key, 0, 0, int(state), reason, 1, 1, 0.0),
    st.sampled_from(PEERS),
    st.sampled_from(ReceiptState),
    st.sampled_from(["", *RejectionReason]),
)
SIGNED = st.lists(st.tuples(st.floats(0.0, 86_400.0), st.lists(RECEIPTS, min_size=1, max_size=12)), max_size=12)
"""What a learner signs in a day: how long ago, and the receipts."""


class SetClock:
    """A clock that stands."""

    def now(self) -> float:
        return NOW


def expected(peer: Identity, signed: Sequence[tuple[float, list[Receipt]]]) -> tuple[float, float]:
    """Passed and failed as of `NOW`: the sums as the protocol states them."""
    bad = {"unknown_task", "wrong_prompt", "wrong_size", "bad_tokens", "seed_mismatch", "logprob_mismatch"}
    passed = failed = 0.0
    for age, receipts in signed:
        weight = 0.5 ** (age / HALF_LIFE_S)
        for each in receipts:
            if each.peer == peer.public_key:
                passed += weight * (each.state in (1, 2))
                failed += weight * (each.state == ReceiptState.REJECTED and each.reason in bad)
    return passed, failed


def at_node(role: Role, envelopes: Sequence[bytes]) -> dict[bytes, Standing]:
    """The standings of a node of this role that gets these envelopes in this order."""
    node = Node(identity_of("me"), RUN, MemoryBlobs(), random.Random(1), NodeConfig(role=role), NOW)
    node.begin(MANIFEST)
    hello = Hello(wire_version.WIRE_VERSION, RUN, int(Role.SEEDER), int(NOW * 1000), -1, 0)
    for message in (hello, *map(Push, envelopes)):
        node.receive(frames.pack(message), SOURCE.peer_id, NOW)
        node.commands(NOW)
    return {peer.public_key: node.connections.standings.of(peer.peer_id).after(NOW) for peer in PEERS}


@settings(max_examples=30)
@given(signed=SIGNED, order=st.randoms(use_true_random=False))
def test_the_same_receipts_in_any_order_give_the_same_standing_to_every_reader(
    signed: list[tuple[float, list[Receipt]]], order: random.Random
) -> None:
    signed.sort(key=lambda each: -each[0])
    learner = PeerStandings(SetClock())
    envelopes = []
    for step, (age, receipts) in enumerate(signed):
        learner.note(receipts, NOW - age)
        envelopes.append(seal(LEARNER, Receipts(step, tuple(receipts)), run=RUN, now=NOW - age))
    for role in (Role.VOLUNTEER, Role.VALIDATOR, Role.BOARD):
        order.shuffle(envelopes)
        seen = at_node(role, envelopes)
        for peer in PEERS:
            passed, failed = expected(peer, signed)
            here, there = seen[peer.public_key], learner.of(peer.public_key)
            for standing in (here, there):
                assert standing.passed == pytest.approx(passed, abs=1e-6)
                assert standing.failed == pytest.approx(failed, abs=1e-6)
            assert here.rank is there.rank or passed == pytest.approx(failed, abs=1e-6)


@given(
    checks=st.lists(
        st.tuples(
            st.sampled_from(PEERS), st.sampled_from([CheckOutcome.AGREED, CheckOutcome.FAILED, CheckOutcome.UNCLEAR])
        ),
        max_size=40,
    )
)
def test_node_mirror_and_board_know_the_same_validators(checks: list[tuple[Identity, CheckOutcome]]) -> None:
    writer = LedgerWriter()
    for number, (validator, outcome) in enumerate(checks):
        group = digest("g", number.to_bytes(4, "big"))
        writer.add(writer.learner, Receipts(0, (Receipt(group, bytes(32), 0, number, 1, "", 8, 1, 0.0),)))
        writer.add(validator, Verdict(group, bytes(32), 0, True, "", 8, 0, 0.0))
        writer.add(writer.learner, VerdictChecks((VerdictCheck(validator.public_key, group, int(outcome), 8),)))
    run, key = writer.run, writer.learner.public_key
    board = LedgerFold(run=run, learner=key, parameters=1)
    mirror = PlainChain(run=run, learner=key)
    gate = VerdictGate()
    for raw in writer.entries:
        board.follow(raw)
        gate.note(mirror.follow(raw))
    for peer in PEERS:
        known = board.knows(peer.public_key)
        assert mirror.knows(peer.public_key) is gate.is_known(peer.public_key, writer.now) is known
        mine = [outcome for each, outcome in checks if each is peer]
        if CheckOutcome.FAILED not in mine:
            assert known is (mine.count(CheckOutcome.AGREED) >= 8)
