"""Check of an envelope, beyond its signature and schema, before it is passed on.

Policy manifests and heads are also checked against the versions already known, by `p2prl.swarm.policies.sync`.
"""

from __future__ import annotations

from p2prl.errors import RemoteProtocolError
from p2prl.protocol.countersignature import countersigned_head
from p2prl.protocol.envelope import Opened, body_of
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_messages import Receipts, Verdict, VerdictChecks
from p2prl.protocol.membership_statements import OwnersStatement
from p2prl.protocol.peer_messages import Introduction, Standby
from p2prl.protocol.rollout_group import GroupHeader, RolloutGroup, check_group_size

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
