"""A swarm of nodes without models or roles, large enough to show what ten thousand peers cost.

Nodes, links, gossip and chunk relay are those that run over sockets. The learner publishes random weights at every
update and signs for the groups that reach it; volunteers drawn at random publish groups without content, again until
they have a receipt, as the spool does. Three things are left out. Hellos go every ten minutes instead of every 15 s: on
a link that works they say nothing new. An envelope is verified once for all peers. And stores share one copy of the
weights.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from functools import partial

from blake3 import blake3

from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import OPENINGS, envelope_digest, seal
from p2prl.protocol.identity import Identity, PeerId
from p2prl.protocol.kinds import Kind, Role
from p2prl.protocol.ledger_messages import StorageReceipt
from p2prl.protocol.manifests import PolicyManifest, blob_of
from p2prl.protocol.rollout_group import Completion, EngineClass, RolloutGroup
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.costs import CostMeter, Tally, links_of
from p2prl.sim.link_conditions import LinkConditions, parse_delay, slow_envelopes
from p2prl.sim.machines import identity_of
from p2prl.sim.pooled_blobs import BlobPool, PooledBlobs
from p2prl.sim.swarm_config import SwarmConfig, SwarmResult, schedule_faults
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl.sim.virtual_time import START
from p2prl.swarm.events import EnvelopeArrived, Event, VersionReady
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl.swarm.peers.connections_config import ConnectionsConfig

WEIGHT_BYTES, CHUNK_BYTES = 128 * 1024, 64 * 1024
"""Size of a version, and of its chunks."""

_ARRIVALS_PER_S = 50.0
"""Volunteers that come in a second: a thousand in twenty, ten thousand in 200."""

_TURN_S = 0.02
"""Frames of a node within this time are handled together: ten times the usual, for a sixth of the processor time."""

_JOINED_S = 5.0
"""Time in which the last that came has joined."""

_QUIET = ConnectionsConfig(hello_s=600.0, silence_s=1_400.0)

_RECEIPT_S = 10.0
"""Time in which the groups of an update come, and after which the learner signs for them together: a receipt goes to
everybody."""

_AGAIN_S = 60.0
"""Time after which a volunteer without a receipt publishes its group again."""

_OPENED_BYTES = 16 * 1024 * 1024
"""Envelopes kept open: the records of 20,000 peers, and what is under way."""

_CAUGHT_UP_TURNS, _CAUGHT_UP_S = 60, 10.0


class BareSwarm:
    """A learner and its volunteers, as nodes alone.

    More than twelve attributes, because it stands for the roles of all peers at once.
    """

    def __init__(self, config: SwarmConfig) -> None:
        self._config = config
        delay = parse_delay(config.delay)
        slowed = slow_envelopes(Kind.ROLLOUT_GROUP, delay) if delay.quantile(0.5) > 0 else None
        self.network = VirtualNetwork(config.seed, links=LinkConditions(loss=config.loss, turn_s=_TURN_S), delay=slowed)
        self._rng = random.Random(f"bare swarm/{config.seed}")  # noqa: S311 - simulated, not secret
        self._key = identity_of(f"learner {config.seed}")
        self._manifest = seal(
            self._key, run_manifest_of(self._key, weight_bytes=WEIGHT_BYTES), run=bytes(32), now=START
        )
        self._run = envelope_digest(self._manifest)
        self._tally = Tally(self._key.peer_id)
        self._pool, self._store = BlobPool(), PooledBlobs(BlobPool())
        self._volunteers: dict[PeerId, Identity] = {}
        self._held: dict[PeerId, int] = {}
        """Newest version of each volunteer."""
        self._published: list[Digest] = []
        self._groups: dict[Digest, tuple[PeerId, bytes]] = {}
        """Groups whose volunteers have no receipt."""
        self._unsigned: dict[Digest, None] = {}
        """Groups that have come, often more than once: until it has signed, the learner asks all that offer them."""

    def run(self, *, on_progress: Callable[[float], None]) -> SwarmResult:
        """Let everybody come, and advance virtual time until the updates are done."""
        config, network, meter = self._config, self.network, CostMeter()
        kept_bytes, OPENINGS.limit_bytes = OPENINGS.limit_bytes, _OPENED_BYTES
        gc.disable()  # it would go through all nodes again and again while they come
        try:
            self._begin()
            network.run_for(config.volunteers / _ARRIVALS_PER_S + _JOINED_S)
            meter.joined(network.elapsed)
            gc.freeze()
            gc.enable()
            span = max(config.updates * config.step_seconds, network.elapsed)
            while network.elapsed < span:
                network.run_for(min(30.0, span - network.elapsed))
                on_progress(network.elapsed / span)
            caught_up = self._await_everyone()
        finally:
            OPENINGS.limit_bytes = kept_bytes
            gc.enable()
            gc.unfreeze()
        fetched = [network.node(peer).download_stats for peer in self._volunteers if network.is_up(peer)]
        return SwarmResult(
            trace_hash=network.trace,
            reward_before=None,
            reward_after=None,
            updates=config.updates,
            virtual_s=network.elapsed,
            messages=network.counters.frames,
            bytes=network.counters.bytes,
            staleness=(0.0, 0.0, 0.0),
            groups_verified=0,
            groups_rejected=0,
            patch_bytes=0,
            whole_bytes=sum(stats.full_bytes for stats in fetched),
            brought_bytes=sum(stats.version_bytes for stats in fetched),
            caught_up_s=caught_up,
            links=links_of(network, self._volunteers),
            groups_lost=self._tally.groups_lost(network.now),
            t95_s=self._tally.t95_s(config.volunteers),
            costs=meter.costs(config.volunteers, network.elapsed),
            source_copies=self._source_copies(),
        )

    # --- the learner -------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        config, network = self._config, self.network
        self._store = PooledBlobs(self._pool)
        self._host(self._key, Role.LEARNER, self._store, number=0)
        self._publish()
        for update in range(config.updates):
            network.at(START + (update + 1) * config.step_seconds, self._publish)
        for number in range(config.volunteers):
            identity = identity_of(f"volunteer {config.seed}/{number}")
            self._volunteers[identity.peer_id] = identity
            network.at(START + number / _ARRIVALS_PER_S, partial(self._join, identity, number + 1))
        peers = sorted(self._volunteers)
        for slot in range(config.updates * config.groups_per_update):
            update = 1 + slot // config.groups_per_update
            moment = START + update * config.step_seconds - min(_RECEIPT_S, config.step_seconds) * self._rng.random()
            network.at(moment, partial(self._deliver, self._rng.choice(peers), slot))
        schedule_faults(network, config, peers, self._key.peer_id, self._rng, restart=self._restart)

    def _say(self, body: StorageReceipt | PolicyManifest) -> bytes:
        raw = seal(self._key, body, run=self._run, now=self.network.now)
        self.network.node(self._key.peer_id).publish(raw, self.network.now)
        self.network.wake(self._key.peer_id)
        return raw

    def _publish(self) -> None:
        data, beacon = self._rng.randbytes(WEIGHT_BYTES), self._rng.randbytes(32)
        ref, version = blob_of(data, CHUNK_BYTES), len(self._published)
        self._pool.add(ref, data)
        self._store.hold(ref)
        previous = self._published[-1] if self._published else Digest(b"")
        created_ms = int(self.network.now * 1000)
        manifest = PolicyManifest(version, version, ref, blake3(data).digest(), previous, beacon, created_ms, ())
        self._published.append(envelope_digest(self._say(manifest)))

    def _sign(self) -> None:
        groups, self._unsigned = tuple(self._unsigned), {}
        self._say(StorageReceipt(groups))

    def _source_copies(self) -> float:
        sent = self.network.node(self._key.peer_id).relay_stats.sent
        return sent / (WEIGHT_BYTES * len(self._published))

    # --- volunteers --------------------------------------------------------------------------------------------

    def _join(self, identity: Identity, number: int) -> None:
        self._host(identity, Role.VOLUNTEER, PooledBlobs(self._pool), number)
        self.network.connect(identity.peer_id, self._key.peer_id)

    def _deliver(self, peer: PeerId, slot: int) -> None:
        raw = seal(self._volunteers[peer], _empty_group(slot), run=self._run, now=self.network.now)
        self._groups[name := envelope_digest(raw)] = peer, raw
        self._tally.sent(raw, self.network.now)
        self._send(name)

    def _send(self, name: Digest) -> None:
        """Publish a group now, and again until there is a receipt for it."""
        if name not in self._groups:
            return
        peer, raw = self._groups[name]
        if self.network.is_up(peer):
            self.network.node(peer).publish(raw, self.network.now)
            self.network.wake(peer)
        self.network.after(_AGAIN_S, partial(self._send, name))

    def _await_everyone(self) -> float:
        """Virtual seconds after the end until every volunteer held the last version; −1 after ten minutes without."""
        ended, newest = self.network.elapsed, len(self._published) - 1
        for _ in range(_CAUGHT_UP_TURNS):
            if all(self._held.get(peer, -1) == newest for peer in self._volunteers):
                return self.network.elapsed - ended
            self.network.run_for(_CAUGHT_UP_S)
        return -1.0

    # --- machines ----------------------------------------------------------------------------------------------

    def _host(self, identity: Identity, role: Role, store: PooledBlobs, number: int) -> None:
        config = NodeConfig(role=role, connections=_QUIET)

        def make(now: float, rng: random.Random) -> Node:
            node = Node(identity, self._run, store, rng, config, now)
            if role is Role.LEARNER:
                node.begin(self._manifest)
            return node

        peer = identity.peer_id
        # Each at home in a subnet of its own.
        self.network.place(peer, f"/ip4/{20 + number // 62_500}.{number // 250 % 250}.{number % 250}.7/tcp/4001")
        self.network.host(peer, self._run, make, partial(self._on_event, peer))

    def _restart(self, peer: PeerId) -> None:
        self.network.restart(peer)
        self.network.connect(peer, self._key.peer_id)

    def _on_event(self, peer: PeerId, event: Event) -> None:
        self._tally.on_event(peer, event, self.network.now)
        if isinstance(event, VersionReady):
            self._held[peer] = event.manifest.version
        elif isinstance(event, EnvelopeArrived) and isinstance(event.opened.body, StorageReceipt):
            for name in event.opened.body.groups:
                if self._groups.get(Digest(name), ("", b""))[0] == peer:
                    del self._groups[Digest(name)]
        elif isinstance(event, EnvelopeArrived) and peer == self._key.peer_id:
            if not self._unsigned:
                self.network.after(_RECEIPT_S, self._sign)
            self._unsigned[event.opened.digest] = None


def _empty_group(slot: int) -> RolloutGroup:
    completion = Completion(tokens=slot.to_bytes(4, "little"), logprobs=bytes(2), finished=True, reward=0.0)
    return RolloutGroup(
        version=0,
        policy=bytes(32),
        slot=slot,
        task="chain4",
        prompt=bytes(4),
        completions=(completion,) * 4,
        engine=EngineClass("none", "1", "float32", "cpu"),
        seconds=0.0,
    )
