"""Policy versions kept on disk across restarts: each version's signed manifest beside its weights, or its weight chain.

A peer that was offline for a day starts from the version it had, and reaches the newest one by a few patches. Nothing
is trusted: the manifest is verified and every chunk hashed again before use.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from p2prl.errors import IntegrityError, RemoteProtocolError
from p2prl.net.storage.chain_blobs import CHAIN_FOLDER
from p2prl.net.storage.chain_reader import ChainReader
from p2prl.net.storage.tree_files import NEW_TREE_SUFFIX, TREE_SUFFIX
from p2prl.protocol.envelope import Opened, body_of, envelope_digest, open_envelope
from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import PolicyManifest, RunManifest
from p2prl.protocol.run_blobs import blobs_for

_SUFFIX = ".policy"

_HALF_WRITTEN = frozenset({".new", ".new-policy", ".rebuilt", NEW_TREE_SUFFIX})
"""Suffixes of files that only a killed process leaves behind."""

_MAX_MANIFESTS = 256
"""Manifests read at startup; a run keeps far fewer, and a directory full of them must not delay the start."""


class KeptVersions:
    """Manifests in a blob directory, one file each, named by the root of the weights."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def keep(self, raw: bytes, manifest: PolicyManifest) -> None:
        """Store the manifest of a version whose weights are here, and delete those of versions whose weights are gone.

        A failure is ignored: the manifest only saves a download, and a full disk is reported elsewhere.
        """
        path = self._directory / (manifest.weights.root.hex() + _SUFFIX)
        new = path.with_suffix(".new-policy")
        with contextlib.suppress(OSError):
            new.write_bytes(raw)
            new.rename(path)
            chained = self._chained()
            for other in self._directory.glob(f"*{_SUFFIX}"):
                if not other.with_suffix("").exists() and other.stem not in chained:
                    other.unlink()

    def found(self, run_manifest: bytes) -> list[bytes]:
        """Envelopes of versions of this run whose weights are still here, oldest first.

        Deletes files that no version needs: those of versions dropped long ago, and half-written ones of a killed
        process. Files newer than the newest version stay: they may be patches of the next one, and a later start
        deletes them if they are not.
        """
        run = open_envelope(run_manifest, now=None)
        manifest = body_of(run, RunManifest)
        versions: list[tuple[int, bytes]] = []
        needed = {file.blob.root.hex() for file in blobs_for(manifest, Role.SEEDER)}
        newest_at, chained = 0.0, self._chained()
        for path in sorted(self._directory.glob(f"*{_SUFFIX}"))[:_MAX_MANIFESTS]:
            version_manifest = self._read(path, run, manifest.learner)
            if version_manifest is None or not (path.with_suffix("").exists() or path.stem in chained):
                continue
            versions.append((version_manifest.version, path.read_bytes()))
            newest_at = max(newest_at, path.stat().st_mtime)
            needed |= {
                path.name,
                *(ref.root.hex() for ref in (version_manifest.weights, *(p.blob for p in version_manifest.patches))),
            }
        for path in self._directory.iterdir():
            # An incomplete download of a version not known yet may be resumed; it is no larger than one version.
            if path.name in needed or path.suffix in (".part", TREE_SUFFIX) or not path.is_file():
                continue
            if path.suffix in (*_HALF_WRITTEN, _SUFFIX) or path.stat().st_mtime < newest_at:
                path.unlink(missing_ok=True)
        for path in self._directory.glob(f"*{TREE_SUFFIX}"):
            is_whole = path.with_suffix("").exists() or path.stem in chained
            if not is_whole and not path.with_suffix(".part").exists():
                path.unlink(missing_ok=True)
        return [raw for _, raw in sorted(versions)]

    def _chained(self) -> frozenset[str]:
        """Names of the versions in the weight chain."""
        with contextlib.suppress(IntegrityError):
            state = ChainReader(self._directory / CHAIN_FOLDER).state
            return frozenset() if state is None else frozenset(root.hex() for root in state.roots.values())
        return frozenset()

    @staticmethod
    def _read(path: Path, run: Opened, learner: bytes) -> PolicyManifest | None:
        """The manifest in a file, if the run's learner signed it for this run."""
        try:
            raw = path.read_bytes()
            opened = open_envelope(raw, now=None)
            version_manifest = body_of(opened, PolicyManifest)
        except (OSError, RemoteProtocolError):
            return None
        ours = opened.run == envelope_digest(run.raw) and opened.author == learner
        return version_manifest if ours and path.name == version_manifest.weights.root.hex() + _SUFFIX else None
