"""A standby learner: its network, its key and permits, and its loop, which follows the learner until it is stopped.

It is a peer of the run with a key of its own, which the run's key, in the same folder, permits to follow. Besides the
learner's answers it listens to what everybody says that the learner has signed.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from p2prl.clock import Clock
from p2prl.config.network_options import PEERS_FILE, UploadCaps
from p2prl.config.run_folder import Folder
from p2prl.errors import ConfigError, RemoteProtocolError
from p2prl.learner.following.follower import Follower
from p2prl.learner.following.heard_heads import HeardHeads
from p2prl.learner.following.held_copies import HeldCopies, HeldCopy
from p2prl.net.listen_addresses import DEFAULT_LISTEN
from p2prl.net.process import control
from p2prl.net.process.bridge import NetworkPort
from p2prl.net.process.network_config import NetworkConfig, ReachOptions
from p2prl.net.storage.key_file import load_or_create_identity
from p2prl.plain_text import counted
from p2prl.protocol.follow_permit import sign_permit
from p2prl.protocol.join_link import parse_link
from p2prl.protocol.kinds import Role
from p2prl.quantity_text import size_text
from p2prl.swarm import signals
from p2prl.swarm.node_config import NodeConfig
from p2prl.swarm.relay.relay_config import RelayConfig
from p2prl.time_text import duration_text

_POLL_S = 0.2

_PERMIT_S = 3_600.0
"""Life of a permit; a new one is signed when half of it has passed."""

_TELL_S = 2.0
"""Time between two reports of how far the standby is."""

_AWAY_S = 15.0
"""A learner that has not answered for this long counts as away."""


@dataclass(frozen=True, slots=True)
class FollowedState:
    """How far a standby learner is."""

    copy: HeldCopy | None
    pieces_left: int
    silent_s: float | None
    """Time since the learner answered last; None before it has."""

    @property
    def text(self) -> str:
        """In a line."""
        if self.copy is None:
            told = "nothing is held yet"
        else:
            head = self.copy.head
            entries = counted(head.height, "ledger entry", "ledger entries")
            told = f"holds step {head.step:,}, version {head.version:,}, {entries}"
        if self.silent_s is None:
            return f"{told}; waiting for the learner"
        if self.silent_s > _AWAY_S:
            return f"{told}; no answer of the learner for {duration_text(self.silent_s)}"
        return f"{told}; {counted(self.pieces_left, 'piece')} to come" if self.pieces_left else f"{told}; keeps step"


class StandbyLearner:
    """Follows a run's learner into its folder."""

    def __init__(self, folder: Folder, clock: Clock, *, on_notice: Callable[[str], None]) -> None:
        self._folder = folder
        self._clock = clock
        self._on_notice = on_notice
        key = load_or_create_identity(folder.paths.standby / "key.json")
        self._own_key = key.public_key
        self._permit, self._permit_until = b"", 0.0
        self._heard = HeardHeads(folder.paths)
        self._copies = HeldCopies(folder.paths)
        self._follower = Follower(self._copies, self._permit_at, self._on_whole)
        self._stopping = False
        self._told_first = False

    def stop(self) -> None:
        """Return from `run`; the newest whole copy stays."""
        self._stopping = True

    def run(self, network: NetworkPort, *, on_state: Callable[[FollowedState], None]) -> None:
        """Follow until `stop` is called. `on_state` gets how far this standby is, every few seconds."""
        told_at = float("-inf")
        try:
            while not self._stopping:
                self.turn(network, wait_s=_POLL_S)
                if (now := self._clock.now()) - told_at >= _TELL_S:
                    told_at = now
                    on_state(self.state)
        finally:
            network.close()

    def turn(self, network: NetworkPort, *, wait_s: float) -> None:
        """Take the messages that arrived, and ask for what is missing."""
        for message in network.poll(wait_s):
            match message:
                case signals.FollowArrived():
                    self._on_answer(message)
                case control.EnvelopeArrived(envelope=raw):
                    self._heard.note(raw)
                case control.Warned(text=text):
                    self._on_notice(text)
                case _:
                    pass
        for question in self._follower.questions(self._clock.now()):
            network.send(question)

    @property
    def state(self) -> FollowedState:
        """How far this standby is."""
        at = self._follower.answered_at
        silent_s = None if at is None else max(0.0, self._clock.now() - at)
        return FollowedState(self._copies.whole, self._follower.pieces_left, silent_s)

    def status(self) -> dict[str, Any]:
        """State for `status.json`."""
        head = None if self._copies.whole is None else self._copies.whole.head
        held = {} if head is None else {"step": head.step, "version": head.version, "ledger_height": head.height}
        state = {"run": self._folder.manifest.name, "fetched_bytes": self._follower.fetched_bytes}
        return {"role": "standby learner", **state, **held}

    def _on_answer(self, answer: signals.FollowArrived) -> None:
        try:
            self._follower.receive(answer, self._clock.now())
        except RemoteProtocolError as error:
            self._on_notice(f"the learner's answer was refused: {error}")

    def _on_whole(self, copy: HeldCopy) -> None:
        if not self._told_first:
            self._told_first = True
            size, folder = size_text(copy.listed.size_bytes), shlex.quote(str(self._folder.directory))
            self._on_notice(
                f"The run is held here up to step {copy.head.step:,} ({size}), and followed. Once the learner's"
                f" machine is gone for good:  p2prl promote {folder}"
            )

    def _permit_at(self, now: float) -> bytes:
        if now > self._permit_until - _PERMIT_S / 2:
            self._permit_until = now + _PERMIT_S
            self._permit = sign_permit(
                self._folder.identity,
                run=self._folder.run,
                follower=self._own_key,
                expires_ms=int(self._permit_until * 1000),
            )
        return self._permit


def standby_network(
    folder: Folder,
    listen: tuple[str, ...],
    caps: UploadCaps,
    *,
    peers: tuple[str, ...],
    transport: str,
    reach: ReachOptions,
) -> NetworkConfig:
    """Network settings of a standby learner. Raises `ConfigError` when it knows no peer of the run."""
    own = folder.paths.standby
    known = (*peers, *_link_peers(folder))
    if not known and not (own / PEERS_FILE).exists():
        raise ConfigError(
            f"{folder.directory} names no peer of the run",
            remedy="Copy the file link of the learner's run folder too, or give an address: --via MULTIADDR.",
        )
    return NetworkConfig(
        key_file=own / "key.json",
        run=folder.run,
        node=NodeConfig(role=Role.BOARD, fetch_policies=False, relay=RelayConfig(upload_bytes_s=caps.bytes_s)),
        blob_dir=own / "blobs",
        listen=listen or DEFAULT_LISTEN,
        bootstrap=known,
        peers_file=own / PEERS_FILE,
        manifest=folder.manifest_raw,
        monthly_bytes=caps.monthly_bytes,
        reach=reach,
        transport=transport,
    )


def _link_peers(folder: Folder) -> tuple[str, ...]:
    return parse_link(folder.link_file.read_text()).bootstrap if folder.link_file.exists() else ()
