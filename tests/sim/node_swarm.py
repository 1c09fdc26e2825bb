"""A broadcast swarm and its messages for tests of single nodes."""

from __future__ import annotations

from p2prl.protocol import frames
from p2prl.protocol.envelope import seal
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_messages import LedgerHead
from p2prl.protocol.link_messages import Hello
from p2prl.protocol.wire_version import WIRE_VERSION
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl.sim.virtual_time import START
from p2prl_lab.testing.protocol_swarm import Member, ProtocolSwarm


def swarm(seed: int = 1, volunteers: int = 0, *, weight_bytes: int = 20_000) -> ProtocolSwarm:
    made = ProtocolSwarm(VirtualNetwork(seed), weight_bytes=weight_bytes)
    made.add("learner", Role.LEARNER)
    for index in range(volunteers):
        made.add(f"v{index}", bootstrap=("learner",))
    return made


def events_of(member: Member, kind: type) -> list[object]:
    return [event for event in member.events if isinstance(event, kind)]


def publish_head(made: ProtocolSwarm, *, finished: bool) -> None:
    """The learner publishes a ledger head, final or not."""
    learner, now = made.members["learner"], made.network.now
    raw = seal(learner.identity, LedgerHead(1, bytes(32), 1, finished), run=made.run, now=now)
    made.network.node(learner.peer).publish(raw, now)
    made.network.wake(learner.peer)


def hello_of(run: bytes, *, wire: int = WIRE_VERSION, now: float = START, role: Role = Role.VOLUNTEER) -> bytes:
    return frames.pack(Hello(wire, run, int(role), int(now * 1000), -1, 0))
