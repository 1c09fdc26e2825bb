"""Where a board gets its ledger: one small port, so that the API never knows a journal from a swarm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from p2prl.errors import P2PRLError, RemoteProtocolError
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.manifests import RunManifest
from p2prl.scoreboard.ledger_fold import Board, BoardState


@dataclass(frozen=True, slots=True)
class KnownRun:
    """A run manifest that was opened and checked."""

    manifest: RunManifest
    run: Digest
    """Digest of the manifest's envelope: the run's identity."""
    raw: bytes

    def empty_board(self) -> Board:
        """The fold before the first entry."""
        return Board(run=self.run, learner=self.manifest.learner, parameters=self.manifest.parameters)


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """Everything a page shows, at one moment."""

    run: KnownRun | None
    """None while a board has not yet heard the run's manifest."""
    board: BoardState | None
    """None exactly when `run` is."""
    policy_version: int | None
    """Newest version the source knows of."""
    learner_step: int | None
    """Updates the source knows of; the ledger itself may lag behind."""
    neighbours: dict[str, int] | None
    signed_height: int | None
    """Highest height a signed head was compared with; None when there was none."""
    signed_head: bytes
    """That head's envelope, or nothing."""
    finished: bool
    incident: str | None
    join_link: str
    total_steps: int | None


class Source(Protocol):
    """A ledger that grows. Both methods may be called from several threads."""

    def snapshot(self) -> Snapshot:
        """The newest state."""
        ...

    def entries(self, from_height: int, limit: int) -> list[bytes]:
        """Consecutive entries from a height on, as bytes."""
        ...

    def failure(self) -> P2PRLError | None:
        """What ended this source for good, if anything did."""
        ...


def open_run(raw: bytes) -> KnownRun:
    """Open and check a run manifest's envelope. Raises `RemoteProtocolError` for anything else.

    The signer must be the learner it names: a manifest is what every other signature of the run hangs on.
    """
    opened = open_envelope(raw, now=None)
    manifest = body_of(opened, RunManifest)
    if opened.author != manifest.learner:
        raise RemoteProtocolError("run manifest: signed by somebody who is not its learner")
    manifest.check()
    return KnownRun(manifest, opened.digest, raw)
