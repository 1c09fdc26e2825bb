"""A node's connections, directory records and hellos for the tests of peer links."""

from __future__ import annotations

import random

from p2prl.protocol import wire_version
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import seal
from p2prl.protocol.identity import Identity, PeerId
from p2prl.protocol.kinds import Role
from p2prl.protocol.link_messages import Hello
from p2prl.protocol.peer_messages import LISTED, Introduction, PeerRecord
from p2prl.sim.machines import identity_of
from p2prl.swarm.events import Dial
from p2prl.swarm.peers.connections import Connections
from p2prl.swarm.peers.connections_config import ConnectionsConfig
from p2prl.swarm.peers.local_peer import LocalPeer

RUN = Digest(bytes(range(32)))
NOW = 1_800_000_000.0
ME = identity_of("me")
A, B = identity_of("A"), identity_of("B")


def connections(role: Role = Role.VOLUNTEER, *, is_listed: bool = False, **config: float) -> Connections:
    """A node of the run whose learner is A."""
    dials = ConnectionsConfig(**config)  # type: ignore[arg-type]
    return Connections(LocalPeer(ME, role, RUN, learner=A.peer_id, is_listed=is_listed), random.Random(1), dials, NOW)


def record(
    who: Identity,
    *,
    role: int = Role.VOLUNTEER,
    at: float = NOW,
    run: bytes = RUN,
    address: str = "/ip4/1.2.3.4/tcp/4001",
    is_listed: bool = False,
) -> bytes:
    addresses = (address, LISTED) if is_listed else (address,)
    return seal(who, PeerRecord(int(role), addresses, 0, 0), run=run, now=at)


def hello(
    *, role: int = Role.LEARNER, run: bytes = RUN, clock: float = NOW, height: int = 0, echo_ms: int = 0
) -> Hello:
    return Hello(wire_version.WIRE_VERSION, run, int(role), int(clock * 1000), -1, height, echo_ms)


def dialed(links: Connections) -> list[PeerId]:
    peers = [command.peer for command in links.commands if isinstance(command, Dial)]
    links.commands.clear()
    return peers


def with_learner(**config: float) -> Connections:
    links = connections(Role.VOLUNTEER, **config)  # type: ignore[arg-type]
    links.connected(A.peer_id, NOW)
    links.on_hello(hello(), A.peer_id, NOW)
    return links


def introduction_of(*others: Identity, to: Identity = ME) -> Introduction:
    return Introduction(to.public_key, tuple(other.public_key for other in others))
