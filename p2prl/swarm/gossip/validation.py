"""Validation of gossiped envelopes: the rules of each message kind, beyond the signature and schema.

Policy manifests and heads are also checked against the versions already known, by `p2prl.swarm.policies.sync`.
"""

from __future__ import annotations

from p2prl.errors import RemoteProtocolError
from p2prl.protocol.envelope import Opened, body_of
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_messages import Receipts, Verdict
from p2prl.protocol.peer_messages import Introduction
from p2prl.protocol.rollout_group import RolloutGroup

_LEARNER_ONLY = frozenset({Kind.STORAGE_RECEIPT, Kind.RECEIPTS, Kind.LEDGER_HEAD, Kind.INTRODUCTION})
"""Kinds that only the run's learner signs, besides its manifests."""


def check_envelope(opened: Opened, *, run: bytes, learner: bytes) -> None:
    """Raise `RemoteProtocolError` unless an envelope of this run may be forwarded.

    `run` is the run manifest's digest and `learner` the public key that signed it.
    """
    if opened.run != run:
        raise RemoteProtocolError("envelope of another run")
    if opened.kind in _LEARNER_ONLY:
        if opened.author != learner:
            raise RemoteProtocolError(f"{opened.kind.name.lower()} not signed by the run's learner")
        if isinstance(opened.body, (Receipts, Introduction)):
            opened.body.check()
    elif opened.kind is Kind.ROLLOUT_GROUP:
        body_of(opened, RolloutGroup).check()
    elif opened.kind is Kind.VERDICT:
        body_of(opened, Verdict).check()
    elif opened.kind not in (Kind.POLICY_MANIFEST, Kind.POLICY_HEAD):
        raise RemoteProtocolError(f"a {opened.kind.name.lower()} is not gossiped")
