"""One node among others: joining by digest, newcomers, other runs, bans, clocks, ledgers and old policies."""

from __future__ import annotations

import statistics

import msgspec

from p2prl.protocol import frames, limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import envelope_digest, open_envelope, seal
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_messages import LedgerHead, StorageReceipt
from p2prl.protocol.link_messages import Chunk, Hello, LedgerPage, LedgerQuery, Offer, Push
from p2prl.protocol.manifests import PolicyManifest, RunFile, blob_of
from p2prl.protocol.peer_messages import Introduction
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.sim.broadcast_swarm import BroadcastSwarm, Member, group_of, identity_of, run_manifest_of
from p2prl.sim.memory_blobs import MemoryBlobs
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl.sim.virtual_time import START
from p2prl.swarm.events import (
    ClockOff,
    EnvelopeArrived,
    Equivocation,
    FileReady,
    LedgerArrived,
    LedgerWanted,
    PeerBanned,
    RunKnown,
    VersionAnnounced,
    VersionReady,
    WireMismatch,
)
from p2prl.swarm.node import Node, NodeConfig
from p2prl.swarm.peers.introductions import Introductions


def swarm(seed: int = 1, volunteers: int = 0) -> BroadcastSwarm:
    made = BroadcastSwarm(VirtualNetwork(seed))
    made.add("learner", Role.LEARNER)
    for index in range(volunteers):
        made.add(f"v{index}", bootstrap=("learner",))
    return made


def of(member: Member, kind: type) -> list[object]:
    return [event for event in member.events if isinstance(event, kind)]


def say_head(made: BroadcastSwarm, *, finished: bool) -> None:
    """The learner says how its ledger stands, and whether the run is over."""
    learner, now = made.members["learner"], made.network.now
    raw = seal(learner.identity, LedgerHead(1, bytes(32), 1, finished), run=made.run, now=now)
    made.network.node(learner.peer).publish(raw, now)
    made.network.wake(learner.peer)


def hello_of(run: bytes, *, wire: int = limits.WIRE_VERSION, now: float = START, role: Role = Role.VOLUNTEER) -> bytes:
    return frames.pack(Hello(wire, run, int(role), int(now * 1000), -1, 0))


def test_a_volunteer_joins_with_nothing_but_the_runs_digest() -> None:
    made = swarm()
    data = bytes(range(256)) * 200
    made.publish(0, data=data)
    joiner = made.add("joiner", bootstrap=("learner",))
    made.network.run_for(10)
    (known,) = of(joiner, RunKnown)
    assert isinstance(known, RunKnown)
    assert envelope_digest(known.raw) == made.run
    (ready,) = of(joiner, VersionReady)
    assert isinstance(ready, VersionReady)
    assert joiner.store.whole(ready.manifest.weights) == data


def test_a_false_run_manifest_is_not_believed() -> None:
    made = BroadcastSwarm(VirtualNetwork(1))
    impostor = identity_of("impostor")
    false = seal(impostor, run_manifest_of(impostor), run=bytes(32), now=START)
    joiner = made.add("joiner")
    made.network.inject(impostor.peer_id, joiner.peer, hello_of(made.run) + frames.pack(Push(false)))
    made.network.run_for(5)
    assert not of(joiner, RunKnown)


def test_run_files_arrive_by_name() -> None:
    text = b'{"model_type": "tiny"}' * 500
    ref = blob_of(text, 4096)
    learner = identity_of("learner")
    manifest = msgspec.structs.replace(run_manifest_of(learner), files=(RunFile("config.json", ref),))
    made = BroadcastSwarm(VirtualNetwork(2), manifest=manifest)
    store = MemoryBlobs()
    store.add(ref, text)
    made.add("learner", Role.LEARNER, store=store)
    joiner = made.add("joiner", bootstrap=("learner",))
    made.network.run_for(20)
    assert of(joiner, FileReady) == [FileReady("config.json", ref.root)]
    assert joiner.store.whole(ref) == text


def test_a_newcomer_gets_the_newest_policy_from_a_volunteer_when_the_learner_is_gone() -> None:
    made = swarm(volunteers=3)
    made.network.run_for(5)
    for _ in range(2):
        made.publish(100_000)
        made.network.run_for(10)
    made.network.crash(made.members["learner"].peer)
    late = made.add("late", bootstrap=("v1",))
    made.network.run_for(30)
    assert sorted(late.ready_at) == [1]
    assert made.network.node(late.peer).relay_stats.received_from_source == 0


def neighbours_of(made: BroadcastSwarm, name: str) -> int:
    return sum(count for _, count in made.network.node(made.members[name].peer).roles())


def test_peers_link_with_those_the_learner_names_and_at_random_when_it_names_nobody() -> None:
    class Silent(Node):
        """A learner of the last version: it names nobody."""

        def _introduce(self, introductions: Introductions, now: float) -> None:
            introductions.take_due({}, now)

    counts = {}
    for build in (Node, Silent):
        made = BroadcastSwarm(VirtualNetwork(5))
        made.add("learner", Role.LEARNER, build=build)
        for index in range(80):
            made.add(f"v{index}", bootstrap=("learner",))
        made.network.run_for(5)
        early = [neighbours_of(made, f"v{index}") for index in range(80)]
        made.network.run_for(55)
        counts[build] = [neighbours_of(made, f"v{index}") for index in range(80)]
        assert statistics.fmean(early) < 18, "six links by its own choice, and as many by others"
        assert min(counts[build]) >= 16
        assert not any(of(member, PeerBanned) for member in made.members.values())
    assert 24 <= statistics.fmean(counts[Node]) <= 40, "named and random ones"
    assert 16 <= statistics.fmean(counts[Silent]) <= 34


def test_who_started_anew_behind_a_link_that_never_broke_is_named_its_neighbours_again() -> None:
    made = swarm(seed=6, volunteers=30)
    made.network.run_for(30)
    again = made.members["v3"].peer
    made.network.crash(again)
    made.network.restart(again)
    made.network.connect(again, made.members["learner"].peer)
    made.network.run_for(20)
    assert made.network.node(again)._links._introduced == frozenset(), "the learner has not noticed"
    made.network.run_for(320)
    assert len(made.network.node(again)._links._introduced) == 12


def test_an_introduction_that_the_learner_did_not_sign_is_a_fault() -> None:
    made = swarm(volunteers=1)
    made.publish(20_000)
    made.network.run_for(10)
    victim, liar = made.members["v0"], identity_of("liar")
    made.network.inject(liar.peer_id, victim.peer, hello_of(made.run, now=made.network.now))
    for number in range(3):
        message = Introduction(victim.identity.public_key, (liar.public_key,))
        forged = seal(liar, message, run=made.run, now=made.network.now + number / 1000)
        assert not of(victim, PeerBanned)
        made.network.inject(liar.peer_id, victim.peer, frames.pack(Push(forged)))
        made.network.run_for(1)
    (ban,) = of(victim, PeerBanned)
    assert isinstance(ban, PeerBanned)
    assert "not the learner" in ban.reason


def test_who_comes_after_the_end_hears_of_it_from_those_who_were_there() -> None:
    made = swarm(volunteers=2)
    made.publish(20_000)
    made.network.run_for(10)
    say_head(made, finished=True)
    made.network.run_for(10)
    made.network.crash(made.members["learner"].peer)
    made.network.run_for(600)
    late = made.add("late", bootstrap=("v1",))
    board = made.add("board", Role.BOARD, bootstrap=("v0",))
    made.network.run_for(60)
    for member in (late, board):
        heads = [e.opened.body for e in of(member, EnvelopeArrived) if isinstance(e, EnvelopeArrived)]
        assert [head.finished for head in heads if isinstance(head, LedgerHead)] == [True], "told once, not every hello"


def test_a_farewell_that_has_been_taken_back_is_not_passed_on() -> None:
    made = swarm(volunteers=2)
    made.publish(20_000)
    made.network.run_for(10)
    say_head(made, finished=True)
    made.network.run_for(60)
    say_head(made, finished=False)
    made.network.run_for(10)
    made.network.crash(made.members["learner"].peer)
    late = made.add("late", bootstrap=("v1",))
    made.network.run_for(60)
    heads = [e.opened.body for e in of(late, EnvelopeArrived) if isinstance(e, EnvelopeArrived)]
    assert not any(head.finished for head in heads if isinstance(head, LedgerHead))


def test_peers_of_another_run_are_left_alone() -> None:
    made = swarm(volunteers=1)
    made.network.run_for(5)
    learner = made.members["learner"]
    stranger = identity_of("stranger").peer_id
    before = made.network.node(learner.peer).roles()
    made.network.inject(stranger, learner.peer, hello_of(bytes(32)))
    made.network.run_for(5)
    assert made.network.node(learner.peer).roles() == before
    assert not of(learner, PeerBanned)


def test_another_wire_version_is_named_and_left_alone() -> None:
    made = swarm()
    learner = made.members["learner"]
    stranger = identity_of("stranger").peer_id
    made.network.inject(stranger, learner.peer, hello_of(made.run, wire=limits.WIRE_VERSION + 1))
    made.network.run_for(5)
    assert of(learner, WireMismatch) == [WireMismatch(stranger, limits.WIRE_VERSION + 1)]
    assert made.network.node(learner.peer).roles() == ()


def test_junk_is_never_forwarded_and_its_sender_is_banned() -> None:
    made = swarm(volunteers=2)
    made.network.run_for(5)
    target = made.members["v0"]
    junker = identity_of("junker")
    good = seal(junker, group_of(1), run=made.run, now=made.network.now)
    forged = bytearray(good)
    forged[-1] ^= 1
    junk = [
        bytes(forged),
        seal(junker, group_of(1), run=bytes(32), now=made.network.now),
        seal(junker, StorageReceipt((bytes(32),)), run=made.run, now=made.network.now),
    ]
    seen = made.network.counters.frames
    made.network.inject(junker.peer_id, target.peer, hello_of(made.run))
    for raw in junk:
        made.network.inject(junker.peer_id, target.peer, frames.pack(Push(raw)))
    made.network.run_for(1)
    assert made.network.counters.frames > seen
    (banned,) = of(target, PeerBanned)
    assert isinstance(banned, PeerBanned)
    assert banned.peer == junker.peer_id
    made.network.inject(junker.peer_id, target.peer, frames.pack(Push(good)))
    made.network.run_for(30)
    for member in made.members.values():
        assert not member.arrived(), "neither junk nor the words of the banned reach anybody"


def test_what_shares_a_frame_with_an_untimely_envelope_is_not_lost() -> None:
    made = swarm()
    learner = made.members["learner"]
    author = identity_of("author")
    old = seal(author, group_of(1), run=made.run, now=START - limits.MAX_ENVELOPE_AGE_S - 60)
    fresh = seal(author, group_of(2), run=made.run, now=START)
    packed = [hello_of(made.run), frames.pack(Push(old)), frames.pack(Push(fresh))]
    made.network.inject(author.peer_id, learner.peer, b"".join(packed))
    made.network.run_for(1)
    (arrived,) = learner.arrived()
    assert arrived.opened.digest == envelope_digest(fresh)
    assert not of(learner, PeerBanned)


def test_an_unasked_chunk_bans_its_sender_at_once() -> None:
    made = swarm()
    learner = made.members["learner"]
    poisoner = identity_of("poisoner").peer_id
    made.network.inject(poisoner, learner.peer, hello_of(made.run) + frames.pack(Chunk(b"poison")))
    made.network.run_for(1)
    assert [event.peer for event in learner.events if isinstance(event, PeerBanned)] == [poisoner]


def test_oversized_offers_are_a_fault_and_three_faults_a_ban() -> None:
    made = swarm()
    learner = made.members["learner"]
    flooder = identity_of("flooder").peer_id
    flood = frames.pack(Offer((b"x",)))
    made.network.inject(flooder, learner.peer, hello_of(made.run) + flood + flood)
    made.network.run_for(1)
    assert not of(learner, PeerBanned)
    made.network.inject(flooder, learner.peer, flood)
    made.network.run_for(1)
    assert of(learner, PeerBanned)


def test_equivocation_is_reported_with_both_manifests() -> None:
    made = swarm(volunteers=1)
    made.network.run_for(5)
    made.publish(20_000)
    made.network.run_for(5)
    first, manifest, _ = made.published[0]
    twin = seal(identity_of("learner"), msgspec.structs.replace(manifest, beacon=bytes(32)), run=made.run, now=START)
    messenger = identity_of("messenger").peer_id
    target = made.members["v0"]
    made.network.inject(messenger, target.peer, hello_of(made.run) + frames.pack(Push(twin)))
    made.network.run_for(2)
    assert of(target, Equivocation) == [Equivocation(first, twin)]


def test_nobody_can_frame_the_learner_by_writing_its_manifest_another_way() -> None:
    made = swarm(volunteers=1)
    made.network.run_for(5)
    made.publish(20_000)
    made.network.run_for(5)
    raw = made.published[0][0]
    body = open_envelope(raw, now=None)
    short = body.author
    other = raw.replace(b"\xc4\x20" + short, b"\xc5\x00\x20" + short)
    assert other != raw
    target = made.members["v0"]
    made.network.inject(identity_of("m").peer_id, target.peer, hello_of(made.run) + frames.pack(Push(other)))
    made.network.run_for(2)
    assert not of(target, Equivocation)


def test_an_old_manifest_replayed_by_a_stranger_fetches_nothing() -> None:
    made = swarm(volunteers=1)
    made.network.run_for(5)
    for _ in range(7):
        made.publish(20_000)
        made.network.run_for(5)
    late = made.add("late", bootstrap=("v0",))
    made.network.run_for(10)
    assert sorted(late.ready_at) == [6]
    for old in (0, 5):
        made.network.inject(
            identity_of("m").peer_id, late.peer, hello_of(made.run) + frames.pack(Push(made.published[old][0]))
        )
    made.network.run_for(20)
    assert sorted(late.ready_at) == [6]
    announced = [event.manifest.version for event in late.events if isinstance(event, VersionAnnounced)]
    assert announced == [6], "versions only grow"


def test_a_policy_asked_for_by_name_arrives_and_arrives_again() -> None:
    made = swarm(volunteers=1)
    made.network.run_for(5)
    for _ in range(3):
        made.publish(20_000)
        made.network.run_for(5)
    late = made.add("late", Role.VALIDATOR, bootstrap=("v0",))
    made.network.run_for(10)
    name = envelope_digest(made.published[1][0])
    node = made.network.node(late.peer)
    for _ in range(2):
        node.fetch_policy(name, made.network.now)
        made.network.wake(late.peer)
        made.network.run_for(10)
    ready = [event.digest for event in late.events if isinstance(event, VersionReady)]
    assert ready == [envelope_digest(made.published[2][0]), name, name]


def test_disk_holds_a_bounded_number_of_versions() -> None:
    made = swarm(volunteers=2)
    made.network.run_for(5)
    for _ in range(12):
        made.publish(50_000)
        made.network.run_for(6)
    keep = NodeConfig(role=Role.VOLUNTEER).keep_versions
    for member in made.members.values():
        assert member.store.size_bytes <= (keep + 1) * 50_000, member.name
        if member.role is Role.VOLUNTEER:
            assert sorted(member.ready_at) == list(range(12))


def test_versions_of_equal_bytes_are_all_announced_ready_and_survive_each_other() -> None:
    made = swarm(volunteers=2)
    made.network.run_for(5)
    data = bytes(range(256)) * 100
    for version in range(7):
        made.publish(0, data=data)
        made.network.run_for(6)
        for member in made.members.values():
            if member.role is Role.VOLUNTEER:
                assert sorted(member.ready_at) == list(range(version + 1))
    late = made.add("late", bootstrap=("v0",))
    made.network.run_for(10)
    assert late.store.whole(made.published[-1][1].weights) == data


def test_a_wrong_clock_is_told_once() -> None:
    made = swarm(volunteers=3)
    off = made.add("off", bootstrap=("learner",), clock_offset_s=-300.0)
    made.network.run_for(60)
    (told,) = of(off, ClockOff)
    assert isinstance(told, ClockOff)
    assert abs(told.offset_s - 300) < 2
    assert not of(made.members["v0"], ClockOff)


def test_ledger_queries_pages_and_their_size() -> None:
    made = swarm()
    board = made.add("board", Role.BOARD, bootstrap=("learner",))
    learner = made.members["learner"]
    node = made.network.node(learner.peer)
    node.set_ledger_height(40)
    made.network.run_for(40)
    made.network.node(board.peer).ask_ledger(0)
    made.network.wake(board.peer)
    made.network.run_for(1)
    assert of(learner, LedgerWanted) == [LedgerWanted(board.peer, 0)]
    entries = tuple(bytes((i,)) * 20_000 for i in range(40))
    node.send_ledger(board.peer, 0, entries)
    made.network.wake(learner.peer)
    made.network.run_for(1)
    (page,) = of(board, LedgerArrived)
    assert isinstance(page, LedgerArrived)
    assert page.entries == entries[: len(page.entries)]
    assert 10 <= len(page.entries) <= 13, "as many as one control frame holds"
    assert len(frames.pack(LedgerPage(0, page.entries))) <= limits.MAX_CONTROL_FRAME_BYTES


def test_a_peer_that_asks_for_the_ledger_all_the_time_is_answered_as_often_as_the_limit_says() -> None:
    made = swarm(volunteers=1)
    learner = made.members["learner"]
    made.network.node(learner.peer).set_ledger_height(10)
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
    wanted = [event.peer for event in of(learner, LedgerWanted) if isinstance(event, LedgerWanted)]
    elapsed_s = made.network.now - begun
    assert 60 <= wanted.count(glutton) <= 16 + limits.MAX_LEDGER_QUERIES_PER_S * elapsed_s
    assert wanted.count(modest) == 1
    assert not of(learner, PeerBanned), "asking too often is no fault"


def test_a_peer_that_claims_the_longest_ledger_is_not_asked_for_ever() -> None:
    made = swarm(volunteers=1)
    board = made.add("board", Role.BOARD, bootstrap=("learner",))
    made.network.node(made.members["learner"].peer).set_ledger_height(5)
    made.network.run_for(40)
    boaster = identity_of("boaster").peer_id
    claim = frames.pack(
        Hello(limits.WIRE_VERSION, made.run, int(Role.BOARD), int(made.network.now * 1000), -1, 1 << 60)
    )
    made.network.inject(boaster, board.peer, claim)
    made.network.run_for(1)
    for _ in range(12):
        made.network.node(board.peer).ask_ledger(0)
        made.network.wake(board.peer)
        made.network.run_for(1)
    assert of(made.members["learner"], LedgerWanted)


def test_a_repeated_group_reaches_the_learner_again_so_that_its_receipt_can_be_repeated() -> None:
    made = swarm(volunteers=1)
    made.network.run_for(5)
    volunteer = made.members["v0"]
    raw = seal(volunteer.identity, group_of(1), run=made.run, now=made.network.now)
    for _ in range(2):
        made.network.node(volunteer.peer).publish(raw, made.network.now)
        made.network.wake(volunteer.peer)
        made.network.run_for(2)
    learner = made.members["learner"]
    assert [event.opened.digest for event in learner.arrived()] == [envelope_digest(raw)] * 2
    assert isinstance(learner.arrived()[0].opened.body, RolloutGroup)
    receipts = [event for event in volunteer.arrived() if isinstance(event.opened.body, StorageReceipt)]
    assert receipts


def test_a_ledger_head_reaches_those_that_read_it() -> None:
    made = swarm(volunteers=1)
    board = made.add("board", Role.BOARD, bootstrap=("v0",), dialable=False)
    made.network.run_for(5)
    learner = made.members["learner"]
    head = seal(learner.identity, LedgerHead(1, bytes(32), 1, False), run=made.run, now=made.network.now)
    made.network.node(learner.peer).publish(head, made.network.now)
    made.network.wake(learner.peer)
    made.network.run_for(5)
    assert [event.opened.raw for event in board.arrived()] == [head]


def test_a_manifest_of_the_learner_names_its_predecessor() -> None:
    made = swarm()
    first = made.publish(5_000)
    second = made.publish(5_000)
    assert isinstance(first, PolicyManifest)
    assert second.previous == Digest(envelope_digest(made.published[0][0]))
