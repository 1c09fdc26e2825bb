"""Answers to hellos: the newest version once on a link, and again for those who have paid for it."""

from __future__ import annotations

import random

from p2prl.protocol import frames, limits, wire_version
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Kind, Role
from p2prl.protocol.link_messages import Hello, Padding, Push
from p2prl.protocol.manifests import PolicyManifest, blob_of
from p2prl.protocol.policy_head import PatchEdge, PolicyHead
from p2prl.sim.bare_run import run_manifest_of
from p2prl.sim.hosts import identity_of
from p2prl.swarm.answer_budget import STRANGER_SHARE, SUBNET_SHARE, UNKNOWN_RATE_BYTES_S
from p2prl.swarm.events import Send
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl_lab.sim.memory_blobs import MemoryBlobs

NOW = 1_800_000_000.0
WEIGHTS = bytes(8_192)
ME, LEARNER = identity_of("me"), identity_of("learner")
MANIFEST = seal(LEARNER, run_manifest_of(LEARNER, weight_bytes=len(WEIGHTS)), run=bytes(32), now=NOW)
RUN = envelope_digest(MANIFEST)


def policy(version: int) -> bytes:
    body = PolicyManifest(version, version, blob_of(WEIGHTS, 4_096), bytes(32), bytes(32), bytes(32), 0)
    return seal(LEARNER, body, run=RUN, now=NOW)


def head_of(version: int) -> bytes:
    """A head that lists as many patches as one may."""
    name, now_ms = envelope_digest(policy(version)), int(NOW * 1000)
    edges = tuple(
        PatchEdge(version - place, version - place - 1, 1, name if not place else bytes(32))
        for place in range(limits.MAX_HEAD_EDGES)
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


def hello(now: float, version: int = -1) -> bytes:
    return frames.pack(Hello(wire_version.WIRE_VERSION, RUN, int(Role.VOLUNTEER), int(now * 1000), version, 0))


def node_with(version: int) -> Node:
    node = Node(ME, RUN, MemoryBlobs(), random.Random(1), NodeConfig(role=Role.SEEDER), NOW)
    node.begin(MANIFEST)
    announce(node, version)
    return node


def announce(node: Node, version: int) -> None:
    for raw in (policy(version), head_of(version)):
        receive(node, LEARNER.peer_id, hello(NOW) + frames.pack(Push(raw)), NOW)


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
    assert receive(node, friend, hello(NOW + 299.5), NOW + 299.5) == told[0], "a new link begins anew"
    assert receive(node, friend, hello(NOW + 300, version=3_000), NOW + 300) == []


def test_keys_without_number_are_answered_a_bounded_number_of_times() -> None:
    node = node_with(3_000)
    size = len(head_of(3_000)) + len(policy(3_000))
    told = [receive(node, PeerId(f"key {number}"), hello(NOW), NOW) for number in range(1_500)]
    bytes_told = size * sum(map(bool, told))
    assert 0.4 * UNKNOWN_RATE_BYTES_S < bytes_told < UNKNOWN_RATE_BYTES_S + size, "at most a second of the upload rate"
    later = [receive(node, PeerId(f"key {n}"), hello(NOW + n), NOW + n) for n in range(1_500, 1_800)]
    share = SUBNET_SHARE * STRANGER_SHARE * UNKNOWN_RATE_BYTES_S
    assert size * sum(map(bool, later)) > 0.8 * 300 * share, "then by the share of their subnet"
