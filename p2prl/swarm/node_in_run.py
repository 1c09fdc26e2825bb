"""Second phase of a node: take part in a run whose manifest is known.

Every new envelope is validated, forwarded, and reported if it is meant for this node's role. The learner also
introduces its peers to each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial

from p2prl.errors import RemoteProtocolError, StaleWorkError
from p2prl.protocol.countersignature import countersigned_head
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened, body_of, envelope_digest, open_envelope, seal
from p2prl.protocol.identity import PeerId, peer_id_of, public_key_of
from p2prl.protocol.kinds import Kind, Role
from p2prl.protocol.ledger_chain import OWNERS_STATEMENTS
from p2prl.protocol.ledger_messages import Receipts, VerdictChecks
from p2prl.protocol.link_messages import Push
from p2prl.protocol.manifests import RunManifest
from p2prl.protocol.membership_statements import OwnersStatement
from p2prl.protocol.peer_messages import Introduction
from p2prl.protocol.rollout_group import largest_group_bytes
from p2prl.protocol.signed_group import GROUP_KINDS
from p2prl.swarm import signals
from p2prl.swarm.events import EnvelopeArrived, RunKnown
from p2prl.swarm.gossip.deduplication import CountedOnce
from p2prl.swarm.gossip.envelope_check import check_envelope
from p2prl.swarm.gossip.forwarding import AUDIENCE
from p2prl.swarm.gossip.own_statements import OwnStatements
from p2prl.swarm.gossip.statement_quota import StatementQuota
from p2prl.swarm.node_core import NodeCore
from p2prl.swarm.peers.subnets import UNKNOWN, subnet_of
from p2prl.swarm.peers.topology import RELAYING, Candidate, Introductions, region_of
from p2prl.swarm.policies.sync import PolicySync
from p2prl.swarm.policies.version_download import DownloadStats
from p2prl.swarm.token_buckets import KeyedBuckets, Rate

_LOOPBACK = subnet_of("/ip4/127.0.0.1")
"""In a local run everybody is here: it tells no peer from another."""

_COUNTED = 4_096
"""The learner's receipts and checks that are remembered as counted: an hour of one a second, 1 MB."""

_NEWS_RATE = Rate(per_s=1 / 5, burst=4.0)
"""Answers with the newest version to one peer that says it is behind. It says hello every 15 s; a hello has 60 bytes,
and a head up to 100 KiB."""

_NEWS_TOTAL = Rate(per_s=100.0, burst=1_000.0)
"""The same over all peers, since keys are free: a thousand neighbors after a restart. Others hear it at their next
hello, or from another peer."""

_NEWS_PEERS = 4_096
"""Peers whose answers are counted, those that left included."""

_POLICY_KINDS = (Kind.POLICY_MANIFEST, Kind.POLICY_HEAD)

_CHECKED_KINDS = GROUP_KINDS | {Kind.LEDGER_HEAD, Kind.COUNTERSIGNATURE, *OWNERS_STATEMENTS}
"""Kinds checked as if a peer had sent them before this node publishes them: a folder may hold anything."""


class Running:
    """Takes part in a run whose manifest is known."""

    def __init__(self, core: NodeCore, manifest_envelope: Opened, now: float) -> None:
        """Raises `RemoteProtocolError` unless this is the run manifest behind the join link."""
        manifest = body_of(manifest_envelope, RunManifest)
        if manifest_envelope.digest != core.local.run or manifest_envelope.author != manifest.learner:
            raise RemoteProtocolError("run manifest does not match the join link")
        manifest.check()
        self._core = core
        self._learner_key = manifest.learner
        self._group_bytes = largest_group_bytes(manifest.sampling.group_size, manifest.sampling.max_new_tokens)
        core.local.learner = peer_id_of(manifest.learner)
        self._policies = PolicySync(manifest, core.relay, core.gossip, core.config)
        self._news = KeyedBuckets(_NEWS_RATE, capacity=_NEWS_PEERS)
        self._news_total = KeyedBuckets(_NEWS_TOTAL, capacity=1)
        self._counted = CountedOnce(_COUNTED)
        self._statements = StatementQuota()
        self._own_statements = OwnStatements(
            (*core.config.delegations, *core.config.revocations, *core.config.memberships)
        )
        self._introductions = Introductions(core.rng, now) if core.config.role is Role.LEARNER else None
        core.gossip.pin(manifest_envelope.raw, manifest_envelope.digest)
        core.events.append(RunKnown(manifest, manifest_envelope.raw))
        for peer, link in core.connections.links.items():
            if link.role is not None:
                core.register_role(peer, link.role)
        core.report_roles()
        self._policies.fetch_files(now)
        core.local.changed = True

    def hold(self, policies: Iterable[bytes], now: float) -> None:
        """Serve versions whose weights are on disk, by their manifests' envelopes."""
        for raw in policies:
            self._policies.hold(open_envelope(raw, now=None), now)
        self._collect()

    def on_hello(self, peer: PeerId, role: Role, newest_version: int, now: float) -> None:
        """Push the newest version's manifest to a peer that is behind, and the final head of a run that has ended."""
        newest, head = self._policies.newest, self._policies.head
        if newest is not None and newest.manifest.version > newest_version and self._may_tell(peer, now):
            first = () if head is None else (head.raw,)  # it lists the patches that lead to the version
            may_answer = partial(self._core.answers.take, peer, now=now)
            self._core.gossip.tell(newest.digest, (*first, newest.raw), peer, may_answer)
        if final_head := self._core.final_head.for_peer(peer, role, now):
            self._core.send(peer, Push(final_head))
        for envelope in self._core.witnesses.for_peer(peer, role):
            if envelope != final_head:
                self._core.send(peer, Push(envelope))

    def on_push(self, raw: bytes, source: PeerId, now: float) -> None:
        """Check a new envelope, then forward it and report it if it is meant for this node's role."""
        core, name = self._core, envelope_digest(raw)
        if not core.gossip.is_new(name):
            core.on_repeated(name, raw, source, now)
            return
        opened = open_envelope(raw, now=now)
        self._admit(opened, now)
        # After the check of the owner's signature: a forged statement must not use up the owner's places.
        if isinstance(opened.body, OwnersStatement) and not self._passes(opened, source, now):
            raise StaleWorkError("too many owners' statements; this one will be sent again")
        if opened.kind is Kind.VERDICT and not core.verdicts.admits(opened, source, now):
            core.gossip.set_aside(name)
            return
        if opened.kind is Kind.COUNTERSIGNATURE and not self._is_witness(opened, now):
            core.gossip.set_aside(name)
            return
        if opened.kind is Kind.GROUP_HEADER:
            core.groups.note(opened, source)
        core.connections.was_useful(source, now)
        self._pass_on(opened, source)
        self._release_verdicts()

    def admit_own(self, opened: Opened, now: float) -> None:
        """Take in an own version, head, group or statement, or the learner's ledger head.

        Raises `StaleWorkError` when a version or head is too old, `RemoteProtocolError` when no peer would accept it.
        """
        if opened.kind in _POLICY_KINDS:
            self._admit_policy(opened, now, own=True)
        elif opened.kind in _CHECKED_KINDS:
            self._admit(opened, now)
            if opened.kind is Kind.COUNTERSIGNATURE:
                self._is_witness(opened, now)
        else:
            self._note(opened)
        self._release_verdicts()

    @property
    def is_settled(self) -> bool:
        """Whether nothing is being downloaded, or waited for."""
        return self._policies.is_settled

    def retry(self, now: float) -> None:
        """Drop stalled downloads and notice a silent learner."""
        self._policies.drop_stalled(now)
        self._policies.check_freshness(now)

    def handle_timer(self, now: float) -> None:
        """Send own statements; as the learner, introduce peers to each other."""
        self._send_statements(now)
        if self._introductions is None or now < self._introductions.next_deadline():
            return
        core = self._core
        swarm = {
            peer: Candidate(
                core.relay.upload_of(peer),
                region_of(core.connections.discovery.addresses_of(peer)),
                link.subnet if link.subnet not in (UNKNOWN, _LOOPBACK) else None,
                core.connections.standings.is_known(peer, now),
            )
            for peer, link in core.connections.links.items()
            if link.role in RELAYING
        }
        for peer, others in self._introductions.take_due(swarm, now):
            message = Introduction(public_key_of(peer), tuple(map(public_key_of, others)))
            core.send(peer, Push(seal(core.local.identity, message, run=core.local.run, now=now)))

    def next_deadline(self) -> float:
        """When own statements or the learner's introductions are due next."""
        introductions = math.inf if self._introductions is None else self._introductions.next_deadline()
        own = self._own_statements.next_deadline() if self._core.has_peers() else math.inf
        return min(introductions, own)

    def advance(self, now: float) -> None:
        """Handle completed downloads and start the next one."""
        self._policies.advance(now)
        self._collect()

    def order(self, order: signals.RunOrder, now: float) -> None:
        """Act on an order of the role."""
        match order:
            case signals.RunAccepted(disk_bytes=disk_bytes):
                self._policies.accept(disk_bytes, now)
            case signals.FetchPolicy(digest=name):
                self._policies.request(Digest(name), now)
            case signals.StartFrom(weights_digest=name):
                self._policies.start_from(Digest(name) if name else None, now)
            case signals.VersionRebuilt(digest=name, ok=ok):
                self._policies.rebuilt(Digest(name), ok, now)

    def download_stats(self) -> DownloadStats:
        """Download volume of completed versions."""
        return self._policies.stats

    def transfer_progress(self) -> tuple[int, int, int]:
        """(version, chunks held, chunks in all) of the newest version's download; version −1 when idle."""
        return self._policies.progress()

    def file_progress(self) -> tuple[int, int]:
        """(bytes held, bytes in all) of the run's files and data."""
        return self._policies.file_progress()

    def _passes(self, opened: Opened, source: PeerId, now: float) -> bool:
        """Count an owner's statement, if the quota allows it."""
        connections = self._core.connections
        is_known = connections.is_known(source, now)
        place = source if is_known else connections.subnets.of(source)
        return self._statements.allows(opened, source, now, place=place)

    def _may_tell(self, peer: PeerId, now: float) -> bool:
        """Count an answer with the newest version, if the limits allow it."""
        return self._news.take(peer, now) and self._news_total.take(None, now)

    def _pass_on(self, opened: Opened, source: PeerId) -> None:
        """Forward an envelope, and report it if it is meant for this node's role."""
        core = self._core
        core.gossip.spread(opened, source=source)
        if core.config.role in AUDIENCE[opened.kind]:
            core.events.append(EnvelopeArrived(opened, source))

    def _is_witness(self, opened: Opened, now: float) -> bool:
        """Keep a checked countersignature, unless its author or those without standing send too many."""
        head = countersigned_head(opened, run=self._core.local.run, learner=self._learner_key)
        known = self._core.verdicts.is_known(opened.author, now)
        return self._core.witnesses.admits(opened, head, now, is_known=known)

    def _release_verdicts(self) -> None:
        """Pass on the verdicts that waited for their group."""
        for opened, source in self._core.verdicts.take_released():
            self._pass_on(opened, source)

    def _send_statements(self, now: float) -> None:
        core = self._core
        if self._own_statements.next_deadline() == math.inf:  # there are none
            return
        roles = dict(core.roles())
        for statement in self._own_statements.take_due(now, linked=bool(roles), learner_linked="learner" in roles):
            opened = open_envelope(seal(core.local.identity, statement, run=core.local.run, now=now), now=None)
            core.gossip.spread(opened, source=None)

    def _admit(self, opened: Opened, now: float) -> None:
        """Check and take in an envelope before it is forwarded. Raises `RemoteProtocolError`."""
        core = self._core
        check_envelope(opened, run=core.local.run, learner=self._learner_key, group_bytes=self._group_bytes)
        core.final_head.note_head(opened, now)
        core.witnesses.note_head(opened)
        self._note(opened)
        if opened.kind in _POLICY_KINDS:
            self._admit_policy(opened, now, own=False)
        elif opened.kind is Kind.INTRODUCTION:
            core.connections.discovery.on_introduction(body_of(opened, Introduction), opened.sent_ms, now)

    def _note(self, opened: Opened) -> None:
        """Remember which groups are known and stored, and count the learner's receipts and checks, each once."""
        core = self._core
        core.gossip.note_receipt(opened)
        if isinstance(opened.body, (Receipts, VerdictChecks)) and opened.author == self._learner_key:
            if not self._counted.is_first(opened.digest, opened.sent_ms):
                return
            if isinstance(opened.body, Receipts):
                core.connections.standings.note_receipts(opened.body.receipts, opened.sent_ms / 1000)
        core.verdicts.note(opened)

    def _admit_policy(self, opened: Opened, now: float, *, own: bool) -> None:
        try:
            if opened.kind is Kind.POLICY_HEAD:
                self._policies.admit_head(opened, now)
            else:
                self._policies.admit(opened, now, own=own)
        finally:
            self._collect()

    def _collect(self) -> None:
        """Pass on the events of the policies, and note the newest version."""
        core = self._core
        core.events.extend(self._policies.events)
        self._policies.events.clear()
        newest = self._policies.newest
        if newest is not None:
            core.local.newest_version = newest.manifest.version
            core.final_head.note_policy(newest.manifest.step)
