"""A peer without a model: the product's network process alone, publishing or following random weights.

    python -m p2prl_lab.home_networks.network_peer JSON

The argument is an object with `role` (learner, volunteer or seeder), `folder`, `link` (a file: the learner writes it,
the others read it), `weight_bytes`, `period_s` between the learner's versions, `listen`, and
perhaps `transport`. A seeder that `waits`
reads no link: the learner dials it, which gets its address in `via`. A learner that is started again in its folder goes
on with the next version. Writes `status.json` into its folder every second, until Ctrl-C.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from blake3 import blake3

from p2prl.cli.commands.learn_link import link_addresses
from p2prl.clock import SystemClock
from p2prl.net.listen_addresses import DEFAULT_LISTEN
from p2prl.net.process import control
from p2prl.net.process.handle import NetworkHandle
from p2prl.net.process.network_config import NetworkConfig
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.net.storage.key_file import create_identity
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import PolicyManifest, blob_of
from p2prl.sim.machines import identity_of
from p2prl.swarm import signals
from p2prl.swarm.node_config import NodeConfig
from p2prl_lab.testing.shaped_swarm import run_manifest

_CHUNK_BYTES = 64 * 1024
_POLL_S = 0.25
_STATUS_S = 1.0


class NetworkPeer:
    """One peer and its status file."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._folder = Path(given["folder"])
        self._role = Role[given["role"].upper()]
        self._weight_bytes, self._period_s = int(given["weight_bytes"]), float(given["period_s"])
        self._link = Path(given["link"])
        self._via = tuple(given.get("via", ()))
        manifest = run_manifest(self._weight_bytes)
        self._run = Digest(envelope_digest(manifest))
        waits = bool(given.get("waits"))
        is_first = waits or self._role is Role.LEARNER
        self._identity = self._make_identity()
        self._status: dict[str, Any] = {"peer": self._identity.peer_id, "role": given["role"], "version": -1}
        self._announced_at = time.monotonic()
        self._own: tuple[str, ...] = ()
        self._network = NetworkHandle(
            NetworkConfig(
                key_file=self._folder / "key",
                run=self._run,
                node=NodeConfig(role=self._role, is_listed=self._role is Role.SEEDER),
                blob_dir=self._folder / "blobs",
                listen=tuple(given["listen"]) or DEFAULT_LISTEN,
                bootstrap=self._via if is_first else tuple(json.loads(self._link.read_text())),
                peers_file=self._folder / "peers",
                manifest=b"" if waits else manifest,
                transport=given.get("transport", "hivemind"),
            ),
            on_start=self._introduce,
        )

    def run(self) -> None:
        """Serve until Ctrl-C."""
        said, published = 0.0, time.monotonic()
        try:
            while True:
                for message in self._network.poll(_POLL_S):
                    self._note(message)
                now = time.monotonic()
                if self._role is Role.LEARNER and self._status["version"] >= 0 and now - published > self._period_s:
                    published = now
                    self._publish()
                if now - said > _STATUS_S:
                    said = now
                    self._write(self._folder / "status.json", {**self._status, "time": time.time()})
        finally:
            self._network.close()

    def _make_identity(self) -> Identity:
        identity = identity_of("learner") if self._role is Role.LEARNER else identity_of(self._folder.name)
        if not (self._folder / "key").exists():
            create_identity(self._folder / "key", identity)
        return identity

    def _introduce(self, network: NetworkHandle) -> None:
        newest = self._folder / "newest.manifest"
        if newest.exists():
            network.send(signals.Publish(newest.read_bytes()))

    def _publish(self) -> None:
        """Publish the next version: other random bytes each time."""
        kept = self._folder / "newest.json"
        version, previous = json.loads(kept.read_text()) if kept.exists() else (-1, "")
        version += 1
        weights = random.Random(version).randbytes(self._weight_bytes)  # noqa: S311 - content for a measurement
        ref = blob_of(weights, _CHUNK_BYTES)
        DiskBlobStore(self._folder / "blobs").add(ref, weights)
        now = SystemClock().now()
        policy = PolicyManifest(
            version, version, ref, blake3(weights).digest(), bytes.fromhex(previous), bytes(32), int(now * 1000)
        )
        raw = seal(self._identity, policy, run=self._run, now=now)
        self._network.send(signals.Publish(raw))
        (self._folder / "newest.manifest").write_bytes(raw)
        self._write(kept, [version, envelope_digest(raw).hex()])
        self._status["version"] = version

    def _note(self, message: control.FromNetwork) -> None:
        match message:
            case control.NetworkUp(addresses=addresses):
                self._status["addresses"] = list(addresses)
                if self._role is Role.LEARNER:
                    self._own = addresses
                    self._write(self._link, link_addresses(self._own, self._via))
                    self._publish()
            case signals.VersionAnnounced():
                self._announced_at = time.monotonic()
            case control.VersionReady(policy=policy):
                if self._role is not Role.LEARNER:
                    self._status.setdefault("took_s", []).append(round(time.monotonic() - self._announced_at, 3))
                self._status["version"] = policy.version
            case control.Status() as status:
                received = status.received_from_source + status.received_from_peers
                self._status |= {
                    "peers": dict(status.peers),
                    "weight_bytes_received": received,
                    "weight_bytes_from_learner": status.received_from_source,
                    "weight_bytes_sent": status.sent,
                    "addresses": list(status.addresses),
                }
                if self._role is Role.LEARNER and self._own:
                    self._write(
                        self._link, link_addresses(self._own, tuple(dict.fromkeys((*self._via, *status.link_peers))))
                    )
            case control.Warned(message=text):
                print(text, flush=True)
            case _:
                pass

    @staticmethod
    def _write(path: Path, document: Any) -> None:
        new = path.with_suffix(".new")
        new.write_text(json.dumps(document))
        new.rename(path)


if __name__ == "__main__":
    try:
        NetworkPeer(json.loads(sys.argv[1])).run()
    except KeyboardInterrupt:
        sys.exit(130)
