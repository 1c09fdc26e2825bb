"""Targets of the wire: every kind in the registries of messages, envelopes, frames, directory records, the ledger."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from p2prl.config.requirements import requirements_of
from p2prl.errors import IdentityError, StaleWorkError
from p2prl.net.transports import framing
from p2prl.protocol import frames, limits
from p2prl.protocol.delegation import sign_delegation, sign_revocation
from p2prl.protocol.envelope import SIGNED_MESSAGES, Opened, open_envelope
from p2prl.protocol.identity import Identity, peer_id_of
from p2prl.protocol.kinds import Kind, Role
from p2prl.protocol.ledger_chain import LEDGER_KINDS, OWNERS_STATEMENTS, append
from p2prl.protocol.ledger_messages import Countersignature, LedgerHead
from p2prl.protocol.link_messages import LINK_MESSAGES
from p2prl.protocol.manifests import PolicyManifest, RunManifest, blob_of
from p2prl.protocol.membership_statements import OwnersStatement, sign_membership, sign_team_name
from p2prl.protocol.peer_messages import PeerRecord
from p2prl.protocol.policy_head import PolicyHead
from p2prl.protocol.rollout_group import GroupHeader, RolloutGroup, largest_group_bytes
from p2prl.protocol.signed_group import read_group
from p2prl.scoreboard.documents.ranked_leaderboard import leaderboard_document
from p2prl.scoreboard.documents.team_view import team_document, teams_document
from p2prl.scoreboard.ledger.known_run import KnownRun, open_run_manifest
from p2prl.scoreboard.ledger.ledger_fold import BoardState
from p2prl.scoreboard.ledger.ledger_sources import Snapshot
from p2prl.scoreboard.ledger.signed_head import signed_head_of
from p2prl.swarm.gossip.envelope_check import check_envelope
from p2prl.tasks.scorers.spec import parse_spec
from p2prl_lab.testing.fuzz import mutations
from p2prl_lab.testing.fuzz.node_harness import NodeHarness
from p2prl_lab.testing.fuzz.target import PROTOCOL_ERRORS, Target
from p2prl_lab.testing.fuzz.values import TEXTS, integer, value_of
from p2prl_lab.testing.fuzz.vector_world import LEARNER, NOW, VOLUNTEER, VectorWorld

_OUTSIDE_GOSSIP = frozenset({Kind.RUN_MANIFEST, Kind.PEER_RECORD})
_CHANGES = (mutations.of_msgpack, mutations.of_msgpack, mutations.of_bytes)
_LATE = (*PROTOCOL_ERRORS, StaleWorkError)


def wire_targets(world: VectorWorld) -> Iterator[Target]:
    """One target for each kind on its own and one through a node, and those that read several kinds."""
    for kind in LINK_MESSAGES:
        yield _link_target(world, kind)
    for kind in SIGNED_MESSAGES:
        yield _signed_target(world, kind)
    for kind in (*LINK_MESSAGES, *SIGNED_MESSAGES):
        yield _node_target(world, kind)
    for kind in LEDGER_KINDS:
        yield _ledger_target(world, kind)
    examples = tuple(world.frames.values())
    yield Target(
        name="frames",
        decode=_unpacked,
        examples=(*examples, b"".join(examples), *(e * 3 for e in examples)),
        share=12.0,
    )
    yield Target(
        name="envelope",
        decode=partial(open_envelope, now=NOW),
        examples=tuple(world.envelopes.values()),
        changes=_CHANGES,
        allowed=_LATE,
        share=2.0,
    )
    yield Target(
        name="frame length",
        decode=lambda data: framing.frame_length(data[:4].ljust(4, b"\0")),
        examples=(framing.header(b"frame"),),
    )
    harness = NodeHarness(world)
    record = world.envelopes[Kind.PEER_RECORD]
    yield Target(name="directory: envelope", decode=harness.record, examples=(record,), changes=_CHANGES, allowed=())
    yield Target(
        name="directory: peer_record",
        decode=lambda data: harness.record(world.sealed(Kind.PEER_RECORD, data)),
        examples=(world.bodies[Kind.PEER_RECORD],),
        changes=_CHANGES,
        make=_maker(world, Kind.PEER_RECORD),
        allowed=(),
    )
    yield _group_body(world)


def _unpacked(data: bytes) -> object:
    return list(frames.unpack(data))


def _maker(world: VectorWorld, kind: Kind) -> Callable[[random.Random], bytes]:
    """Structured bodies of a kind."""
    body, pool = (LINK_MESSAGES | SIGNED_MESSAGES)[kind], world.pool
    if kind is Kind.CHUNK:
        return lambda rng: rng.randbytes(rng.choice((0, 1, 4096, 5_000)))
    if kind is Kind.COUNTERSIGNATURE:
        of_head = _maker(world, Kind.LEDGER_HEAD)
        return lambda rng: msgspec.msgpack.encode(Countersignature(world.sealed(Kind.LEDGER_HEAD, of_head(rng))))
    if kind in OWNERS_STATEMENTS:
        return lambda rng: msgspec.msgpack.encode(_statement(kind, rng) or value_of(body, rng, pool))
    return lambda rng: msgspec.msgpack.encode(value_of(body, rng, pool))


def _statement(kind: Kind, rng: random.Random) -> OwnersStatement | None:
    """A statement that its owner signed, with any numbers; None where no owner may sign them."""
    owner, machine = rng.choice((LEARNER, Identity(rng.randbytes(16)))), rng.choice((VOLUNTEER, LEARNER)).public_key
    serial, first, last = sorted(abs(integer(rng)) for _ in range(3))
    try:
        if kind is Kind.REVOCATION:
            return sign_revocation(owner, machine, serial=serial, from_ms=first)
        if kind is Kind.MEMBERSHIP:
            name = sign_team_name(Identity(rng.randbytes(16)), rng.choice(("Red Pandas", *TEXTS)), serial=first)
            return sign_membership(rng.choice((owner, VOLUNTEER)), rng.choice((None, name)), serial=serial)
        return sign_delegation(owner, machine, serial=serial, not_before_ms=first, expires_ms=last, name="attic")
    except (IdentityError, OverflowError):
        return None


def _framed(kind: Kind, body: bytes) -> bytes:
    return struct.pack("<BI", kind, len(body)) + body


def _link_target(world: VectorWorld, kind: Kind) -> Target:
    return Target(
        name=f"link: {kind.name.lower()}",
        decode=lambda data: _unpacked(_framed(kind, data)),
        examples=(world.frames[kind][5:],),
        changes=_CHANGES,
        make=_maker(world, kind),
        share=4.0,
    )


def _signed_target(world: VectorWorld, kind: Kind) -> Target:
    manifest = msgspec.msgpack.decode(world.bodies[Kind.RUN_MANIFEST], type=RunManifest)
    most = largest_group_bytes(manifest.sampling.group_size, manifest.sampling.max_new_tokens)

    def decode(data: bytes) -> None:
        opened = open_envelope(world.sealed(kind, data), now=NOW)
        if kind not in _OUTSIDE_GOSSIP:
            check_envelope(opened, run=world.run, learner=LEARNER.public_key, group_bytes=most)
        _check(opened, manifest, world)

    return Target(
        name=f"signed: {kind.name.lower()}",
        decode=decode,
        examples=(world.bodies[kind],),
        changes=_CHANGES,
        make=_maker(world, kind),
    )


def _check(opened: Opened, manifest: RunManifest, world: VectorWorld) -> None:
    """The checks of a kind that gossip leaves to its readers."""
    match opened.body:
        case RunManifest():
            known = open_run_manifest(opened.raw)
            for data in known.manifest.data_sets:
                parse_spec(data.scoring)
            for role in (Role.VOLUNTEER, Role.VALIDATOR, Role.SEEDER):
                requirements_of(known.manifest, role).most_written(2)
        case PolicyManifest() as policy:
            policy.check(weight_bytes=manifest.weight_bytes)
        case PolicyHead() as head:
            head.check(sent_ms=opened.sent_ms)
        case PeerRecord() as record:
            record.check()
        case LedgerHead():
            signed_head_of(KnownRun(manifest, world.run, b""), opened)
        case _:
            pass


def _node_target(world: VectorWorld, kind: Kind) -> Target:
    harness = NodeHarness(world, knows_run=kind is not Kind.RUN_MANIFEST)
    is_link = kind in LINK_MESSAGES

    def decode(data: bytes) -> None:
        harness.receive(_framed(kind, data) if is_link else harness.pushed(world.sealed(kind, data)))

    return Target(
        name=f"node: {kind.name.lower()}",
        decode=decode,
        examples=(world.frames[kind][5:] if is_link else world.bodies[kind],),
        changes=_CHANGES,
        make=_maker(world, kind),
        allowed=(),
    )


def _ledger_target(world: VectorWorld, kind: Kind) -> Target:
    run = open_run_manifest(world.envelopes[Kind.RUN_MANIFEST])

    def decode(data: bytes) -> None:
        fold = run.new_fold()
        for envelope in (world.envelopes[Kind.RECEIPTS], world.sealed(kind, data)):
            fold.follow(append(fold.height, fold.head, envelope)[0])
        _shown(run, fold.state())

    return Target(
        name=f"ledger: {kind.name.lower()}",
        decode=decode,
        examples=(world.bodies[kind],),
        changes=_CHANGES,
        make=_maker(world, kind),
    )


def _shown(run: KnownRun, board: BoardState) -> None:
    """The tables that a board shows of a ledger."""
    snapshot = Snapshot(
        run=run,
        board=board,
        policy_version=0,
        learner_step=1,
        connected_peers=None,
        signed_height=None,
        signed_head=b"",
        finished=False,
        learner_offline_since=None,
        incident=None,
        join_link="",
        total_steps=None,
    )
    for table in ("people", "validators"):
        msgspec.json.encode(leaderboard_document(snapshot, by=table, limit=50))
    msgspec.json.encode(teams_document(snapshot, limit=50))
    for team in board.teams:
        msgspec.json.encode(team_document(snapshot, peer_id_of(team)))


def _group_body(world: VectorWorld) -> Target:
    """Bodies of groups too large for an envelope, under a header that names them."""
    example = world.bodies[Kind.ROLLOUT_GROUP]
    group = msgspec.msgpack.decode(example, type=RolloutGroup)

    def decode(data: bytes) -> object:
        padded = data if len(data) > limits.MAX_ENVELOPE_BYTES else data + bytes(limits.MAX_ENVELOPE_BYTES)
        header = GroupHeader(group.version, group.policy, group.slot, blob_of(padded, limits.GROUP_PART_BYTES))
        raw = world.sealed(Kind.GROUP_HEADER, msgspec.msgpack.encode(header))
        return read_group(raw, padded)

    long = msgspec.structs.replace(
        group.completions[0],
        tokens=bytes(4 * limits.MAX_COMPLETION_TOKENS),
        logprobs=bytes(2 * limits.MAX_COMPLETION_TOKENS),
    )
    large = msgspec.msgpack.encode(msgspec.structs.replace(group, completions=(long, long)))
    return Target(
        name="group body",
        decode=decode,
        examples=(large,),
        changes=_CHANGES,
        make=_maker(world, Kind.ROLLOUT_GROUP),
        share=0.3,
    )
