"""Ledger queries, ledger heads, and repeated rollout groups."""

from __future__ import annotations

from p2prl.protocol import frames, limits, wire_version
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_messages import LedgerHead, StorageReceipt
from p2prl.protocol.link_messages import Hello, LedgerPage, LedgerQuery, Padding
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.sim.machines import identity_of
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl.swarm import signals
from p2prl.swarm.events import Event, PeerBanned
from p2prl_lab.testing.protocol_swarm import Member, ProtocolSwarm, group_of
from tests.sim.node_swarm import events_of, hello_of, swarm


def test_a_ledger_page_fills_one_control_frame() -> None:
    made = swarm()
    board = made.add("board", Role.BOARD, bootstrap=("learner",))
    learner = made.members["learner"]
    node = made.network.node(learner.peer)
    node.order(signals.SetLedgerHeight(40), made.network.now)
    made.network.run_for(40)
    made.network.node(board.peer).order(signals.AskLedger(0), made.network.now)
    made.network.wake(board.peer)
    made.network.run_for(1)
    assert events_of(learner, signals.LedgerWanted) == [signals.LedgerWanted(board.peer, 0)]
    entries = tuple(bytes((i,)) * 20_000 for i in range(40))
    # To the learner the board is a stranger that has paid for a few small entries.
    node.receive(frames.pack(Padding(bytes(limits.MAX_CONTROL_FRAME_BYTES // 8))), board.peer, made.network.now)
    node.order(signals.SendLedger(board.peer, 0, entries), made.network.now)
    made.network.wake(learner.peer)
    made.network.run_for(1)
    (page,) = events_of(board, signals.LedgerArrived)
    assert isinstance(page, signals.LedgerArrived)
    assert page.entries == entries[: len(page.entries)]
    assert 10 <= len(page.entries) <= 13, "as many as one control frame holds"
    assert len(frames.pack(LedgerPage(0, page.entries))) <= limits.MAX_CONTROL_FRAME_BYTES


def test_ledger_queries_are_rate_limited() -> None:
    made = swarm(volunteers=1)
    learner = made.members["learner"]
    made.network.node(learner.peer).order(signals.SetLedgerHeight(10), made.network.now)
    made.network.run_for(5)
    glutton, modest = identity_of("glutton").peer_id, identity_of("modest").peer_id
    for asker in (glutton, modest):
        made.network.inject(asker, learner.peer, hello_of(made.run, now=made.network.now))
    begun = made.network.now
    for _ in range(20):
        made.network.inject(glutton, learner.peer, frames.pack(LedgerQuery(0)) * 10)
        made.network.run_for(0.5)
    made.network.inject(modest, learner.peer, frames.pack(LedgerQuery(0)))
    made.network.run_for(1)
    wanted = [
        event.peer for event in events_of(learner, signals.LedgerWanted) if isinstance(event, signals.LedgerWanted)
    ]
    elapsed_s = made.network.now - begun
    assert 60 <= wanted.count(glutton) <= 16 + limits.MAX_LEDGER_QUERIES_PER_S * elapsed_s
    assert wanted.count(modest) == 1
    assert not events_of(learner, PeerBanned), "asking too often is no fault"


def test_a_false_ledger_height_does_not_attract_all_queries() -> None:
    made = swarm(volunteers=1)
    board = made.add("board", Role.BOARD, bootstrap=("learner",))
    made.network.node(made.members["learner"].peer).order(signals.SetLedgerHeight(5), made.network.now)
    made.network.run_for(40)
    boaster = identity_of("boaster").peer_id
    claim = frames.pack(
        Hello(wire_version.WIRE_VERSION, made.run, int(Role.BOARD), int(made.network.now * 1000), -1, 1 << 60)
    )
    made.network.inject(boaster, board.peer, claim)
    made.network.run_for(1)
    for _ in range(12):
        made.network.node(board.peer).order(signals.AskLedger(0), made.network.now)
        made.network.wake(board.peer)
        made.network.run_for(1)
    assert events_of(made.members["learner"], signals.LedgerWanted)


def receipts_of(member: Member) -> list[bytes]:
    return [event.opened.raw for event in member.arrived() if isinstance(event.opened.body, StorageReceipt)]


def publish_as(made: ProtocolSwarm, member: Member, raw: bytes) -> None:
    made.network.node(member.peer).publish(raw, made.network.now)
    made.network.wake(member.peer)
    made.network.run_for(2)


def test_a_repeated_group_is_answered_with_its_receipt_and_costs_the_learner_nothing() -> None:
    made = swarm(volunteers=1)
    made.network.run_for(5)
    volunteer, learner = made.members["v0"], made.members["learner"]
    raw = seal(volunteer.identity, group_of(1), run=made.run, now=made.network.now)
    publish_as(made, volunteer, raw)
    (first,) = receipts_of(volunteer)
    made.network.crash(volunteer.peer)
    made.network.restart(volunteer.peer)
    made.network.connect(volunteer.peer, learner.peer)
    made.network.run_for(20)
    publish_as(made, volunteer, raw)
    assert [event.opened.digest for event in learner.arrived()] == [envelope_digest(raw)]
    assert isinstance(learner.arrived()[0].opened.body, RolloutGroup)
    assert receipts_of(volunteer) == [first, first]


def test_a_repeated_group_without_a_receipt_reaches_the_learner_again() -> None:
    class Forgetful(ProtocolSwarm):
        """Its learner stores nothing."""

        def on_event(self, member: Member, event: Event) -> None:
            member.events.append(event)

    made = Forgetful(VirtualNetwork(1))
    made.add("learner", Role.LEARNER)
    volunteer = made.add("v0", bootstrap=("learner",))
    made.network.run_for(5)
    raw = seal(volunteer.identity, group_of(1), run=made.run, now=made.network.now)
    for _ in range(2):
        publish_as(made, volunteer, raw)
    arrived = made.members["learner"].arrived()
    assert [event.opened.digest for event in arrived] == [envelope_digest(raw)] * 2


def test_a_ledger_head_reaches_the_scoreboard() -> None:
    made = swarm(volunteers=1)
    board = made.add("board", Role.BOARD, bootstrap=("v0",), dialable=False)
    made.network.run_for(5)
    learner = made.members["learner"]
    head = seal(learner.identity, LedgerHead(1, bytes(32), 1, False), run=made.run, now=made.network.now)
    made.network.node(learner.peer).publish(head, made.network.now)
    made.network.wake(learner.peer)
    made.network.run_for(5)
    assert [event.opened.raw for event in board.arrived()] == [head]
