"""Floods of keys against one node's tables: links, incoming streams, a directory key, and a newcomer's neighbors.

Each function simulates one flood from a seed, with the product's own rules, on virtual time. The attacker holds every
place before an honest newcomer comes, and asks again for each one that it loses.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from p2prl.net.transports import framing
from p2prl.net.transports.hivemind.directory_records import HeldRecord, displaced
from p2prl.net.transports.stream_table import StreamId, StreamTable
from p2prl.protocol import frames, limits, wire_version
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Role
from p2prl.protocol.link_messages import Hello
from p2prl.protocol.peer_messages import PeerRecord
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl.sim.virtual_time import START
from p2prl.swarm.events import Dial, Event
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl.swarm.peers.connections import Connections
from p2prl.swarm.peers.connections_config import ConnectionsConfig
from p2prl.swarm.peers.local_peer import LocalPeer
from p2prl.swarm.peers.subnets import subnet_of
from p2prl_lab.sim.memory_blobs import MemoryBlobs

_HELLO_S = 5.0
"""How often each key of a flood says hello, whether it has a link or not."""

_REDIAL_S = 3.0
"""How often the honest newcomer dials the learner while it has no link, as the product does."""

_STEP_S = 0.5
"""Resolution of the simulations that have no network."""


@dataclass(frozen=True, slots=True)
class LinkFlood:
    """Outcome of a flood of links at the learner."""

    linked_after_s: float | None
    """From the newcomer's first dial until the learner counts it; None for never."""
    linked_share: float
    """Share of the time after that in which it stayed linked."""
    links: int
    """Links of the learner at the end."""


def flood_links(
    seed: int,
    *,
    keys: int = 1_024,
    subnets: int = 1,
    same_subnet: bool = True,
    max_links: int = 1_024,
    watched_s: float = 60.0,
) -> LinkFlood:
    """`keys` attackers of `subnets` subnets fill the learner's links; after 30 s an honest volunteer joins.

    `same_subnet` puts the volunteer into the attackers' subnet, as on one machine.
    """
    network, key = VirtualNetwork(seed), identity_of("learner")
    manifest = seal(key, run_manifest_of(key), run=bytes(32), now=START)
    run = envelope_digest(manifest)

    def add(name: str, role: Role, *, dialable: bool = True) -> PeerId:
        identity = identity_of(name)

        def make(now: float, rng: random.Random) -> Node:
            config = NodeConfig(role=role, connections=ConnectionsConfig(max_links=max_links))
            node = Node(identity, run, MemoryBlobs(), rng, config, now)
            if role is Role.LEARNER:
                node.begin(manifest)
            return node

        network.host(identity.peer_id, run, make, _ignore, dialable=dialable)
        return identity.peer_id

    learner = add("learner", Role.LEARNER)
    rng = random.Random(f"flood/{seed}")  # noqa: S311 - simulated
    for index in range(keys):
        _add_flooder(network, learner, run, index, _address(index % subnets), rng.random() * _HELLO_S)
    network.run_for(30.0)
    honest = identity_of("honest").peer_id
    network.place(honest, _address(0 if same_subnet else subnets))
    add("honest", Role.VOLUNTEER, dialable=False)  # the learner cannot choose it: it is at home behind a router
    node, begun = network.node(learner), network.now
    linked_at, linked, steps = None, 0, 0
    while network.now < begun + watched_s:
        is_linked = node.link_class(honest, network.now) is not None
        if is_linked and linked_at is None:
            linked_at = network.now
        if linked_at is not None:
            linked, steps = linked + is_linked, steps + 1
        if round((network.now - begun) / _STEP_S) % round(_REDIAL_S / _STEP_S) == 0:
            network.connect(honest, learner)
        network.run_for(_STEP_S)
    after = None if linked_at is None else linked_at - begun
    return LinkFlood(after, linked / steps if steps else 0.0, sum(count for _, count in node.roles()))


def _add_flooder(network: VirtualNetwork, target: PeerId, run: Digest, index: int, address: str, first: float) -> None:
    peer = identity_of(f"flood{index}").peer_id
    network.add_stranger(peer, address)

    def greet() -> None:
        hello = Hello(wire_version.WIRE_VERSION, run, int(Role.VOLUNTEER), int(network.now * 1000), -1, 0)
        network.inject(peer, target, frames.pack(hello))
        network.after(_HELLO_S, greet)

    network.after(first, greet)


@dataclass(frozen=True, slots=True)
class StreamFlood:
    """Outcome of a flood of streams with half frames."""

    served_after_s: float | None
    """Until an honest newcomer's first frame was complete; None for never."""
    peak_held_bytes: int
    """Most bytes of unfinished frames at one time."""
    peak_streams: int


def flood_streams(seed: int, *, keys: int = 128, linked: bool = False, max_links: int = 1_024) -> StreamFlood:
    """`keys` attackers open all the streams they may, begin the largest frame in each and never end it.

    Each opens another stream twice a second while some of its own are dropped. `linked` gives them links, so that they
    may begin chunks. After 5 s an honest newcomer opens a stream every 3 s until one takes a frame, which needs 1 s,
    within 60 s.
    """
    table = StreamTable(max_streams=framing.max_streams(max_links))
    rng = random.Random(f"streams/{seed}")  # noqa: S311 - simulated
    importance, half = int(linked), (limits.MAX_FRAME_BYTES if linked else limits.MAX_CONTROL_FRAME_BYTES) // 2
    frame_of, ends = dict[StreamId, float](), dict[StreamId, float]()
    peak_bytes = peak_streams = 0
    honest, served_after, now = None, None, 0.0
    while served_after is None and now < 65.0:
        for stream in [stream for stream, end in ends.items() if end <= now]:
            _close(table, ends, [stream])
        for index in rng.sample(range(keys), keys):
            peer = PeerId(f"flood{index}")
            missing = framing.MAX_INBOUND_STREAMS_PER_PEER - len(table.streams_of(peer))
            for _ in range(missing if now == 0.0 else min(1, missing)):
                stream, dropped = table.open(peer, _address(0), importance, now)
                _close(table, ends, dropped)
                if stream not in dropped:
                    ends[stream] = now + framing.frame_deadline_s(2 * half)
                    _close(table, ends, table.received(stream, half))
                peak_bytes, peak_streams = max(peak_bytes, table.held_bytes), max(peak_streams, len(table))
        if honest is not None and honest in table.streams_of(PeerId("honest")) and now >= frame_of[honest] + 1.0:
            served_after = now - 5.0
        elif now >= 5.0 and (now - 5.0) % _REDIAL_S == 0.0:
            honest, dropped = table.open(PeerId("honest"), _address(0), 0, now)
            frame_of[honest] = now
            _close(table, ends, [*dropped, *table.received(honest, 200)])
        now += _STEP_S
    return StreamFlood(served_after, peak_bytes, peak_streams)


def _close(table: StreamTable, ends: dict[StreamId, float], streams: list[StreamId]) -> None:
    for stream in streams:
        table.close(stream)
        ends.pop(stream, None)


@dataclass(frozen=True, slots=True)
class DirectoryFlood:
    """Outcome of a flood of records under a run's directory key."""

    found_after_s: float | None
    """Until a reader of the directory found the newcomer's record; None for never."""
    found_share: float
    """Share of the time after that in which it was there."""
    held_bytes: int


def flood_directory(
    seed: int, *, keys: int = 768, record_bytes: int = 4_096, max_bytes: int = 3 * 1024 * 1024
) -> DirectoryFlood:
    """`keys` attackers of one subnet fill a directory key with records of the largest size.

    They write each record again every 3 s. An honest newcomer of the same subnet writes one of 400 bytes every 3 s.
    """
    rng = random.Random(f"directory/{seed}")  # noqa: S311 - simulated
    held: dict[str, HeldRecord] = {}
    subnet, found_after, found, steps = subnet_of(_address(0)), None, 0, 0

    def write(owner: str, size_bytes: int) -> None:
        record = HeldRecord(size_bytes, subnet, 0)
        others = {name: other for name, other in held.items() if name != owner}
        for gone in displaced(others, record, max_bytes=max_bytes, rng=rng) or ():
            del held[gone]
        held[owner] = record

    for index in range(keys):
        write(f"flood{index}", record_bytes)
    for round_ in range(20):
        write("honest", 400)
        for index in range(keys):
            if f"flood{index}" not in held:
                write(f"flood{index}", record_bytes)
        is_held = "honest" in held
        if is_held and found_after is None:
            found_after = round_ * _REDIAL_S
        found, steps = found + is_held, steps + (found_after is not None)
    total = sum(record.size_bytes for record in held.values())
    return DirectoryFlood(found_after, found / max(1, steps), total)


@dataclass(frozen=True, slots=True)
class Eclipse:
    """Links of a newcomer that attackers try to surround."""

    honest_links: int
    """Links to honest peers that it dialed itself."""
    attacker_links: int
    """Links to attackers that it dialed itself; those that attackers opened displace none of its own."""


def surround_newcomer(
    seed: int, *, attackers: int = 768, attacker_subnets: int = 4, honest: int = 40, inbound: int = 512
) -> Eclipse:
    """A newcomer reads the directory of a run, in which most records are attackers', while `inbound` others dial it.

    Attackers answer at once. An honest peer answers the next second, three times out of four. Each honest peer has a
    subnet of its own; nobody introduces anybody, as when the learner cannot be reached. It is over after 60 s.
    """
    rng = random.Random(f"eclipse/{seed}")  # noqa: S311 - simulated
    run = Digest(bytes(32))
    peers = {identity_of(f"attacker{index}"): _address(index % attacker_subnets) for index in range(attackers)}
    good = {identity_of(f"honest{index}"): _address(attacker_subnets + index) for index in range(honest)}
    names = {identity.peer_id for identity in good}
    records = [
        seal(identity, PeerRecord(int(Role.VOLUNTEER), (address,), 0, int(START * 1000)), run=run, now=START)
        for identity, address in {**peers, **good}.items()
    ]
    me = LocalPeer(identity_of("newcomer"), Role.VOLUNTEER, run)
    links = Connections(me, rng, ConnectionsConfig(), START)
    for index in range(inbound):
        peer = PeerId(f"inbound{index}")
        links.subnets.note(peer, _address(index % attacker_subnets))
        links.connected(peer, START)
    later: list[PeerId] = []
    chosen: set[PeerId] = set()
    for second in range(60):
        now = START + second
        for link in links.links.values():
            link.heard_at = now
        for peer in later:
            if rng.random() < 0.75:
                links.connected(peer, now, dialed=True)
                chosen.add(peer)
            else:
                links.dial_failed(peer, now)
        later = []
        if second % 3 == 0:
            links.discovery.on_records(records, now)
        links.handle_timer(now)
        for command in links.commands:
            if isinstance(command, Dial) and command.peer in names:
                later.append(command.peer)
            elif isinstance(command, Dial):
                links.connected(command.peer, now, dialed=True)
                chosen.add(command.peer)
        links.commands.clear()
    own = chosen & set(links.links)
    return Eclipse(len(own & names), len(own - names))


def _address(subnet: int) -> str:
    """An address of the subnet with this number, each of another provider."""
    return f"/ip4/{11 + subnet // 256}.{subnet % 256}.0.1/tcp/4001"


def _ignore(event: Event) -> None:
    pass
