"""Downloads of policy versions: the newest one, and those the owner requested by name.

Each version takes the route of fewest bytes: patches from weights on disk, or its full weights. A route that fails is
never tried again. When nobody has all of the newest version, because the learner went away while it sent it, an older
one stands in for it. Pure: it drives the relay and appends to `events`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from p2prl.protocol.digests import Digest
from p2prl.protocol.manifests import BlobRef
from p2prl.protocol.policy_head import PatchEdge
from p2prl.swarm.events import BaseReleased, Event, VersionReady, WeightsReleased
from p2prl.swarm.gossip.forwarding import Gossip
from p2prl.swarm.policies.catalog import PolicyCatalog, PolicyVersion
from p2prl.swarm.policies.retention import DiskRoom, Retention
from p2prl.swarm.policies.routing import RoutePlanner
from p2prl.swarm.policies.stalls import MOST_BACK, Stalls, Step
from p2prl.swarm.policies.version_download import DownloadStats, VersionDownload, patch_blobs
from p2prl.swarm.relay.chunk_relay import Relay

_MANIFESTS_S = 8.0
"""A route whose manifests have not arrived by then is abandoned: four rounds of asking."""


class VersionDownloads:
    """Versions being downloaded, and versions on disk.

    Routes, room on the disk and stalls are looked at together, because each of them may put off or end a download.
    """

    def __init__(
        self,
        catalog: PolicyCatalog,
        planner: RoutePlanner,
        retention: Retention,
        relay: Relay,
        gossip: Gossip,
        events: deque[Event],
        *,
        dtype: str,
        weight_bytes: int,
    ) -> None:
        """`dtype` is the number type of the run's weights, `weight_bytes` their size in every version."""
        self._catalog = catalog
        self._planner = planner
        self._relay = relay
        self._gossip = gossip
        self._events = events
        self._dtype = dtype
        self._room = DiskRoom(retention, relay.quota, weight_bytes)
        self._stalls = Stalls(relay)
        self.newest: VersionDownload | None = None
        """Download of the newest version known when it began, or of one that stands in for it. It is not abandoned for
        a newer one while chunks arrive: on a link slower than the learner's pace, no download would ever finish."""
        self._requested: dict[Digest, VersionDownload] = {}
        self._missing_manifests: set[Digest] = set()
        self.ready: dict[Digest, PolicyVersion] = {}
        """Versions whose weights are on disk, complete and verified."""
        self.stats = DownloadStats()

    def progress(self) -> tuple[int, int, int]:
        """(version, chunks held, chunks in all) of the newest version's download; version −1 when idle."""
        if self.newest is None:
            return -1, 0, 0
        held = [self._relay.progress(ref.root) for ref in self.newest.blobs()]
        return self.newest.target.manifest.version, sum(have for have, _ in held), sum(total for _, total in held)

    def held_versions(self) -> set[int]:
        """Versions whose weights are on disk."""
        return {policy.manifest.version for policy in self.ready.values()}

    def start_newest(self, newest: PolicyVersion, now: float) -> None:
        """Download the newest version, unless there was no room and still is none."""
        if self._room.is_full_for(newest):
            return
        self.newest = VersionDownload(newest, now)
        self._choose_route(self.newest, now)

    def start_requested(self, policy: PolicyVersion, now: float) -> None:
        """Download a version besides the newest, unless the owner is still looking for a local base."""
        if self._planner.base.awaited or policy.digest in self.ready or policy.digest in self._requested:
            return
        download = self._requested[policy.digest] = VersionDownload(policy, now)
        self._choose_route(download, now)

    def needs_manifest(self, name: Digest) -> bool:
        """Whether a route lacks this manifest."""
        return name in self._missing_manifests

    def on_manifest(self, name: Digest, now: float) -> None:
        """A manifest has been added to the catalog: continue the routes that lacked it."""
        if name not in self._missing_manifests:
            return
        self._missing_manifests.discard(name)
        for download in self._active():
            if download.awaits_manifests:
                self._fetch_patches(download, now)

    def on_blob(self, root: Digest, now: float) -> None:
        """A blob is complete."""
        slot, newest = self.newest, self._catalog.newest
        if newest is not None and newest.manifest.weights.root == root and slot is not None and slot.gives_way:
            self._abandon_newest(slot, newest)
        for download in self._active():
            if download.target.manifest.weights.root == root and not download.rebuilding:
                self._finish(download, now)
            elif any(ref.root == root for ref in download.patches):
                download.received.add(root)
                if download.all_received and not download.rebuilding:
                    self._request_rebuild(download)

    def rebuilt(self, name: Digest, ok: bool, now: float) -> None:
        """The owner has decoded a version's patches into its weights, or failed to."""
        for download in self._active():
            if download.target.digest != name or not download.rebuilding:
                continue
            if ok:
                download.use_decoded(now)
                self._relay.fetch(download.target.manifest.weights, now)
                self._relay.measure()
                continue
            self._room.allowance.failed(download.patch_bytes)
            if download.from_local_base:
                # The patches' hashes were right, so the base is to blame, and only the first patch starts from it.
                self._planner.base.corrupt = True
                self._avoid(download, download.route[:1], now)
                self.release_unusable_base(now)
            else:
                self._avoid(download, download.route, now)

    def drop_stalled(self, now: float) -> None:
        """Abandon stalled downloads for another version, or for another route to the same one."""
        self._stalls.look(now)
        for download in [download for download in self._active() if not download.rebuilding]:
            if download.awaits_manifests:
                missing = download.missing_manifests(self._catalog)
                if now - download.since > _MANIFESTS_S:
                    self._avoid(download, [patch for patch in download.route if patch.manifest in missing], now)
                else:
                    self._gossip.ask_few(missing)
            elif download is self.newest:
                self._advance_newest(download, now)
            elif self._stalls.is_stalled(download, now):
                if download.route:
                    self._avoid(download, download.route, now)
                elif self._room.retention.is_past(download.target.manifest.version):
                    del self._requested[download.target.digest]

    def _advance_newest(self, download: VersionDownload, now: float) -> None:
        newest, held = self._catalog.newest, max(self.held_versions(), default=-1)
        assert newest is not None
        match self._stalls.step_of_newest(download, now, newest=newest.manifest.version, held=held):
            case Step.GO_ON:
                self._abandon_newest(download, newest)
            case Step.STEP_BACK:
                self._step_back(download, max(held, newest.manifest.version - MOST_BACK), now)
            case Step.FULL_WEIGHTS:
                self._fetch_weights(download, now)
            case Step.AVOID:
                self._avoid(download, download.route, now)

    def _step_back(self, download: VersionDownload, least: int, now: float) -> None:
        """Download an older version that is above `least` and still known, or the newest again; chunks are kept."""
        version, is_stalled = download.target.manifest.version, self._stalls.is_stalled(download, now)
        older = self._catalog.newest_between(least, version)
        if older is not None and (is_stalled or older.manifest.version == version - 1):
            self.newest = VersionDownload(older, now, stands_in=True)
            self._choose_route(self.newest, now)
        elif download.stands_in and (is_stalled or version - 1 <= least):
            self.newest = None
        else:
            missing = self._catalog.missing_between(least, version)
            self._missing_manifests.update(missing)
            self._gossip.ask_few(missing)

    def release_unusable_base(self, now: float) -> None:
        """Release a local base that cannot be used, unless the owner is rebuilding from it and still reads it."""
        base = self._planner.base
        if base.digest is None or not (base.corrupt or base.matches_run(self._catalog) is False):
            return
        if not any(download.from_local_base and download.rebuilding for download in self._active()):
            self._release_base(None, None if base.corrupt else False, now)

    def apply_retention(self) -> None:
        """Release versions that are too old, and those the disk has no room for."""
        self._forget(self._room.retention.apply(self._in_use(), self._busy()))

    def mirror(self, ref: BlobRef, now: float) -> None:
        """Download a patch to serve it, if it leaves room for the next version: nothing gives way to it."""
        if self._room.mirrors(ref):
            self._relay.fetch(ref, now)

    def start_waiting(self, now: float) -> None:
        """Try requested versions again that had no room."""
        for policy in self._room.take_waiting():
            self.start_requested(policy, now)

    def _forget(self, released: Iterable[PolicyVersion]) -> None:
        gone = False
        for policy in released:
            gone |= self.ready.pop(policy.digest, None) is not None
            self._requested.pop(policy.digest, None)
        if gone:
            self._relay.measure()
            self._events.append(WeightsReleased(self._held_weights()))

    def _busy(self) -> set[Digest]:
        """Roots of the blobs that a download needs."""
        return {ref.root for download in self._active() for ref in download.blobs()}

    def _has_room(self, download: VersionDownload, patches: Collection[BlobRef] = ()) -> bool:
        """Make room for a version and these patches."""
        has_room, released = self._room.make(
            download.target, patches, is_newest=download is self.newest, in_use=self._in_use(), busy=self._busy()
        )
        self._forget(released)
        return has_room

    def _fetch_weights(self, download: VersionDownload, now: float) -> None:
        """Download full weights, or put the version off until there is room."""
        download.use_full_weights(now)
        if self._has_room(download):
            self._relay.fetch(download.target.manifest.weights, now)
            return
        self._room.put_off(download.target, is_newest=download is self.newest)
        if download is self.newest:
            self.newest = None
        else:
            del self._requested[download.target.digest]

    def _active(self) -> list[VersionDownload]:
        return [*((self.newest,) if self.newest is not None else ()), *self._requested.values()]

    def _in_use(self) -> set[Digest]:
        """Versions that a download needs, and the newest on disk: the next patch starts from it."""
        used = {digest for download in self._active() for digest in download.needed(self._catalog)}
        latest = max(self.ready.values(), key=lambda policy: policy.manifest.version, default=None)
        return used | ({latest.digest} if latest else set())

    def _choose_route(self, download: VersionDownload, now: float) -> None:
        plan = self._planner.plan(download.target.manifest, self.held_versions())
        is_here = self._has_weights(download.target)  # those of the version before, if an update changed no word
        download.use(plan, now, is_here=is_here)
        if plan.route is None or is_here or not self._room.allowance.allows(download.route_bytes):
            self._fetch_weights(download, now)
        else:
            self._fetch_patches(download, now)

    def _fetch_patches(self, download: VersionDownload, now: float) -> None:
        """Ask for the missing manifests of a route; when all have arrived, download its patches, if it has any."""
        missing = download.missing_manifests(self._catalog)
        if missing:
            self._missing_manifests.update(missing)
            self._gossip.ask_few(missing)
            return
        base_digest = self._planner.base.digest if download.from_local_base else None
        blobs = patch_blobs(download.route, self._catalog, base_digest=base_digest)
        if isinstance(blobs, PatchEdge):
            self._avoid(download, [blobs], now)
            return
        if not self._has_room(download, blobs):
            self._fetch_weights(download, now)
            return
        download.patches = blobs
        for ref in blobs:
            self._relay.fetch(ref, now)
        if not blobs:
            self._request_rebuild(download)

    def _avoid(self, download: VersionDownload, patches: Iterable[PatchEdge], now: float) -> None:
        """Choose another route: these patches failed."""
        self._planner.avoid(patches)
        self._choose_route(download, now)

    def _abandon_newest(self, download: VersionDownload, newest: PolicyVersion) -> None:
        self.newest, root = None, download.target.manifest.weights.root
        if newest.manifest.weights.root != root:
            self._relay.drop(root)  # of a route, the room that was reserved for its outcome

    def _request_rebuild(self, download: VersionDownload) -> None:
        target, local = download.target, self._planner.base.digest
        download.rebuilding = True
        if not self._has_weights(target):
            self._relay.drop(target.manifest.weights.root)  # chunks of an earlier attempt without patches
        self._room.reserve(target)
        self._events.append(download.rebuild_request(self._catalog, self._dtype, local, self._held_weights()))

    def _has_weights(self, policy: PolicyVersion) -> bool:
        have, total = self._relay.progress(policy.manifest.weights.root)
        return 0 < have == total

    def _held_weights(self) -> tuple[Digest, ...]:
        """Roots of the weights on disk, and of those that the owner decodes."""
        rebuilding = (download.target for download in self._active() if download.rebuilding)
        return tuple(policy.manifest.weights.root for policy in (*self.ready.values(), *rebuilding))

    def _finish(self, download: VersionDownload, now: float) -> None:
        """A version's weights are complete."""
        target, base = download.target, self._planner.base
        if target.digest not in self.ready:
            self.ready[target.digest] = target
            self._room.allowance.completed(download.decoded_bytes or 0)
            self.stats.add(target.manifest.weights.size_bytes, download.decoded_bytes, download.saved_bytes)
            self._events.append(VersionReady(target.manifest, target.digest, target.raw))
        self._requested.pop(target.digest, None)
        if self.newest is download:
            self.newest = None
        if base.digest is not None and not any(other.from_local_base for other in self._active()):
            self._release_base(download, base.matches_run(self._catalog), now)
        self.apply_retention()
        self.start_waiting(now)

    def _release_base(self, download: VersionDownload | None, matches_run: bool | None, now: float) -> None:
        """Release the local base: a version is complete (`download`), or the base cannot be used."""
        base = self._planner.base
        assert base.digest is not None
        version = None if download is None else download.target.manifest.version
        decoded_bytes, saved_bytes = (download.decoded_bytes or 0, download.saved_bytes) if download else (0, 0)
        self._events.append(BaseReleased(base.digest, matches_run, version, decoded_bytes, saved_bytes))
        self._relay.quota.release(base.digest)
        base.replace(None)
        for other in self._active():
            if other.from_local_base and not other.rebuilding:
                self._choose_route(other, now)
