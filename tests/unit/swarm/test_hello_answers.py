"""Answers to hellos: the newest version once on a link, and again for those who have paid for it."""

from __future__ import annotations

import random

import msgspec
import pytest

from p2prl.protocol import frames, limits, wire_version
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Kind, Role
from p2prl.protocol.link_messages import Hello, Padding, Push
from p2prl.protocol.manifests import PolicyManifest, blob_of
from p2prl.protocol.policy_head import PatchEdge, PolicyHead
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of
from p2prl.swarm.answer_budget import OFFERED_SHARE, UNKNOWN_RATE_BYTES_S
from p2prl.swarm.events import Send
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl.swarm.signals import VersionAnnounced
from p2prl_lab.sim.memory_blobs import MemoryBlobs

NOW = 1_800_000_000.0
WEIGHTS = bytes(8_192)
ME, LEARNER = identity_of("me"), identity_of("learner")
MANIFEST = seal(LEARNER, run_manifest_of(LEARNER, weight_bytes=len(WEIGHTS)), run=bytes(32), now=NOW)
RUN = envelope_digest(MANIFEST)


def policy(version: int) -> bytes:
    body = PolicyManifest(version, version, blob_of(WEIGHTS, 4_096), bytes(32), bytes(32), bytes(32), 0)
    return seal(LEARNER, body, run=RUN, now=NOW)


def head_of(version: int, count: int = limits.MAX_HEAD_EDGES) -> bytes:
    """A head that lists as many patches as one may, or fewer."""
    name, now_ms = envelope_digest(policy(version)), int(NOW * 1000)
    edges = tuple(
        PatchEdge(version - place, version - place - 1, 1, name if not place else bytes(32)) for place in range(count)
    )
    return seal(LEARNER, PolicyHead(version, name, 0, len(WEIGHTS), edges, 0, now_ms + 60_000), run=RUN, now=NOW)


def receive(node: Node, peer: PeerId, message: bytes, now: float) -> list[Kind]:
    """Kinds of the envelopes that are pushed back to the peer."""
    node.receive(message, peer, now)
    pushed = []
    for command in node.commands(now):
        if isinstance(command, Send) and command.peer == peer:
            pushed += [Kind(m.envelope[1]) for m in frames.unpack(command.frame) if isinstance(m, Push)]
    return pushed


def greeting_of(node: Node) -> bytes:
    """The first frame of a node that has dialed a learner."""
    node.connected(LEARNER.peer_id, NOW)
    (frame,) = (command.frame for command in node.commands(NOW) if isinstance(command, Send))
    return frame


def hello(now: float, version: int = -1) -> bytes:
    return frames.pack(Hello(wire_version.WIRE_VERSION, RUN, int(Role.VOLUNTEER), int(now * 1000), version, 0))


def node_with(version: int, edges: int = limits.MAX_HEAD_EDGES) -> Node:
    node = Node(ME, RUN, MemoryBlobs(), random.Random(1), NodeConfig(role=Role.SEEDER), NOW)
    node.begin(MANIFEST)
    for raw in (policy(version), head_of(version, edges)):
        receive(node, LEARNER.peer_id, hello(NOW) + frames.pack(Push(raw)), NOW)
    return node


def test_a_flood_of_hellos_is_answered_a_few_times() -> None:
    node, eve = node_with(3_000), identity_of("eve").peer_id
    flood = hello(NOW) * limits.MAX_MESSAGES_PER_FRAME
    pushed = [kind for turn in range(10) for kind in receive(node, eve, flood, NOW + turn / 10)]
    assert 1 <= pushed.count(Kind.POLICY_HEAD) <= 4
    assert pushed.count(Kind.POLICY_MANIFEST) == pushed.count(Kind.POLICY_HEAD)


def test_whoever_reconnects_to_ask_again_is_answered_no_more_often() -> None:
    node, eve = node_with(3_000), identity_of("eve").peer_id
    pushed = []
    for turn in range(100):
        pushed += receive(node, eve, hello(NOW), NOW + turn / 10)
        node.lost(eve, NOW + turn / 10)
    assert pushed.count(Kind.POLICY_HEAD) <= 6


def test_a_peer_that_stays_behind_is_told_once_and_again_when_it_pays() -> None:
    node, friend = node_with(3_000), identity_of("friend").peer_id
    told = [receive(node, friend, hello(NOW + 15 * turn), NOW + 15 * turn) for turn in range(20)]
    assert told == [[Kind.POLICY_HEAD, Kind.POLICY_MANIFEST]] + [[]] * 19
    padding = frames.pack(Padding(bytes(150_000 // limits.MAX_AMPLIFICATION)))
    assert receive(node, friend, padding + hello(NOW + 299), NOW + 299) == told[0]
    node.lost(friend, NOW + 299)
    assert receive(node, friend, hello(NOW + 299.5), NOW + 299.5) == told[0], "a new connection begins anew"
    assert receive(node, friend, hello(NOW + 300, version=3_000), NOW + 300) == []


@pytest.mark.parametrize("refused", [{"run": bytes(32)}, {"wire_version": wire_version.WIRE_VERSION + 1}])
def test_a_hello_that_ends_the_link_buys_no_news(refused: dict[str, object]) -> None:
    node, eve = node_with(3_000), identity_of("eve").peer_id
    told = []
    for turn in range(20):
        now = NOW + 15 * turn
        told += receive(node, eve, hello(now), now)
        (message,) = frames.unpack(hello(now))
        receive(node, eve, frames.pack(msgspec.structs.replace(message, **refused)), now)
        assert eve not in node.connections.links
    assert told.count(Kind.POLICY_HEAD) == 1


def test_who_restarts_pays_for_the_news_with_its_first_hello() -> None:
    """The other side takes it for the peer of before, which has got them."""
    node, volunteer = node_with(3_000, edges=60), identity_of("volunteer")
    for _ in range(2):
        fresh = Node(volunteer, RUN, MemoryBlobs(), random.Random(2), NodeConfig(role=Role.VOLUNTEER), NOW)
        told = receive(node, volunteer.peer_id, greeting_of(fresh), NOW)
        assert [kind for kind in told if kind is not Kind.RUN_MANIFEST] == [Kind.POLICY_HEAD, Kind.POLICY_MANIFEST]


def test_keys_without_number_are_answered_a_bounded_number_of_times() -> None:
    node = node_with(3_000)
    size = len(head_of(3_000)) + len(policy(3_000))
    told = [receive(node, PeerId(f"key {number}"), hello(NOW), NOW) for number in range(1_500)]
    bytes_told = size * sum(map(bool, told))
    assert 0.4 * UNKNOWN_RATE_BYTES_S < bytes_told < UNKNOWN_RATE_BYTES_S + size, "at most a second of the upload rate"
    later = 0
    for second in range(100):
        now = NOW + 60 + second
        node.handle_timer(now)  # those that said no more lose their links
        keys = (PeerId(f"key {number}") for number in range(1_500 + 20 * second, 1_520 + 20 * second))
        later += size * sum(bool(receive(node, key, hello(now), now)) for key in keys)
    most = 100 * OFFERED_SHARE * UNKNOWN_RATE_BYTES_S
    assert 0.8 * most < later < most + UNKNOWN_RATE_BYTES_S + size, "then by the strangers' share"


def test_news_that_come_before_the_run_manifest_are_kept() -> None:
    """They come for nothing once, at the first hello."""
    newcomer = Node(identity_of("v"), RUN, MemoryBlobs(), random.Random(1), NodeConfig(role=Role.VOLUNTEER), NOW)
    junk = b"".join(frames.pack(Push(b"\x96!" + bytes(60_000) + bytes([number]))) for number in range(8))
    receive(newcomer, identity_of("eve").peer_id, hello(NOW) + junk, NOW)
    news = b"".join(frames.pack(Push(raw)) for raw in (head_of(3_000), policy(3_000), MANIFEST))
    receive(newcomer, LEARNER.peer_id, hello(NOW) + news, NOW)
    events = list(iter(newcomer.next_event, None))
    assert [event.version for event in events if isinstance(event, VersionAnnounced)] == [3_000]
