"""Faults and bans: junk, stale envelopes, unrequested chunks, floods of offers."""

from __future__ import annotations

from p2prl.protocol import frames, limits
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.ledger_messages import StorageReceipt
from p2prl.protocol.link_messages import Chunk, Offer, Push
from p2prl.sim.machines import identity_of
from p2prl.sim.virtual_time import START
from p2prl.swarm.events import PeerBanned
from p2prl_lab.testing.protocol_swarm import group_of
from tests.sim.node_swarm import events_of, hello_of, swarm


def test_junk_is_not_forwarded_and_bans_its_sender() -> None:
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
    (banned,) = events_of(target, PeerBanned)
    assert isinstance(banned, PeerBanned)
    assert banned.peer == junker.peer_id
    made.network.inject(junker.peer_id, target.peer, frames.pack(Push(good)))
    made.network.run_for(30)
    for member in made.members.values():
        assert not member.arrived(), "neither junk nor a banned peer's envelope reaches any peer"


def test_a_stale_envelope_leaves_the_rest_of_its_frame() -> None:
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
    assert not events_of(learner, PeerBanned)


def test_an_unrequested_chunk_bans_at_once() -> None:
    made = swarm()
    learner = made.members["learner"]
    poisoner = identity_of("poisoner").peer_id
    made.network.inject(poisoner, learner.peer, hello_of(made.run) + frames.pack(Chunk(bytes(32), 0, b"", b"poison")))
    made.network.run_for(1)
    assert [event.peer for event in learner.events if isinstance(event, PeerBanned)] == [poisoner]


def test_three_malformed_offers_ban() -> None:
    made = swarm()
    learner = made.members["learner"]
    flooder = identity_of("flooder").peer_id
    flood = frames.pack(Offer((b"x",)))
    made.network.inject(flooder, learner.peer, hello_of(made.run) + flood + flood)
    made.network.run_for(1)
    assert not events_of(learner, PeerBanned)
    made.network.inject(flooder, learner.peer, flood)
    made.network.run_for(1)
    assert events_of(learner, PeerBanned)
