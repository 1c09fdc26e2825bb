"""Download of a run's files and of the data that a node's role needs. Pure: it drives the relay."""

from __future__ import annotations

from collections.abc import Sequence

from p2prl.protocol.digests import Digest
from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import RunManifest
from p2prl.protocol.run_blobs import blobs_for, data_blobs
from p2prl.swarm.node_config import NodeConfig
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
