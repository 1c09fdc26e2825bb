"""Groups of megabytes on virtual time: delivery under loss, crashes and lies, and what strangers can cause."""

from __future__ import annotations

import msgspec
import pytest

from p2prl.protocol import frames, limits
from p2prl.protocol.digests import Digest, chunk_digest
from p2prl.protocol.envelope import body_of, open_envelope, seal
from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Kind, Role
from p2prl.protocol.link_messages import Chunk, ChunkRequest, Hello, Push
from p2prl.protocol.manifests import blob_of
from p2prl.protocol.rollout_group import GroupHeader
from p2prl.protocol.signed_group import seal_group
from p2prl.protocol.wire_codec import encode
from p2prl.sim.link_conditions import LinkConditions
from p2prl.sim.machines import identity_of
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl.swarm import signals
from p2prl.swarm.events import Command, PeerBanned, Send
from p2prl.swarm.node import Node
from p2prl_lab.sim.memory_blobs import MemoryBlobs
from tests.sim.large_groups import LONGEST, LargeGroupSwarm, large_group
from tests.sim.node_swarm import events_of, hello_of

PART = limits.GROUP_PART_BYTES


class SilentNode(Node):
    """Answers no request for a part."""

    def receive(self, frame: bytes, source: PeerId, now: float) -> None:
        if not any(kind == Kind.CHUNK_REQUEST for kind, _ in frames.split(frame)):
            super().receive(frame, source, now)


class LyingNode(SilentNode):
    """Answers requests for parts with other bytes."""

    _asked: tuple[tuple[PeerId, ChunkRequest], ...] = ()

    def commands(self, now: float) -> list[Command]:
        asked, self._asked = self._asked, ()
        lies = [(peer, Chunk(request.root, request.index, b"", b"x" * PART)) for peer, request in asked]
        return [*super().commands(now), *(Send(peer, frames.pack(lie), bulk=True) for peer, lie in lies)]

    def receive(self, frame: bytes, source: PeerId, now: float) -> None:
        super().receive(frame, source, now)
        requests = [message for message in frames.unpack(frame) if isinstance(message, ChunkRequest)]
        self._asked += tuple((source, request) for request in requests)


def swarm(*volunteers: str, seed: int = 1, loss: float = 0.0, upload_bytes_s: float = 2.5e6) -> LargeGroupSwarm:
    made = LargeGroupSwarm(VirtualNetwork(seed, links=LinkConditions(loss=loss)))
    made.add("learner", Role.LEARNER)
    for name in volunteers:
        made.add(name, bootstrap=("learner",), upload_bytes_s=upload_bytes_s)
    made.network.run_for(10.0)
    return made


def bulk_bytes(made: LargeGroupSwarm) -> int:
    return made.network.counters.bulk_bytes


def test_the_largest_group_uses_an_uplink_of_10_mbit() -> None:
    made = swarm("v", upload_bytes_s=1.25e6)
    before, began = made.network.counters.bytes, made.network.now
    group = large_group(1, completions=64)
    name = made.deliver_large("v", group)
    made.network.run_for(30.0)
    assert made.stored[name].group == group
    size = len(encode(group))
    assert made.stored_at[name] - began < 1.1 * size / 1.25e6, "the lower bound: its bytes over the uplink"
    assert made.network.counters.bytes - before < 1.001 * size + 20_000  # headers, requests, and 30 s of gossip


def test_a_group_survives_loss() -> None:
    made = swarm("a", "b", seed=5, loss=0.05)
    made.redeliver_every(5.0)
    groups = {made.deliver_large(name, large_group(slot)): slot for slot, name in enumerate(("a", "b", "a"))}
    made.network.run_for(400.0)
    assert {name: signed.group.slot for name, signed in made.stored.items()} == groups


@pytest.mark.parametrize("crashing", ["learner", "v"])
def test_a_crash_costs_no_part_twice(crashing: str) -> None:
    made = swarm("v", upload_bytes_s=250_000.0)
    made.redeliver_every(5.0)
    before = bulk_bytes(made)
    group = large_group(1, completions=12)
    name = made.deliver_large("v", group)
    made.network.run_for(5.0)
    half = bulk_bytes(made) - before
    assert 4 * PART < half < 12 * PART
    made.network.crash(made.members[crashing].peer)
    made.network.run_for(20.0)
    made.network.restart(made.members[crashing].peer)
    made.network.connect(made.members["v"].peer, made.members["learner"].peer)
    made.network.run_for(60.0)
    assert made.stored[name].group == group
    # What was on its way at the crash is sent again; a body of 2.4 MB from the start would be 5 parts more at least.
    assert bulk_bytes(made) - before < len(encode(group)) + 9 * PART
    assert bulk_bytes(made) - before - half < len(encode(group)) - half + 9 * PART


def test_a_restarted_volunteer_reads_the_body_from_its_spool() -> None:
    made = swarm("v", upload_bytes_s=250_000.0)
    made.redeliver_every(5.0)
    name = made.deliver_large("v", large_group(1))
    made.network.run_for(1.0)
    made.network.crash(made.members["v"].peer)
    made.network.restart(made.members["v"].peer)
    made.network.connect(made.members["v"].peer, made.members["learner"].peer)
    made.network.run_for(60.0)
    assert made.wanted == [("v", name)], "asked for once, when a part was requested"
    assert name in made.stored


def test_carriers_pass_parts_on_and_keep_none() -> None:
    made = swarm("c0", "c1", "c2", "c3")
    lonely = made.add("lonely", bootstrap=("c0", "c1", "c2", "c3"))
    learner = made.members["learner"]
    made.network.partition([[lonely.peer], [learner.peer]], made.network.now, made.network.now + 1e6)
    made.network.run_for(20.0)
    made.redeliver_every(5.0)
    before = bulk_bytes(made)
    group = large_group(7)
    name = made.deliver_large("lonely", group)
    made.network.run_for(60.0)
    assert made.stored[name].group == group
    assert bulk_bytes(made) - before < 2.1 * len(encode(group)), "each part takes two hops, once"
    carriers = [member for key, member in made.members.items() if key.startswith("c")]
    assert all(member.store.size_bytes == 0 for member in carriers)


def test_a_header_moves_no_byte_that_its_receiver_does_not_want() -> None:
    made = swarm(*(f"v{number}" for number in range(8)))
    for number in range(4):
        made.add(f"validator{number}", Role.VALIDATOR, bootstrap=("learner", "v0", "v1"))
    made.network.run_for(20.0)
    before = bulk_bytes(made)
    group = large_group(3)
    name = made.deliver_large("v0", group)
    made.network.run_for(60.0)
    assert name in made.stored
    assert bulk_bytes(made) - before < 1.1 * len(encode(group)), "one copy, to the learner"
    seen = [m for key, m in made.members.items() if key.startswith("validator") and m.arrived()]
    assert len(seen) == 4, "every validator has the header"
    validator = seen[0]
    made.network.node(validator.peer).order(signals.FetchGroup(name), made.network.now)
    made.network.wake(validator.peer)
    made.network.run_for(60.0)
    assert bulk_bytes(made) - before < 2.2 * len(encode(group)), "a second copy, to the validator that asked"
    assert validator.store.size_bytes == len(encode(group))


def test_a_header_larger_than_the_run_allows_is_a_fault() -> None:
    made = swarm("v")
    author = identity_of("greedy")
    body = blob_of(bytes(limits.MAX_GROUP_BYTES), PART)
    settings = msgspec.structs.replace(body, size_bytes=body.size_bytes - 20_000)
    for slot, ref in enumerate((body, settings, body)):
        raw = seal(author, GroupHeader(0, bytes(32), slot, ref), run=made.run, now=made.network.now)
        made.network.inject(author.peer_id, made.members["learner"].peer, frames.pack(Push(raw)))
    made.network.run_for(5.0)
    assert not made.members["learner"].arrived()
    assert [event.peer for event in events_of(made.members["learner"], PeerBanned)] == [author.peer_id]  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [SilentNode, LyingNode])
def test_false_sources_delay_but_do_not_stop_a_group(kind: type[Node]) -> None:
    """The author has no link to the learner; before its carrier, another peer pushes the header."""
    made = swarm("carrier")
    author = made.add("author", bootstrap=("carrier",))
    liar = made.add("liar", build=kind, bootstrap=("learner",))
    learner = made.members["learner"]
    made.network.partition([[author.peer], [learner.peer, liar.peer]], made.network.now, made.network.now + 1e6)
    made.network.run_for(20.0)
    group = large_group(4)
    raw, _ = seal_group(author.identity, group, run=made.run, now=made.network.now)
    made.network.inject(liar.peer, learner.peer, frames.pack(Push(raw)))
    made.network.run_for(2.0)
    made.redeliver_every(5.0)
    name = made.deliver_large("author", group, raw=raw)
    made.network.run_for(120.0)
    assert made.stored[name].group == group
    banned = [event.peer for event in events_of(learner, PeerBanned)]  # type: ignore[attr-defined]
    assert banned == ([liar.peer] if kind is LyingNode else [])


def test_a_flood_of_headers_is_bounded_on_disk_and_leaves_room() -> None:
    made = swarm("v")
    learner = made.members["learner"]
    group = large_group(1, completions=60)
    ref = blob_of(encode(group), PART)
    for number in range(60):  # as many keys, each with a link of its own, and none with a body
        flooder = identity_of(f"flooder {number}")
        made.network.inject(flooder.peer_id, learner.peer, hello_of(made.run, now=made.network.now))
        for slot in range(2):
            body = msgspec.structs.replace(ref, tree=chunk_digest(bytes([number, slot])))
            raw = seal(flooder, GroupHeader(0, bytes(32), slot, body), run=made.run, now=made.network.now)
            made.network.inject(flooder.peer_id, learner.peer, frames.pack(Push(raw)))
    made.network.run_for(5.0)
    opened = [event.opened for event in learner.arrived() if event.opened.kind is Kind.GROUP_HEADER]
    assert len(opened) == 120
    assert len(learner.store._chunks) <= 256 * 1024 * 1024 // body_of(opened[0], GroupHeader).body.size_bytes
    assert bulk_bytes(made) == 0
    made.redeliver_every(5.0)
    name = made.deliver_large("v", large_group(2))
    made.network.run_for(90.0)  # the bodies of the flood gain nothing for 30 s and make room
    assert name in made.stored


def test_a_copied_header_neither_takes_nor_spoils_the_original() -> None:
    made = swarm("v", upload_bytes_s=250_000.0)
    made.redeliver_every(5.0)
    learner, thief = made.members["learner"], identity_of("thief")
    name = made.deliver_large("v", large_group(1))
    original = body_of(open_envelope(made.spool[name][1], now=None), GroupHeader)
    copied = seal(thief, original, run=made.run, now=made.network.now)
    made.network.inject(thief.peer_id, learner.peer, hello_of(made.run, now=made.network.now))
    made.network.inject(thief.peer_id, learner.peer, frames.pack(Push(copied)))
    before = bulk_bytes(made)
    made.network.run_for(60.0)
    assert name in made.stored
    authors = {signed.author for signed in made.stored.values()}
    assert authors == {made.members["v"].identity.public_key, thief.public_key}, "its slot's seeds will refuse the copy"
    assert bulk_bytes(made) - before < 1.2 * original.body.size_bytes, "the parts they share came once"


def test_requests_of_strangers_move_at_most_what_they_ask_for() -> None:
    """A stranger without the header's consent asks a relay for parts again and again."""
    made = swarm("c0", "c1", "c2")
    lonely = made.add("lonely", bootstrap=("c0", "c1", "c2"))
    learner, stranger = made.members["learner"], identity_of("stranger")
    made.network.partition([[lonely.peer], [learner.peer]], made.network.now, made.network.now + 1e6)
    made.network.run_for(20.0)
    before = bulk_bytes(made)
    name = made.deliver_large("lonely", large_group(7))
    header = body_of(open_envelope(made.spool[name][1], now=None), GroupHeader)
    made.network.run_for(30.0)
    assert name in made.stored
    delivered = bulk_bytes(made) - before
    carrier = made.members["c0"]
    made.network.inject(stranger.peer_id, carrier.peer, hello_of(made.run, now=made.network.now))
    asked = frames.pack(ChunkRequest(header.body.root, 0))
    made.network.inject(stranger.peer_id, carrier.peer, asked * 200)
    made.network.run_for(10.0)
    assert bulk_bytes(made) - before - delivered <= 2 * (PART + 5 + 37 + 7 * 32), "one part to the relay, and one on"


def test_parts_of_a_forgotten_group_are_refused() -> None:
    made = swarm("v")
    peer, me = made.members["v"].peer, identity_of("asker")
    made.network.inject(me.peer_id, peer, frames.pack(Hello(3, made.run, 1, int(made.network.now * 1000), -1, 0)))
    made.network.inject(me.peer_id, peer, frames.pack(ChunkRequest(chunk_digest(b"unknown"), 0)))
    made.network.run_for(5.0)
    assert bulk_bytes(made) == 0
    assert not events_of(made.members["v"], PeerBanned)


def test_an_incomplete_body_is_deleted_after_a_quarter_of_an_hour() -> None:
    made = swarm("v", upload_bytes_s=250_000.0)
    learner = made.members["learner"]
    made.deliver_large("v", large_group(1))
    made.network.run_for(2.0)
    assert 0 < learner.store.size_bytes < len(encode(large_group(1)))
    made.network.crash(made.members["v"].peer)
    made.network.run_for(890.0)
    assert learner.store.size_bytes > 0
    made.network.run_for(60.0)
    assert learner.store.size_bytes == 0
    assert isinstance(learner.store, MemoryBlobs)


def test_a_body_of_another_slot_is_no_group() -> None:
    made = swarm("v")
    member = made.members["v"]
    group = large_group(1, completions=2)
    body = encode(group)
    header = GroupHeader(group.version, group.policy, 2, blob_of(body, PART))
    raw = seal(member.identity, header, run=made.run, now=made.network.now)
    name = Digest(open_envelope(raw, now=None).digest)
    made.network.node(member.peer).order(signals.HoldGroup(name, body), made.network.now)
    made.tell("v", raw)
    with pytest.raises(Exception, match="slot that its header states"):
        made.network.run_for(30.0)
    assert LONGEST == 32_768
