"""Rules of each message kind: whom it is sent to, and what it must be beyond a valid signature and schema.

Policy manifests and heads are also checked against the versions already known, by `p2prl.swarm.policies.sync`.
"""

from __future__ import annotations

from p2prl.errors import RemoteProtocolError
from p2prl.protocol.countersignature import countersigned_head
from p2prl.protocol.envelope import Opened, body_of
from p2prl.protocol.kinds import Kind, Role
from p2prl.protocol.ledger_chain import OWNERS_STATEMENTS
from p2prl.protocol.ledger_messages import Receipts, Verdict, VerdictChecks
from p2prl.protocol.membership_statements import OwnersStatement
from p2prl.protocol.peer_messages import Introduction, Standby
from p2prl.protocol.rollout_group import GroupHeader, RolloutGroup, check_group_size

AUDIENCE: dict[Kind, frozenset[Role]] = {
    Kind.RUN_MANIFEST: frozenset(),
    Kind.POLICY_MANIFEST: frozenset(Role),
    Kind.ROLLOUT_GROUP: frozenset({Role.LEARNER, Role.VALIDATOR}),
    Kind.STORAGE_RECEIPT: frozenset({Role.VOLUNTEER, Role.SEEDER}),
    Kind.RECEIPTS: frozenset({Role.VOLUNTEER, Role.VALIDATOR, Role.BOARD, Role.SEEDER}),
    Kind.VERDICT: frozenset({Role.LEARNER, Role.VALIDATOR, Role.BOARD}),
    Kind.VERDICT_CHECKS: frozenset({Role.VALIDATOR, Role.BOARD}),
    Kind.LEDGER_HEAD: frozenset(Role),
    Kind.COUNTERSIGNATURE: frozenset(Role),
    Kind.POLICY_HEAD: frozenset(Role),
    Kind.PEER_RECORD: frozenset(),
    Kind.INTRODUCTION: frozenset(),
    Kind.GROUP_HEADER: frozenset({Role.LEARNER, Role.VALIDATOR}),
    Kind.DELEGATION: frozenset({Role.LEARNER}),
    Kind.REVOCATION: frozenset({Role.LEARNER}),
    Kind.MEMBERSHIP: frozenset({Role.LEARNER}),
    Kind.STANDBY: frozenset({Role.VOLUNTEER, Role.SEEDER}),
}
"""Roles a message kind is meant for. Peer records live in the directory, run manifests are asked for by digest, and an
introduction is pushed to the one peer it names. Owners' statements reach everybody else in the ledger. A learner gets
heads of its own run that another machine has signed. Seeders pass receipts and standbys on: some homes reach nobody
but a seeder, which carries their groups to the learner."""

PUSHED_BY_AUTHOR: dict[Kind, frozenset[Role]] = {
    **AUDIENCE,
    Kind.ROLLOUT_GROUP: frozenset({Role.LEARNER}),
    Kind.GROUP_HEADER: frozenset({Role.LEARNER}),
}
"""Roles to which an author pushes without offering first. Validators take a sample: groups are only offered to them."""

PUSHED_BY_FORWARDERS = frozenset({Kind.POLICY_MANIFEST, Kind.POLICY_HEAD})
"""Kinds that every peer wants at once: forwarders push them too."""

BOUND_FOR_LEARNER = frozenset({Kind.ROLLOUT_GROUP, Kind.GROUP_HEADER, Kind.VERDICT, *OWNERS_STATEMENTS})
"""Kinds that must reach a learner: a node without a link to one hands them to a few carriers."""


_LEARNER_ONLY = frozenset(
    {Kind.STORAGE_RECEIPT, Kind.RECEIPTS, Kind.VERDICT_CHECKS, Kind.LEDGER_HEAD, Kind.INTRODUCTION, Kind.STANDBY}
)
"""Kinds that only the run's learner signs, besides its manifests."""


def check_envelope(opened: Opened, *, run: bytes, learner: bytes, group_bytes: int) -> None:
    """Raise `RemoteProtocolError` unless an envelope of this run may be forwarded.

    `run` is the run manifest's digest, `learner` the public key that signed it, and `group_bytes` the size of the
    largest group that the run's sampling settings allow.
    """
    if opened.run != run:
        raise RemoteProtocolError("envelope of another run")
    if opened.kind in _LEARNER_ONLY:
        if opened.author != learner:
            raise RemoteProtocolError(f"{opened.kind.name.lower()} not signed by the run's learner")
        if isinstance(opened.body, (Receipts, VerdictChecks, Introduction)):
            opened.body.check()
        elif isinstance(opened.body, Standby):
            opened.body.check(sent_ms=opened.sent_ms)
    elif isinstance(opened.body, (RolloutGroup, GroupHeader)):
        check_group_size(opened.body, envelope_bytes=len(opened.raw), most=group_bytes)
        opened.body.check()
    elif isinstance(opened.body, OwnersStatement):
        opened.body.check_sent_by(opened.author)
    elif opened.kind is Kind.COUNTERSIGNATURE:
        countersigned_head(opened, run=run, learner=learner)
    elif opened.kind is Kind.VERDICT:
        body_of(opened, Verdict).check()
    elif opened.kind not in (Kind.POLICY_MANIFEST, Kind.POLICY_HEAD):
        raise RemoteProtocolError(f"a {opened.kind.name.lower()} is not gossiped")
