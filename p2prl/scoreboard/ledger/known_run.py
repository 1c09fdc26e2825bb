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
    validator: bytes = b""
    """Public key of the validator whose own ledger is read; empty for the learner's."""

    @property
    def ledger_key(self) -> bytes:
        """The only key whose receipts and heads this ledger holds."""
        return self.validator or self.manifest.learner

    @property
    def signer(self) -> str:
        """Who signs this ledger, in sentences."""
        return "the validator" if self.validator else "the learner"

    def new_fold(self) -> LedgerFold:
        """A fold before the run's first entry."""
        return LedgerFold(run=self.run, learner=self.ledger_key, parameters=self.manifest.parameters)


def open_run_manifest(raw: bytes, *, validator: bytes = b"") -> KnownRun:
    """Open and check a run manifest's envelope. Raises `RemoteProtocolError` for anything else.

    The signer must be the learner it names: every other signature of the run is checked against this manifest.
    `validator` as in `KnownRun`.
    """
    opened = open_envelope(raw, now=None)
    manifest = body_of(opened, RunManifest)
    if opened.author != manifest.learner:
        raise RemoteProtocolError("run manifest: not signed by its learner")
    manifest.check()
    return KnownRun(manifest, opened.digest, raw, validator)
