"""Signs that another machine runs this learner: heads that the run's key has signed, and this journal does not know.

After a promotion there are two machines with the run's key. The one that is behind must stop before it signs a second
version or ledger entry in the place of one that peers have. Peers send it the newest heads when it links with them.
"""

from __future__ import annotations

from p2prl.errors import LEARNER_ELSEWHERE_REMEDY, IdentityError
from p2prl.learner.journal.journal import Journal
from p2prl.protocol import ledger_chain
from p2prl.protocol.envelope import open_envelope
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_messages import LedgerHead
from p2prl.protocol.manifests import PolicyManifest
from p2prl.protocol.policy_head import PolicyHead

_HEADS = (Kind.POLICY_MANIFEST, Kind.POLICY_HEAD, Kind.LEDGER_HEAD)


def check_own(envelope: bytes, journal: Journal) -> None:
    """Raise `IdentityError` when the run's key has signed, in this checked envelope, what this learner has not."""
    if envelope[1] not in _HEADS:  # its second byte is the kind: groups need not be opened for it
        return
    opened = open_envelope(envelope, now=None)
    match opened.body:
        case PolicyManifest(version=version):
            known = journal.policies.was_published(version, opened.digest)
            what = f"version {version:,}"
        case PolicyHead(version=version, manifest=manifest):
            known = journal.policies.was_published(version, manifest)
            what = f"version {version:,}"
        case LedgerHead(height=height, head=head):
            known = _has_entry(journal, height, head)
            what = f"a ledger of {height:,} entries"
        case _:
            return
    if not known:
        raise IdentityError(
            f"another machine runs this learner: the run's key has signed {what}, which this folder does not have",
            remedy=LEARNER_ELSEWHERE_REMEDY,
        )


def _has_entry(journal: Journal, height: int, head: bytes) -> bool:
    if height == 0:
        return True
    entries = journal.ledger.entries(height - 1, 1)
    return bool(entries) and ledger_chain.entry_digest(entries[0]) == head
