"""Keep a node in step with the run's newest policy version, and download the run's files.

A verified manifest or head is pinned in the gossip and added to the catalog. The newest version is downloaded as soon
as the download before it is complete; others when the owner requests them by name. Pure: it drives the relay and the
gossip, and appends to `events`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from p2prl.errors import RemoteProtocolError, StaleWorkError
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened, body_of
from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import BlobRef, PolicyManifest, RunManifest
from p2prl.protocol.run_blobs import blobs_for, data_blobs
from p2prl.swarm import signals
from p2prl.swarm.events import (
    Equivocation,
    Event,
    FileReady,
    LearnerSilent,
    RunRefused,
    VersionReady,
)
from p2prl.swarm.gossip.forwarding import Gossip
from p2prl.swarm.node_config import NodeConfig
from p2prl.swarm.policies.catalog import (
    EquivocationError,
    LearnerFaultError,
    PolicyCatalog,
    PolicyVersion,
    SignedHead,
    blobs_of,
)
from p2prl.swarm.policies.downloads import VersionDownloads
from p2prl.swarm.policies.retention import Retention
from p2prl.swarm.policies.routing import LocalBase, RoutePlanner
from p2prl.swarm.policies.version_download import DownloadStats
from p2prl.swarm.relay.chunk_relay import Relay


class RunFiles:
    """Files and data of one run on one node."""

    def __init__(self, manifest: RunManifest, relay: Relay, config: NodeConfig) -> None:
        self._relay = relay
        self._serves = config.role is Role.LEARNER
        self._files = blobs_for(manifest, config.role, runs_code=config.runs_code)
        self._data = data_blobs(manifest, config.role, runs_code=config.runs_code)
        self.accepted = not config.awaits_consent
        """Whether the owner has decided for the run. Nothing is downloaded before."""
        self._size_bytes = sum(file.blob.size_bytes for file in self._files)
        self._names: dict[Digest, list[str]] = {}
        """Names by the root of the blob: two files may be the same bytes."""
        for file in self._files:
            self._names.setdefault(file.blob.root, []).append(file.name)

    def fetch(self, now: float) -> None:
        """Download everything. The learner has it on disk: it serves the data, each chunk to one peer first.

        Nothing is downloaded when the quota has no room for all of it: the owner's process refuses such a run.
        """
        if self._relay.quota.lacks(self._size_bytes):
            return
        for file in self._files:
            if self._serves and file in self._data:
                self._relay.offer(file.blob, now)
            else:
                self._relay.fetch(file.blob, now)

    def names(self, root: Digest) -> Sequence[str]:
        """Names of the files with this content."""
        return self._names.get(root, ())

    def progress(self) -> tuple[int, int]:
        """(bytes held, bytes in all). The last chunk of a file counts as a whole one until the file is complete."""
        held = 0
        for file in self._files:
            chunks, _ = self._relay.progress(file.blob.root)
            held += min(chunks * file.blob.chunk_bytes, file.blob.size_bytes)
        return held, sum(file.blob.size_bytes for file in self._files)


_HEAD_PATIENCE_S = 2.0
"""A version that no known patch leads to waits this long for the head, which may list a route."""

_REMEMBERED_REQUESTS = 1_024
"""Versions requested by name; older requests are forgotten."""


class PolicySync:
    """Policy versions and files of a run on one node."""

    def __init__(self, manifest: RunManifest, relay: Relay, gossip: Gossip, config: NodeConfig) -> None:
        self._relay = relay
        self._gossip = gossip
        self._config = config
        self._catalog = PolicyCatalog(manifest.learner, manifest.weight_bytes)
        self._base = LocalBase(awaited=config.awaits_base)
        self._files = RunFiles(manifest, relay, config)
        planner = RoutePlanner(self._catalog, self._base, rebuilds=config.rebuilds)
        self._retention = Retention(
            self._catalog,
            planner,
            relay,
            gossip,
            keep_versions=config.keep_versions,
        )
        self.events: deque[Event] = deque()
        self._downloads = VersionDownloads(
            self._catalog,
            planner,
            self._retention,
            relay,
            gossip,
            self.events,
            dtype=manifest.dtype,
            weight_bytes=manifest.weight_bytes,
        )
        self._requested: dict[Digest, None] = {}
        """Versions the owner requested by name, the oldest request first."""
        self._announced_at = 0.0
        """When the newest manifest arrived."""
        self._silence_reported = False

    @property
    def newest(self) -> PolicyVersion | None:
        """The highest version known."""
        return self._catalog.newest

    @property
    def head(self) -> SignedHead | None:
        """The newest policy head."""
        return self._catalog.head

    @property
    def stats(self) -> DownloadStats:
        """Download volume of the versions that completed."""
        return self._downloads.stats

    # --- the owner's requests ----------------------------------------------------------------------------------

    def accept(self, disk_bytes: int, now: float) -> None:
        """The owner has decided for the run, with this much disk (0: no bound): download from now on."""
        self._files.accepted = True
        if disk_bytes:
            self._relay.quota.set_limit(disk_bytes)
        self.fetch_files(now)
        if self.newest is not None:
            self._downloads.apply_retention()

    def fetch_files(self, now: float) -> None:
        """Download the run's files, and the data this role needs; each is reported as a `FileReady` event."""
        if self._files.accepted and self._config.fetch_policies:
            self._files.fetch(now)

    def file_progress(self) -> tuple[int, int]:
        """(bytes held, bytes in all) of the run's files and data."""
        return self._files.progress()

    def progress(self) -> tuple[int, int, int]:
        """(version, chunks held, chunks in all) of the newest version's download; version −1 when idle."""
        return self._downloads.progress()

    def hold(self, opened: Opened, now: float) -> None:
        """Serve a version whose weights are on disk from before a restart, with those of its patches that are.

        Incomplete blobs are dropped, except the patches of a node that mirrors them all: it continues their download.
        """
        policy = self._catalog.admit(opened)
        self._gossip.pin(policy.raw, policy.digest)
        for patch in policy.manifest.patches:
            if not self._resume(patch.blob, now) and not self._config.mirrors_patches:
                self._relay.drop(patch.blob.root)
        if not self._resume(policy.manifest.weights, now):
            self._relay.drop(policy.manifest.weights.root)
            return
        self._downloads.ready[policy.digest] = policy
        self.events.append(VersionReady(policy.manifest, policy.digest, policy.raw))

    def _resume(self, ref: BlobRef, now: float) -> bool:
        """Serve a blob as far as it is on disk; returns whether it is complete."""
        if not self._relay.has_room(ref):
            return False
        self._relay.fetch(ref, now)
        have, total = self._relay.progress(ref.root)
        return have == total

    def request(self, name: Digest, now: float) -> None:
        """Download a version by its manifest's envelope digest, besides the newest."""
        policy = self._catalog.named(name)
        self._requested[name] = None
        if len(self._requested) > _REMEMBERED_REQUESTS:
            del self._requested[next(iter(self._requested))]
        if policy is None:
            self._gossip.ask_all(name)
        elif name in self._downloads.ready:
            self.events.append(VersionReady(policy.manifest, name, policy.raw))
        else:
            self._downloads.start_requested(policy, now)

    def start_from(self, digest: Digest | None, now: float) -> None:
        """Set the owner's local base by the digest of its weights, or None: routes may start from there."""
        self._base.replace(digest)
        if digest is not None:
            self._relay.quota.reserve(digest, self._catalog.weight_bytes)
        for name in self._requested:
            if (policy := self._catalog.named(name)) is not None:
                self._downloads.start_requested(policy, now)

    def rebuilt(self, name: Digest, ok: bool, now: float) -> None:
        """The owner has decoded a version's patches into its weights, or failed to."""
        self._downloads.rebuilt(name, ok, now)

    # --- the learner's manifests and heads ---------------------------------------------------------------------

    def admit(self, opened: Opened, now: float, *, own: bool) -> None:
        """Add a policy manifest; `own` marks one this node signed, whose blobs it serves.

        Raises `RemoteProtocolError` when the learner did not sign it or it contradicts another, `StaleWorkError` when
        its version is too old.
        """
        before = self.newest
        needed = opened.digest in self._requested or self._downloads.needs_manifest(opened.digest)
        if self._retention.is_past(body_of(opened, PolicyManifest).version) and not needed:
            raise StaleWorkError("policy manifest of a version too old to download")
        try:
            policy = self._catalog.admit(opened)
        except EquivocationError as error:
            raise self._report(error) from error
        except LearnerFaultError as error:
            self.events.append(RunRefused(str(error)))
            raise
        self._gossip.pin(opened.raw, policy.digest)
        if own:
            for ref in blobs_of(policy.manifest):
                self._relay.offer(ref, now)
        if before is None or policy.manifest.version > before.manifest.version:
            self._announced_at = now
            self.events.append(signals.VersionAnnounced(policy.manifest.version, policy.manifest.step))
            self._downloads.apply_retention()
            if self._config.mirrors_patches and self._files.accepted:
                for patch in policy.manifest.patches:
                    self._downloads.mirror(patch.blob, now)
        elif policy.digest in self._requested:
            self._downloads.start_requested(policy, now)
        self._downloads.on_manifest(policy.digest, now)

    def admit_head(self, opened: Opened, now: float) -> None:
        """Take a newer policy head. Raises as `PolicyCatalog.admit_head`; a contradiction as `RemoteProtocolError`."""
        before = self._catalog.head
        try:
            head = self._catalog.admit_head(opened, now)
        except EquivocationError as error:
            raise self._report(error) from error
        except LearnerFaultError as error:
            self.events.append(RunRefused(str(error)))
            raise
        if before is not None:
            self._gossip.unpin(before.digest)
        self._gossip.pin(head.raw, head.digest)
        self._silence_reported = False
        name = Digest(head.head.manifest)
        if self._catalog.named(name) is None:
            self._gossip.ask_few([name])

    def check_freshness(self, now: float) -> None:
        """Report once when the last head has expired."""
        head = self._catalog.head
        if head is None or self._silence_reported or not self._config.follows_newest:
            return
        if now * 1000 > head.head.expires_ms:
            self._silence_reported = True
            self.events.append(LearnerSilent(head.head.version, now - head.sent_ms / 1000))

    def _report(self, error: EquivocationError) -> RemoteProtocolError:
        is_own = self._config.role is Role.LEARNER
        self.events.append(Equivocation(error.first, error.second, is_own))
        return RemoteProtocolError(str(error))

    # --- progress ----------------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Handle completed blobs, and start on the newest version when idle."""
        self._downloads.release_unusable_base(now)
        self._start_newest(now)
        while self._relay.completed:
            finished, self._relay.completed = self._relay.completed, []
            for root in finished:
                for name in self._files.names(root):
                    self.events.append(FileReady(name, root))
                self._downloads.on_blob(root, now)
            self._start_newest(now)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is being downloaded, or waited for."""
        newest = self.newest
        has_newest = newest is None or newest.digest in self._downloads.ready or not self._config.follows_newest
        return has_newest and self._downloads.newest is None and not self._requested

    def drop_stalled(self, now: float) -> None:
        """Abandon stalled downloads for a newer version, or for another route to the same one."""
        self._downloads.drop_stalled(now)

    def _start_newest(self, now: float) -> None:
        newest, downloads = self.newest, self._downloads
        if (
            newest is None
            or downloads.newest is not None
            or not self._config.follows_newest
            or not self._files.accepted
        ):
            return
        if newest.digest in downloads.ready or self._base.awaited or self._awaits_head(newest, now):
            return
        downloads.start_newest(newest, now)

    def _awaits_head(self, newest: PolicyVersion, now: float) -> bool:
        """Whether a head is expected soon that may list a cheaper route to the newest version."""
        head = self._catalog.head
        if not self._config.rebuilds or (head is not None and head.head.version >= newest.manifest.version):
            return False
        if head is None and self._base.digest is None:
            return False
        starts = self._downloads.held_versions() | self._base.versions(self._catalog)
        reachable = any(patch.base in starts for patch in newest.manifest.patches)
        return bool(starts) and not reachable and now - self._announced_at < _HEAD_PATIENCE_S
