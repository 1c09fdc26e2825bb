"""Audience of each message kind: the roles it is sent to, and whether it is pushed or offered first."""

from __future__ import annotations

from p2prl.protocol.kinds import Kind, Role
from p2prl.protocol.ledger_chain import OWNERS_STATEMENTS

AUDIENCE: dict[Kind, frozenset[Role]] = {
    Kind.RUN_MANIFEST: frozenset(),
    Kind.POLICY_MANIFEST: frozenset(Role),
    Kind.ROLLOUT_GROUP: frozenset({Role.LEARNER, Role.VALIDATOR}),
    Kind.STORAGE_RECEIPT: frozenset({Role.VOLUNTEER}),
    Kind.RECEIPTS: frozenset({Role.VOLUNTEER, Role.VALIDATOR, Role.BOARD}),
    Kind.VERDICT: frozenset({Role.LEARNER, Role.VALIDATOR, Role.BOARD}),
    Kind.VERDICT_CHECKS: frozenset({Role.VALIDATOR, Role.BOARD}),
    Kind.LEDGER_HEAD: frozenset({Role.VOLUNTEER, Role.VALIDATOR, Role.BOARD, Role.SEEDER}),
    Kind.COUNTERSIGNATURE: frozenset(Role),
    Kind.POLICY_HEAD: frozenset(Role),
    Kind.PEER_RECORD: frozenset(),
    Kind.INTRODUCTION: frozenset(),
    Kind.GROUP_HEADER: frozenset({Role.LEARNER, Role.VALIDATOR}),
    Kind.DELEGATION: frozenset({Role.LEARNER}),
    Kind.REVOCATION: frozenset({Role.LEARNER}),
    Kind.MEMBERSHIP: frozenset({Role.LEARNER}),
}
"""Roles a message kind is meant for. Peer records live in the directory, run manifests are asked for by digest, and an
introduction is pushed to the one peer it names. Owners' statements reach everybody else in the ledger."""

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
