"""Floods of fresh keys against a simulated run: how much honest work is trained on while they last, and after.

Learner, volunteers and nodes are the product's own, on virtual time (`p2prl.sim.swarm`), and a replay takes as long as
its tokens. Every flood is compared with the same run without one, over the same time. Its keys sign valid envelopes,
and reach the learner through a few links, since how many links strangers may have is the network's matter.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np

from p2prl.learner.journal.journal import Journal
from p2prl.learner.learner_paths import LearnerPaths
from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.protocol import frames, limits
from p2prl.protocol.delegation import Delegation, sign_delegation
from p2prl.protocol.envelope import seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_messages import Verdict
from p2prl.protocol.link_messages import Push
from p2prl.protocol.manifests import blob_of
from p2prl.protocol.rollout_group import Completion, EngineClass, GroupHeader, RolloutGroup
from p2prl.protocol.wire_codec import Wire
from p2prl.protocol.work_slots import SEED_RULE
from p2prl.sim.machines import identity_of
from p2prl.sim.swarm import Swarm
from p2prl.sim.swarm_config import SwarmConfig
from p2prl.sim.virtual_time import START
from p2prl.swarm.events import Event, VersionReady
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl_lab.sim.known_version import KnownVersion

_LINKS = 4
"""Links that a flood comes through."""

_WAVE_S = 5.0
"""Time between two waves of a flood."""

_STATEMENT_LASTS_MS = 24 * 3600 * 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class FloodPlan:
    """A flood and the run that it hits."""

    volunteers: int = 6
    keys: int = 50
    groups_per_key: int = 60
    begins_s: float = 200.0
    """Virtual seconds from the start. The honest volunteers are known by then."""
    lasts_s: float = 200.0
    recovery_s: float = 60.0
    """Time after the flood from which the run must be as before."""
    after_s: float = 140.0
    """Time over which that is measured."""
    step_seconds: float = 15.0
    sample_seconds: float = 6.0
    replayed_tokens_s: float = 2_000.0
    """Tokens of prefills a second: a batch of this run is about 2,500."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class FloodRow:
    """What a flood did, as shares of what the same run does without it."""

    flood: str
    honest_share_during: float
    honest_share_after: float
    newcomer_share_during: float
    """Of the groups trained on while the flood lasted, those of its keys."""


MakeGroup = Callable[[KnownVersion, Identity, int, random.Random], Wire]
"""The group of a key and a slot, as a flood makes it, or what else it signs at that turn."""


def fabricated(target: KnownVersion, key: Identity, slot: int, rng: random.Random) -> RolloutGroup:
    """The right prompt, and tokens that look right: everything but the replay passes."""
    run, manifest = target.run, target.manifest
    assignment = run.work.assign(beacon=manifest.beacon, peer=key.public_key, slot=slot)
    sampling = run.manifest.sampling
    completions = tuple(
        Completion(
            tokens=np.asarray([rng.randrange(10) for _ in range(sampling.max_new_tokens)], dtype="<u4").tobytes(),
            logprobs=np.asarray([-rng.random() for _ in range(sampling.max_new_tokens)], dtype="<f2").tobytes(),
            finished=False,
            reward=1.0,
        )
        for _ in range(sampling.group_size)
    )
    return RolloutGroup(
        version=manifest.version,
        policy=target.digest,
        slot=slot,
        task=assignment.task,
        prompt=np.asarray(assignment.prompt_ids, dtype="<u4").tobytes(),
        completions=completions,
        engine=EngineClass("transformers", "5", "float32", "cpu"),
        seconds=1.0,
        seeds=SEED_RULE,
    )


def with_evidence(target: KnownVersion, key: Identity, slot: int, rng: random.Random) -> RolloutGroup:
    """A fabricated group with as much evidence as an envelope of the run holds."""
    return msgspec.structs.replace(fabricated(target, key, slot, rng), evidence=rng.randbytes(30_000))


def one_slot(target: KnownVersion, key: Identity, slot: int, rng: random.Random) -> RolloutGroup:
    """The same slot again and again."""
    del slot
    return fabricated(target, key, 0, rng)


def honest(target: KnownVersion, key: Identity, slot: int, rng: random.Random) -> RolloutGroup:
    """Honest work: newcomers in numbers, or sybils that pay for it."""
    del rng
    return target.group(key, slot)


def unknown_verdict(target: KnownVersion, key: Identity, slot: int, rng: random.Random) -> Verdict:
    """A verdict on a group that nobody has sent."""
    del slot
    return Verdict(rng.randbytes(32), key.public_key, target.manifest.version, True, "", 48, 0, 0.0, rng.randbytes(64))


def header_without_body(target: KnownVersion, key: Identity, slot: int, rng: random.Random) -> GroupHeader:
    """The header of a large group whose parts nobody has."""
    del key
    parts = blob_of(rng.randbytes(limits.MAX_ENVELOPE_BYTES + 1), limits.GROUP_PART_BYTES)
    return GroupHeader(target.manifest.version, target.digest, slot, parts)


def owners_statement(target: KnownVersion, key: Identity, slot: int, rng: random.Random) -> Delegation:
    """The statement of one of any number of owners that the key's work is its own."""
    del target
    signed_ms = int(START * 1000) + slot
    owner = Identity(rng.randbytes(16))
    return sign_delegation(owner, key.public_key, serial=signed_ms, expires_ms=signed_ms + _STATEMENT_LASTS_MS)


FLOODS: Mapping[str, MakeGroup] = MappingProxyType(
    {
        "fabricated": fabricated,
        "newcomers": honest,
        "duplicates": one_slot,
        "evidence": with_evidence,
        "verdicts": unknown_verdict,
        "headers": header_without_body,
        "statements": owners_statement,
    }
)
"""Name → what the keys of a flood sign. Newcomers do honest work, and are no attack unless they are sybils."""


class Flood:
    """The keys of a flood and the nodes they send through."""

    def __init__(self, swarm: Swarm, plan: FloodPlan, make: MakeGroup, directory: Path) -> None:
        self._swarm = swarm
        self._plan = plan
        self._make = make
        self._rng = random.Random(f"flood/{plan.seed}")  # noqa: S311 - simulated
        self._keys = [identity_of(f"flood {plan.seed}/{number}") for number in range(plan.keys)]
        self._links = [identity_of(f"flood link {plan.seed}/{number}") for number in range(_LINKS)]
        self._store = DiskBlobStore(directory)
        self._newest: VersionReady | None = None
        self._left = self._work()
        self._sent = 0

    def start(self) -> None:
        """Begin at the plan's time."""
        self._swarm.network.at(START + self._plan.begins_s, self._join)

    def _join(self) -> None:
        run, network = self._swarm.simulated, self._swarm.network
        for link in self._links:

            def make(now: float, rng: random.Random, link: Identity = link) -> Node:
                return Node(link, run.run, self._store, rng, NodeConfig(role=Role.VOLUNTEER, keep_versions=9), now)

            network.host(link.peer_id, run.run, make, self._on_event)
            network.connect(link.peer_id, run.key.peer_id)
        network.after(_WAVE_S, self._wave)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, VersionReady):
            self._newest = event

    def _work(self) -> Iterator[tuple[Identity, int]]:
        for slot in range(self._plan.groups_per_key):
            for key in self._keys:
                yield key, slot

    def _wave(self) -> None:
        plan, network = self._plan, self._swarm.network
        left_s = START + plan.begins_s + plan.lasts_s - network.now
        if left_s <= 0.0:
            return
        version = self._newest
        if version is not None:
            weights = self._store.path(version.manifest.weights.root).read_bytes()
            target = KnownVersion(self._swarm.simulated, version.manifest, version.digest, weights)
            share = min(1.0, 1.0 - (left_s - _WAVE_S) / plan.lasts_s)
            due, self._sent = self._sent, int(share * plan.keys * plan.groups_per_key)
            for number, (key, slot) in zip(range(due, self._sent), self._left, strict=False):
                group = self._make(target, key, slot, self._rng)
                raw = seal(key, group, run=self._swarm.simulated.run, now=network.now)
                link = self._links[number % _LINKS].peer_id
                # Not published by its node, which would announce it first, and only what its own key signed.
                network.inject(link, self._swarm.simulated.key.peer_id, frames.pack(Push(raw)))
        network.after(_WAVE_S, self._wave)


def trained_groups(plan: FloodPlan, loaded: LoadedModel, directory: Path, flood: str) -> list[tuple[float, bytes]]:
    """(virtual second, peer) of each group trained on in a run; `flood` is empty for none."""
    end_s = plan.begins_s + plan.lasts_s + plan.recovery_s + plan.after_s
    config = SwarmConfig(
        volunteers=plan.volunteers,
        updates=int(end_s / plan.step_seconds) + 1,
        step_seconds=plan.step_seconds,
        sample_seconds=plan.sample_seconds,
        replayed_tokens_s=plan.replayed_tokens_s,
        max_virtual_s=end_s,
        seed=plan.seed,
    )
    swarm = Swarm(config, loaded, directory)
    if flood:
        Flood(swarm, plan, FLOODS[flood], directory / "flood").start()
    swarm.run(on_progress=lambda _: None)
    paths = LearnerPaths(directory / "learner")
    journal, trained = Journal(paths.journal), []
    for line in paths.metrics.read_text().splitlines():
        update = json.loads(line)
        digests = journal.batches.at_step(int(update["step"]) - 1) or []
        trained += [(update["time"] - START, group.peer) for group in journal.groups.by_digest(digests)]
    journal.close()
    return trained


def flood_row(
    plan: FloodPlan, flood: str, quiet: list[tuple[float, bytes]], flooded: list[tuple[float, bytes]]
) -> FloodRow:
    """The result of a flood, from the groups trained on without it and with it."""
    keys = {identity_of(f"flood {plan.seed}/{number}").public_key for number in range(plan.keys)}
    ends_s = plan.begins_s + plan.lasts_s

    def share(begin_s: float, end_s: float) -> float:
        without, with_it = (_rate(groups, keys, begin_s, end_s) for groups in (quiet, flooded))
        return with_it / without if without else 0.0

    during = [peer in keys for at, peer in flooded if plan.begins_s <= at < ends_s]
    return FloodRow(
        flood,
        share(plan.begins_s, ends_s),
        share(ends_s + plan.recovery_s, ends_s + plan.recovery_s + plan.after_s),
        sum(during) / max(1, len(during)),
    )


def _rate(groups: Sequence[tuple[float, bytes]], keys: AbstractSet[bytes], begin_s: float, end_s: float) -> float:
    """Groups of other peers than `keys` that are trained on a second, from the first update of a span to its last.

    Not over the whole span: on which side of its ends an update falls is chance.
    """
    inside = [(at, peer not in keys) for at, peer in groups if begin_s <= at < end_s]
    first, last = (min(inside)[0], max(inside)[0]) if inside else (0.0, 0.0)
    return sum(is_honest for at, is_honest in inside if at > first) / (last - first) if last > first else 0.0
