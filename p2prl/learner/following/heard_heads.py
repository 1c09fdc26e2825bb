"""Heads that a standby learner has heard of, from anybody: the highest version and ledger that the learner signed.

It is on disk, as the promotion asks for it: a copy that lacks what others have seen is no place to go on from.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from p2prl.disk_full import replace_file, write_error
from p2prl.learner.learner_paths import LearnerPaths
from p2prl.protocol.envelope import open_envelope
from p2prl.protocol.ledger_messages import LedgerHead
from p2prl.protocol.manifests import PolicyManifest
from p2prl.protocol.policy_head import PolicyHead


class Heard(msgspec.Struct, frozen=True):
    """The highest that was heard of."""

    version: int = -1
    height: int = 0
    """Entries of the ledger."""


class HeardHeads:
    """Keeps the highest heads in a file."""

    def __init__(self, paths: LearnerPaths) -> None:
        self._path = paths.standby / "heard.json"
        self.newest = read_heard(self._path)
        """The highest so far."""

    def note(self, envelope: bytes) -> None:
        """Note an envelope that the network process has checked."""
        heard = self.newest
        match open_envelope(envelope, now=None).body:
            case PolicyManifest(version=version) | PolicyHead(version=version):
                heard = Heard(max(version, heard.version), heard.height)
            case LedgerHead(height=height):
                heard = Heard(heard.version, max(height, heard.height))
        if heard != self.newest:
            self.newest = heard
            try:
                replace_file(self._path, msgspec.json.encode(heard), private=True)
            except OSError as error:
                raise write_error(error, self._path) from error


def read_heard(path: Path) -> Heard:
    """The highest that a file names."""
    return msgspec.json.decode(path.read_bytes(), type=Heard) if path.exists() else Heard()
