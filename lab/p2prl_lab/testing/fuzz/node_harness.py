"""A node that takes fuzzed frames and records from many peers, and is replaced by a fresh one now and then."""

from __future__ import annotations

import itertools
import random
import struct

from p2prl.protocol import frames, wire_version
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Kind, Role
from p2prl.protocol.link_messages import Hello
from p2prl.swarm.events import Send
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl_lab.sim.memory_blobs import MemoryBlobs
from p2prl_lab.testing.fuzz.vector_world import LEARNER, NOW, VectorWorld

_INPUTS_PER_NODE = 48
"""A node keeps what earlier inputs did to it, so that later ones meet it in odd states. Its successor plays another
role."""

_PEERS = tuple(Identity(bytes([number]) * 16).peer_id for number in range(1, 9))
_TURN_S = 0.7


class NodeHarness:
    """Gives every input to a node as a frame of some linked peer, and does what a shell does between frames."""

    def __init__(self, world: VectorWorld, *, knows_run: bool = True) -> None:
        self._world = world
        self._knows_run = knows_run
        self._parts = itertools.cycle((role, has_policy) for has_policy in (False, True) for role in Role)
        self._inputs = 0
        self._now = NOW
        self._node: Node | None = None

    def pushed(self, envelope: bytes) -> bytes:
        """The frame of a `Push` of any bytes."""
        body = b"\x91\xc6" + struct.pack(">I", len(envelope)) + envelope
        return struct.pack("<BI", Kind.PUSH, len(body)) + body

    def receive(self, frame: bytes) -> None:
        """Let the node receive a frame, and send, forward and wait."""
        node = self._turn()
        node.receive(frame, _PEERS[self._inputs % len(_PEERS)], self._now)
        self._settle(node)

    def record(self, raw: bytes) -> None:
        """Let the node find a record in the directory."""
        node = self._turn()
        node.looked_up([raw, self._world.envelopes[Kind.PEER_RECORD]], self._now)
        self._settle(node)

    def _settle(self, node: Node) -> None:
        for command in node.commands(self._now):
            if isinstance(command, Send):
                assert list(frames.unpack(command.frame)), "an empty frame"
                if command.bulk:
                    node.upload_done(command.peer)
        while node.next_event() is not None:
            pass
        self._now += _TURN_S
        if node.next_deadline() <= self._now:
            node.handle_timer(self._now)
            node.commands(self._now)
        assert node.next_deadline() > self._now, "a deadline that stays in the past"

    def _turn(self) -> Node:
        self._inputs += 1
        if self._node is None or self._inputs % _INPUTS_PER_NODE == 0:
            self._node = self._fresh()
        return self._node

    def _fresh(self) -> Node:
        world, (role, has_policy) = self._world, next(self._parts)
        identity = LEARNER if role is Role.LEARNER else Identity(b"fuzzed node 16 b")
        self._now = NOW
        node = Node(identity, world.run, MemoryBlobs(), random.Random(1), NodeConfig(role=role), NOW)
        if self._knows_run:
            policies = [world.envelopes[Kind.POLICY_MANIFEST]] if has_policy else []
            node.begin(world.envelopes[Kind.RUN_MANIFEST], policies)
        hello = frames.pack(Hello(wire_version.WIRE_VERSION, world.run, int(Role.VOLUNTEER), int(NOW * 1000), -1, 0))
        for peer in _PEERS:
            node.receive(hello, peer, NOW)
        return node
