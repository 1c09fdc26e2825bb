"""Journal compatibility: a journal of the first release opens unchanged and is continued."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from p2prl.learner.journal.groups import GroupState
from p2prl.learner.journal.journal import Journal
from p2prl.protocol import ledger_chain
from p2prl.protocol.digests import Digest, digest
from tests.unit.learner.small_run import NOW, identity

FIRST_RELEASE = (Path(__file__).parents[2] / "vectors" / "journal_v1.sql").read_text()
RUN = digest("p2prl/test-run", b"")
HEAD = "bad92a3bbce47099fed9fe164b432ee75c9cd1c16c7ad6c52a1e359d3524bd48"
"""Digest of the newest ledger entry, as the first release computed it."""


def test_journal_of_the_first_release_opens(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    db = sqlite3.connect(path)
    db.executescript(FIRST_RELEASE)
    db.close()
    journal = Journal(path)
    assert journal.groups.counts() == dict.fromkeys(GroupState, 1)
    (waiting,) = journal.groups.in_state(GroupState.STORED, 9)
    (verified,) = journal.groups.in_state(GroupState.VERIFIED, 9)
    assert (waiting.raw, waiting.slot) == (b"raw0", 0)
    assert (verified.raw, verified.behavior, verified.rewards) == (b"raw1", b"bbbb", b"rrrr")
    (used,) = journal.batches.at_step(0) or []
    assert journal.groups.by_digest([used])[0].raw == b"raw2"
    assert journal.batches.groups_trained(b"p" * 32, before_step=1, most=9) == 1
    assert journal.policies.since_step(0) == [b"manifest0", b"manifest1"]
    assert (journal.ledger.height, journal.ledger.head.hex()) == (2, HEAD)

    with journal.transaction():
        journal.groups.mark_verified(waiting.digest, behavior=b"b", rewards=b"r")
        journal.batches.begin(1, [waiting.digest])
    head: Digest = ledger_chain.GENESIS
    for height, raw in enumerate(journal.ledger.entries(0, 9)):
        learner = identity("learner").public_key
        opened, head = ledger_chain.follow(raw, height=height, head=head, run=RUN, learner=learner)
        assert opened.sent_ms == int(NOW * 1000)
    assert (journal.ledger.height, journal.ledger.head) == (2, head), "the verdict that waited proves nothing"
    journal.close()
