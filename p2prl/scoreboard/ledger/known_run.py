"""The run whose ledger is read: its manifest, opened and checked."""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.errors import RemoteProtocolError
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.manifests import RunManifest
from p2prl.scoreboard.ledger.ledger_fold import LedgerFold


@dataclass(frozen=True, slots=True)
class KnownRun:
    """A run manifest that was opened and checked."""

    manifest: RunManifest
    run: Digest
    """Digest of the manifest's envelope: the run's identity."""
    raw: bytes

    def new_fold(self) -> LedgerFold:
        """A fold before the run's first entry."""
        return LedgerFold(run=self.run, learner=self.manifest.learner, parameters=self.manifest.parameters)


def open_run_manifest(raw: bytes) -> KnownRun:
    """Open and check a run manifest's envelope. Raises `RemoteProtocolError` for anything else.

    The signer must be the learner it names: every other signature of the run is checked against this manifest.
    """
    opened = open_envelope(raw, now=None)
    manifest = body_of(opened, RunManifest)
    if opened.author != manifest.learner:
        raise RemoteProtocolError("run manifest: not signed by its learner")
    manifest.check()
    return KnownRun(manifest, opened.digest, raw)
