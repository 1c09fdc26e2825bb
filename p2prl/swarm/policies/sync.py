"""PolicySync a run: which of its policies and files are here, on their way, asked for, or to be let go.

The newest version is fetched as soon as the one under way is whole, particular ones when the owner asks, and versions
that nobody should still be waiting for are dropped. Each is fetched by the way of the fewest bytes: patches from the
words that are here, or the weights whole. A way that fails is never tried again. Pure: it drives the relay and drains
into `events`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from p2prl.errors import RemoteProtocolError, StaleWorkError
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened, body_of
from p2prl.protocol.manifests import BlobRef, PolicyManifest, RunManifest
from p2prl.swarm.events import (
    BaseSettled,
    Equivocation,
    Event,
    FileReady,
    LearnerSilent,
    PatchesReady,
    VersionAnnounced,
    VersionReady,
)
from p2prl.swarm.gossip.gossip import Gossip
from p2prl.swarm.policies.catalog import EquivocationError, PolicyCatalog, PolicyVersion, SignedHead, blobs_of, roots_of
from p2prl.swarm.policies.cheapest_route import RouteStep
from p2prl.swarm.policies.local_base import LocalBase
from p2prl.swarm.policies.route_planner import RoutePlanner
from p2prl.swarm.policies.sync_config import FetchStats, SyncConfig
from p2prl.swarm.policies.version_download import VersionDownload, streams_of
from p2prl.swarm.relay.relay import Relay

_STALLED_TRANSFER_S = 20.0
"""A transfer without a chunk for this long gives way to a newer version or another way: its holders have moved on."""

_MANIFESTS_S = 8.0
"""A route whose manifests nobody has sent by then is given up: four rounds of asking."""

_HEAD_PATIENCE_S = 2.0
"""A version that no known patch leads to waits this long for the head that may list a way."""

_REMEMBERED_REQUESTS = 1_024
"""Policies asked for by name; older requests are forgotten."""


@dataclass(slots=True)
class _Wanted:
    """What has been asked for by name."""

    policies: dict[Digest, None] = field(default_factory=dict)
    manifests: set[Digest] = field(default_factory=set)

    def __contains__(self, name: Digest) -> bool:
        return name in self.policies or name in self.manifests


class PolicySync:
    """One node's policies and files of the run it knows."""

    def __init__(self, manifest: RunManifest, relay: Relay, gossip: Gossip, appetite: SyncConfig) -> None:
        self._relay = relay
        self._gossip = gossip
        self._appetite = appetite
        self._dtype = manifest.dtype
        self._book = PolicyCatalog(manifest.learner)
        self._files: dict[Digest, list[str]] = {}
        self._main: VersionDownload | None = None
        self._announced_at = 0.0
        self._also: dict[Digest, VersionDownload] = {}
        self._wanted = _Wanted()
        self._own = LocalBase(awaited=appetite.awaits_base)
        self._planner = RoutePlanner(self._book, self._own, rebuilds=appetite.rebuilds)
        self._ready: dict[Digest, PolicyVersion] = {}
        self._silence_told = False
        self.stats = FetchStats()
        self.events: deque[Event] = deque()

    @property
    def newest(self) -> PolicyVersion | None:
        """The highest version known."""
        return self._book.newest

    @property
    def head(self) -> SignedHead | None:
        """The newest head."""
        return self._book.head

    def fetch_files(self, manifest: RunManifest, now: float) -> None:
        """Fetch the run's files; each becomes an event when it is whole."""
        for file in manifest.files:
            self._files.setdefault(file.blob.root, []).append(file.name)
            self._relay.fetch(file.blob, now)

    def progress(self) -> tuple[int, int, int]:
        """(version, chunks held, chunks in all) of the policy being fetched; version −1 when idle."""
        if self._main is None:
            return -1, 0, 0
        held = [self._relay.progress(ref.root) for ref in self._main.fetched()]
        return self._main.goal.manifest.version, sum(have for have, _ in held), sum(total for _, total in held)

    def hold(self, opened: Opened, now: float) -> None:
        """Take up a version whose weights lie on this disk from before a restart, and its patches that do.

        What is not whole is let go, but for the patches of one that carries them all: it goes on fetching those.
        """
        known = self._book.admit(opened)
        self._gossip.pin(known.raw, known.digest)
        for patch in known.manifest.patches:
            if not self._take_up(patch.blob, now) and not self._appetite.carries:
                self._relay.drop(patch.blob.root)
        if not self._take_up(known.manifest.weights, now):
            self._relay.drop(known.manifest.weights.root)
            return
        self._ready[known.digest] = known
        self.events.append(VersionReady(known.manifest, known.digest, known.raw))

    def _take_up(self, ref: BlobRef, now: float) -> bool:
        """Serve a blob as far as it lies on this disk; whether it is whole."""
        self._relay.fetch(ref, now)
        have, total = self._relay.progress(ref.root)
        return have == total

    def request(self, name: Digest, now: float) -> None:
        """Fetch a particular policy by its manifest envelope's digest, besides the newest."""
        known = self._book.named(name)
        self._wanted.policies[name] = None
        if len(self._wanted.policies) > _REMEMBERED_REQUESTS:
            del self._wanted.policies[next(iter(self._wanted.policies))]
        if known is None:
            self._gossip.ask_all(name)
        elif name in self._ready:
            self.events.append(VersionReady(known.manifest, name, known.raw))
        else:
            self._fetch_also(known, now)

    def start_from(self, state: Digest | None, now: float) -> None:
        """The owner has words of its own, by the digest of all of them, or none: routes may start from there."""
        self._own.take(state)
        for name in self._wanted.policies:
            if (known := self._book.named(name)) is not None:
                self._fetch_also(known, now)

    def rebuilt(self, name: Digest, ok: bool, now: float) -> None:
        """The owner has decoded a version's patches into its weights, or could not."""
        for pursuit in self._pursuits():
            if pursuit.goal.digest != name or not pursuit.rebuilding:
                continue
            if ok:
                pursuit.decoded_bytes = sum(ref.size_bytes for ref in pursuit.patches)
                pursuit.take_whole(now)
                self._relay.fetch(pursuit.goal.manifest.weights, now)
            elif pursuit.from_own:
                # Its patches hashed right: what they were applied to is to blame, and only the first way leads on it.
                self._own.spoilt = True
                self._avoid(pursuit, pursuit.route[:1], now)
                self._let_base_go(now)
            else:
                self._avoid(pursuit, pursuit.route, now)

    # --- the learner's word ------------------------------------------------------------------------------------

    def admit(self, opened: Opened, now: float, *, own: bool) -> None:
        """Take a policy manifest in. Raises `RemoteProtocolError` when it is not the learner's or contradicts another,
        `StaleWorkError` when nobody fetches its version any more."""
        before = self.newest
        version = body_of(opened, PolicyManifest).version
        asked_for = opened.digest in self._wanted
        past = before is not None and version <= before.manifest.version - self._appetite.keep_versions
        if past and not asked_for:
            raise StaleWorkError("policy manifest of a version nobody fetches any more")
        try:
            known = self._book.admit(opened)
        except EquivocationError as error:
            raise self._proof(error) from error
        self._gossip.pin(opened.raw, known.digest)
        if own:
            for ref in blobs_of(known.manifest):
                self._relay.offer(ref, now)
        if before is None or known.manifest.version > before.manifest.version:
            self._announced_at = now
            self.events.append(VersionAnnounced(known.manifest, known.digest))
            self._retire()
            if self._appetite.carries:
                for patch in known.manifest.patches:
                    self._relay.fetch(patch.blob, now)
        elif known.digest in self._wanted.policies:
            self._fetch_also(known, now)
        if known.digest in self._wanted.manifests:
            self._wanted.manifests.discard(known.digest)
            for pursuit in self._pursuits():
                if pursuit.awaits_manifests:
                    self._go_on(pursuit, now)

    def admit_head(self, opened: Opened, now: float) -> None:
        """Take a policy head in. Raises as `PolicyCatalog.admit_head`, a contradiction as `RemoteProtocolError`."""
        before = self._book.head
        try:
            known = self._book.admit_head(opened, now)
        except EquivocationError as error:
            raise self._proof(error) from error
        if before is not None:
            self._gossip.unpin(before.digest)
        self._gossip.pin(known.raw, known.digest)
        self._silence_told = False
        name = Digest(known.head.manifest)
        if self._book.named(name) is None:
            self._gossip.ask_few([name])

    def check_freshness(self, now: float) -> None:
        """Say once when the last head has expired."""
        known = self._book.head
        if known is None or self._silence_told or not self._appetite.policies or now * 1000 <= known.head.expires_ms:
            return
        self._silence_told = True
        self.events.append(LearnerSilent(known.head.version, now - known.sent_ms / 1000))

    def _proof(self, error: EquivocationError) -> RemoteProtocolError:
        self.events.append(Equivocation(error.first, error.second))
        return RemoteProtocolError(str(error))

    # --- fetching ----------------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Turn finished blobs into events and go on to the newest version."""
        self._let_base_go(now)
        self._fetch_newest(now)
        while self._relay.completed:
            finished, self._relay.completed = self._relay.completed, []
            for root in finished:
                self._completed(root, now)
            self._fetch_newest(now)

    def drop_stalled(self, now: float) -> None:
        """Give up what has stopped arriving: for a newer version, or for another way to the same one."""
        main, newest = self._main, self.newest
        for pursuit in self._pursuits():
            if pursuit.awaits_manifests:
                missing = pursuit.missing(self._book)
                if now - pursuit.since > _MANIFESTS_S:
                    self._avoid(pursuit, [way for way in pursuit.route if way.manifest in missing], now)
                else:
                    self._gossip.ask_few(missing)
            elif not pursuit.rebuilding and now - self._progressed_at(pursuit) > _STALLED_TRANSFER_S:
                if pursuit is main and newest is not None and newest is not pursuit.goal:
                    self._give_up(pursuit, newest)
                elif pursuit.route:
                    self._avoid(pursuit, pursuit.route, now)
                elif pursuit is not main and self._is_past(pursuit.goal):
                    del self._also[pursuit.goal.digest]

    def _give_up(self, pursuit: VersionDownload, newest: PolicyVersion) -> None:
        self._main = None
        root = pursuit.goal.manifest.weights.root
        if not pursuit.route and newest.manifest.weights.root != root:
            self._relay.drop(root)

    def _is_past(self, known: PolicyVersion) -> bool:
        """Whether it is older than the versions that are kept."""
        newest = self.newest
        return newest is not None and known.manifest.version <= newest.manifest.version - self._appetite.keep_versions

    def _progressed_at(self, pursuit: VersionDownload) -> float:
        return max(pursuit.since, *(self._relay.progressed_at(ref.root) for ref in pursuit.fetched()))

    def _pursuits(self) -> list[VersionDownload]:
        return [*((self._main,) if self._main is not None else ()), *self._also.values()]

    def _fetch_also(self, known: PolicyVersion, now: float) -> None:
        if not self._own.awaited and known.digest not in self._ready and known.digest not in self._also:
            pursuit = self._also[known.digest] = VersionDownload(known, now)
            self._choose_way(pursuit, now)

    def _fetch_newest(self, now: float) -> None:
        newest = self.newest
        if newest is None or self._main is not None or not self._appetite.policies or newest.digest in self._ready:
            return
        if self._own.awaited or self._awaits_head(newest, now):
            return
        self._main = VersionDownload(newest, now)
        self._choose_way(self._main, now)

    def _awaits_head(self, newest: PolicyVersion, now: float) -> bool:
        """Whether a head is on its way that may list a cheaper way to the newest version."""
        head = self._book.head
        if not self._appetite.rebuilds or (head is not None and head.head.version >= newest.manifest.version):
            return False
        if head is None and self._own.state is None:
            return False
        held = self._held() | self._own.versions(self._book)
        leads = any(patch.base in held for patch in newest.manifest.patches)
        return bool(held) and not leads and now - self._announced_at < _HEAD_PATIENCE_S

    def _choose_way(self, pursuit: VersionDownload, now: float) -> None:
        plan = self._planner.plan(pursuit.goal.manifest, self._held())
        pursuit.take(plan, now)
        if plan.route is None:
            self._relay.fetch(pursuit.goal.manifest.weights, now)
        elif plan.route:
            self._go_on(pursuit, now)
        else:
            self._hand_over(pursuit)

    def _held(self) -> set[int]:
        """Versions whose weights are here."""
        return {known.manifest.version for known in self._ready.values()}

    def _go_on(self, pursuit: VersionDownload, now: float) -> None:
        """Ask for the manifests of its route that are not here; with all of them, fetch its patches."""
        missing = pursuit.missing(self._book)
        if missing:
            self._wanted.manifests.update(missing)
            self._gossip.ask_few(missing)
            return
        streams = streams_of(pursuit.route, self._book, own=self._own.state if pursuit.from_own else None)
        if isinstance(streams, RouteStep):
            self._avoid(pursuit, [streams], now)
            return
        pursuit.patches = streams
        for ref in streams:
            self._relay.fetch(ref, now)

    def _avoid(self, pursuit: VersionDownload, ways: Iterable[RouteStep], now: float) -> None:
        """These ways have failed: choose another."""
        self._planner.avoid(ways)
        self._choose_way(pursuit, now)

    def _completed(self, root: Digest, now: float) -> None:
        for name in self._files.get(root, ()):
            self.events.append(FileReady(name, root))
        for pursuit in self._pursuits():
            if not pursuit.route and pursuit.goal.manifest.weights.root == root:
                self._arrived(pursuit, now)
            elif any(ref.root == root for ref in pursuit.patches):
                pursuit.arrived.add(root)
                if pursuit.all_arrived and not pursuit.rebuilding:
                    self._hand_over(pursuit)

    def _hand_over(self, pursuit: VersionDownload) -> None:
        base = self._book.get(pursuit.base)
        root = None if base is None else base.manifest.weights.root
        pursuit.rebuilding = True
        self.events.append(
            PatchesReady(
                pursuit.goal.manifest,
                pursuit.goal.digest,
                self._dtype,
                self._own.state if pursuit.from_own else root,
                tuple(ref.root for ref in pursuit.patches),
            )
        )

    def _arrived(self, pursuit: VersionDownload, now: float) -> None:
        goal = pursuit.goal
        if goal.digest not in self._ready:
            self._ready[goal.digest] = goal
            self.stats.patch_bytes += pursuit.decoded_bytes or 0
            self.stats.whole_bytes += goal.manifest.weights.size_bytes if pursuit.decoded_bytes is None else 0
            self.stats.spared_bytes += pursuit.spared_bytes
            self.stats.brought_bytes += goal.manifest.weights.size_bytes
            self.events.append(VersionReady(goal.manifest, goal.digest, goal.raw))
        self._also.pop(goal.digest, None)
        if self._main is pursuit:
            self._main = None
        if self._own.state is not None and not any(other.from_own for other in self._pursuits()):
            self._settle_base(pursuit, self._own.fits(self._book), now)
        self._retire()

    def _let_base_go(self, now: float) -> None:
        """Settle a base that is of no use, once no version is being rebuilt from it: its file is read until then."""
        if self._own.state is None or not (self._own.spoilt or self._own.fits(self._book) is False):
            return
        if not any(pursuit.from_own and pursuit.rebuilding for pursuit in self._pursuits()):
            self._settle_base(None, None if self._own.spoilt else False, now)

    def _settle_base(self, pursuit: VersionDownload | None, fits: bool | None, now: float) -> None:
        """The owner's base is needed no more: a version has come (`pursuit`), or it is of no use."""
        assert self._own.state is not None
        came: tuple[int | None, int, int] = (None, 0, 0)
        if pursuit is not None:
            came = (pursuit.goal.manifest.version, pursuit.decoded_bytes or 0, pursuit.spared_bytes)
        self.events.append(BaseSettled(self._own.state, fits, *came))
        self._own.take(None)
        for other in self._pursuits():
            if other.from_own and not other.rebuilding:
                self._choose_way(other, now)

    # --- letting go --------------------------------------------------------------------------------------------

    def _retire(self) -> None:
        """Let go of versions nobody should still be waiting for, and of what the disk has no room for."""
        newest = self.newest
        assert newest is not None
        in_use = self._in_use()
        oldest = newest.manifest.version - self._appetite.keep_versions + 1
        for old in self._book.forget_before(oldest, keep=in_use):
            self._gossip.unpin(old.digest)
            self._release(old, roots_of(old.manifest))
        self._planner.forget_before(oldest)
        if self._appetite.disk_bytes:
            self._keep_within_budget(in_use)

    def _in_use(self) -> set[Digest]:
        """Policies that a pursuit needs, and the newest that is here: the next patch starts from it."""
        used: set[Digest] = set()
        for pursuit in self._pursuits():
            base = self._book.get(pursuit.base)
            used |= {pursuit.goal.digest, *(way.manifest for way in pursuit.route)}
            used |= {base.digest} if base is not None else set()
        if self._ready:
            used.add(max(self._ready.values(), key=lambda known: known.manifest.version).digest)
        return used

    def _keep_within_budget(self, in_use: set[Digest]) -> None:
        """Newest first, as many versions as fit; what is in use stays whatever it costs."""
        room = self._appetite.disk_bytes
        for known in self._book.known():
            room -= sum(self._held_bytes(ref) for ref in blobs_of(known.manifest))
            if room < 0 and known.digest not in in_use:
                self._release(known, roots_of(known.manifest))

    def _held_bytes(self, ref: BlobRef) -> int:
        have, total = self._relay.progress(ref.root)
        return ref.size_bytes * have // total if total else 0

    def _release(self, known: PolicyVersion, roots: Iterable[Digest]) -> None:
        """Free blobs of a version, unless another one consists of the same bytes."""
        self._ready.pop(known.digest, None)
        self._also.pop(known.digest, None)
        for root in roots:
            if not self._book.uses(root, besides=known.digest):
                self._relay.drop(root)
