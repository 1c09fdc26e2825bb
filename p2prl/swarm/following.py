"""Following a run: which of its policies and files are here, on their way, asked for, or to be let go.

The newest version is fetched as soon as the one under way is whole, particular ones when the owner asks, and versions
that nobody should still be waiting for are dropped. Pure: it drives the relay and drains into `events`.
"""

from __future__ import annotations

from collections import deque

from p2prl.errors import RemoteProtocolError, StaleWorkError
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened, body_of
from p2prl.protocol.manifests import PolicyManifest, RunManifest
from p2prl.swarm.events import Equivocation, Event, FileReady, PolicyAnnounced, PolicyReady
from p2prl.swarm.gossip import Gossip
from p2prl.swarm.policies import EquivocationError, KnownPolicy, PolicyBook
from p2prl.swarm.relay import Relay

_STALLED_TRANSFER_S = 20.0
"""A transfer without a chunk for this long gives way to a newer version: its holders have moved on."""

_REMEMBERED_REQUESTS = 1_024
"""Policies asked for by name; older requests are forgotten."""


class Following:
    """One node's policies and files of the run it knows."""

    def __init__(
        self, manifest: RunManifest, relay: Relay, gossip: Gossip, *, fetches: bool, keep_versions: int, now: float
    ) -> None:
        """`fetches` says whether files and newest weights are wanted; a learner and a board only keep the books."""
        self._relay = relay
        self._gossip = gossip
        self._fetches = fetches
        self._keep_versions = keep_versions
        self._book = PolicyBook(manifest.learner)
        self._files: dict[Digest, list[str]] = {}
        self._fetching: KnownPolicy | None = None
        self._fetching_since = now
        self._also_wanted: dict[Digest, KnownPolicy] = {}
        self._requested: dict[Digest, None] = {}
        self._overdue: list[KnownPolicy] = []
        self._ready: set[Digest] = set()
        self.events: deque[Event] = deque()

    @property
    def newest(self) -> KnownPolicy | None:
        """The highest version known."""
        return self._book.newest

    def fetch_files(self, manifest: RunManifest, now: float) -> None:
        """Fetch the run's files; each becomes an event when it is whole."""
        for file in manifest.files:
            self._files.setdefault(file.blob.root, []).append(file.name)
            self._relay.fetch(file.blob, now)

    def progress(self) -> tuple[int, int, int]:
        """(version, chunks held, chunks in all) of the policy being fetched; version −1 when idle."""
        if self._fetching is None:
            return -1, 0, 0
        manifest = self._fetching.manifest
        return (manifest.version, *self._relay.progress(manifest.weights.root))

    def request(self, name: Digest, now: float) -> None:
        """Fetch a particular policy by its manifest envelope's digest, besides the newest."""
        known = self._book.named(name)
        self._requested[name] = None
        if len(self._requested) > _REMEMBERED_REQUESTS:
            del self._requested[next(iter(self._requested))]
        if known is None:
            self._gossip.ask_all(name)
        elif name in self._ready:
            self.events.append(PolicyReady(known.manifest, name))
        else:
            self._fetch_also(known, now)

    def admit(self, opened: Opened, now: float, *, own: bool) -> None:
        """Take a policy manifest in. Raises `RemoteProtocolError` when it is not the learner's or contradicts another,
        `StaleWorkError` when nobody fetches its version any more."""
        before = self.newest
        version = body_of(opened, PolicyManifest).version
        requested = opened.digest in self._requested
        if before is not None and version <= before.manifest.version - self._keep_versions and not requested:
            raise StaleWorkError("policy manifest of a version nobody fetches any more")
        try:
            known = self._book.admit(opened)
        except EquivocationError as error:
            self.events.append(Equivocation(error.first, error.second))
            raise RemoteProtocolError(str(error)) from error
        self._gossip.pin(opened.raw, known.digest)
        if own:
            self._relay.offer(known.manifest.weights, now)
        if before is None or known.manifest.version > before.manifest.version:
            self.events.append(PolicyAnnounced(known.manifest, known.digest))
            self._retire(known.manifest.version)
        elif requested:
            self._fetch_also(known, now)

    def advance(self, now: float) -> None:
        """Turn finished blobs into events and go on to the newest version."""
        self._fetch_newest(now)
        while self._relay.completed:
            finished, self._relay.completed = self._relay.completed, []
            for root in finished:
                self._completed(root)
            self._fetch_newest(now)

    def drop_stalled(self, now: float) -> None:
        """Give up a version that has stopped arriving while there is a newer one."""
        fetching, newest = self._fetching, self.newest
        if fetching is None or newest is None or newest is fetching:
            return
        progressed_at = max(self._fetching_since, self._relay.progressed_at(fetching.manifest.weights.root))
        if now - progressed_at > _STALLED_TRANSFER_S:
            self._fetching = None
            if newest.manifest.weights.root != fetching.manifest.weights.root:
                self._relay.drop(fetching.manifest.weights.root)

    def _retire(self, newest: int) -> None:
        """Let go of versions nobody should still be waiting for."""
        late, self._overdue = self._overdue, []
        for old in (*late, *self._book.forget_before(newest - self._keep_versions + 1)):
            self._gossip.unpin(old.digest)
            if old is self._fetching or (old.digest in self._also_wanted and old not in late):
                self._overdue.append(old)  # somebody waits for it: it goes one version later
            else:
                self._release_weights(old)

    def _release_weights(self, old: KnownPolicy) -> None:
        """Free a version's weights, unless another version consists of the same bytes."""
        root = old.manifest.weights.root
        self._ready.discard(old.digest)
        self._also_wanted.pop(old.digest, None)
        if not self._book.uses(root) and all(late.manifest.weights.root != root for late in self._overdue):
            self._relay.drop(root)

    def _fetch_also(self, known: KnownPolicy, now: float) -> None:
        if known.digest not in self._ready:
            self._also_wanted[known.digest] = known
            self._relay.fetch(known.manifest.weights, now)

    def _fetch_newest(self, now: float) -> None:
        newest = self.newest
        if newest is None or self._fetching is not None or not self._fetches:
            return
        if newest.digest not in self._ready:
            self._fetching, self._fetching_since = newest, now
            self._relay.fetch(newest.manifest.weights, now)

    def _completed(self, root: Digest) -> None:
        for name in self._files.get(root, ()):
            self.events.append(FileReady(name, root))
        for known in (self._fetching, *self._also_wanted.values()):
            if known is not None and known.manifest.weights.root == root and known.digest not in self._ready:
                self._ready.add(known.digest)
                self.events.append(PolicyReady(known.manifest, known.digest))
        if self._fetching is not None and self._fetching.manifest.weights.root == root:
            self._fetching = None
        self._also_wanted = {d: k for d, k in self._also_wanted.items() if k.manifest.weights.root != root}
