"""Network settings of a worker, from a join link, its worker folder and command-line options. Needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from p2prl.config.owner_files import load_delegation, load_memberships, load_revocations
from p2prl.config.worker_folder import WorkerFolder
from p2prl.disk_full import replace_file, write_error
from p2prl.errors import ConfigError
from p2prl.net.process.network_config import NETWORK_MEMORY_BYTES, NetworkConfig, ReachOptions
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import envelope_digest
from p2prl.protocol.join_link import JoinLink
from p2prl.protocol.kinds import Role
from p2prl.swarm.node_config import NodeConfig
from p2prl.swarm.policies.retention import VERSIONS_KEPT
from p2prl.swarm.relay.relay_config import RelayConfig

_MOST_CAP = 1e6
"""1 Tbit/s, or a petabyte a month: more is a typing error."""


PEERS_FILE = "peers"
"""Name of the file of remembered peers, in a run folder or in a worker's folder of the run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UploadCaps:
    """Upload limits set by the user."""

    upload_mbit: float = 0.0
    """Mbit/s for chunks; 0 measures the upload bandwidth and uses 80 % of it."""
    monthly_gb: float = 0.0
    """GB (10⁹ bytes) of chunks per calendar month; 0 means no limit."""

    def __post_init__(self) -> None:
        for name, value in (("--upload-mbit", self.upload_mbit), ("--monthly-gb", self.monthly_gb)):
            if not (math.isfinite(value) and 0.0 <= value <= _MOST_CAP):
                raise ConfigError(f"{name} {value:g} is outside 0 to {_MOST_CAP:g}", remedy="0 sets no cap.")

    @property
    def bytes_s(self) -> float:
        """Bytes per second for chunks; 0 measures the upload bandwidth."""
        return self.upload_mbit * 125_000.0

    @property
    def monthly_bytes(self) -> int:
        """Bytes of chunks per calendar month; 0 means no limit."""
        return int(self.monthly_gb * 1e9)


def peer_network(
    link: JoinLink,
    worker_folder: WorkerFolder,
    role: Role,
    listen: tuple[str, ...],
    caps: UploadCaps | None = None,
    *,
    memory_bytes: int = NETWORK_MEMORY_BYTES,
    has_base: bool = False,
    runs_code: bool = False,
    transport: str = "hivemind",
    reach: ReachOptions | None = None,
) -> NetworkConfig:
    """Network settings of a worker. With a run manifest kept from an earlier start, it can begin without a peer.

    Nothing of the run is downloaded until the worker has accepted it, with the disk it may use
    (`p2prl.config.machine_limits`). `memory_bytes` bounds the network process. With `has_base` no weights are
    downloaded until the worker has announced its local base; with `runs_code` a researcher's own scorer is.
    """
    caps = caps or UploadCaps()
    directory = worker_folder.run_directory(link.run)
    reach = reach or ReachOptions()
    key = worker_folder.identity.public_key
    delegation = load_delegation(worker_folder.directory, key)
    members = {key} if delegation is None else {key, delegation.owner}
    return NetworkConfig(
        key_file=worker_folder.key_file,
        run=link.run,
        node=NodeConfig(
            role=role,
            keep_versions=VERSIONS_KEPT[role],
            rebuilds=True,
            awaits_base=has_base,
            runs_code=runs_code,
            awaits_consent=True,
            is_listed=reach.is_public or role is Role.SEEDER,
            delegations=() if delegation is None else (delegation,),
            revocations=load_revocations(worker_folder.home),
            memberships=tuple(each for each in load_memberships(worker_folder.home).values() if each.member in members),
            relay=RelayConfig(upload_bytes_s=caps.bytes_s),
        ),
        blob_dir=blobs_of_worker(worker_folder, link.run),
        listen=listen,
        bootstrap=link.bootstrap,
        peers_file=directory / PEERS_FILE,
        manifest=known_run(directory, link.run),
        monthly_bytes=caps.monthly_bytes,
        memory_bytes=memory_bytes,
        reach=reach,
        transport=transport,
    )


def blobs_of_worker(worker_folder: WorkerFolder, run: Digest) -> Path:
    """Folder of a worker's weights and patches of a run."""
    return worker_folder.run_directory(run) / "blobs"


def remember_run(directory: Path, raw: bytes) -> None:
    """Keep the run manifest on disk, so that the next start can begin without a peer."""
    try:
        replace_file(directory / "run.manifest", raw)
    except OSError as error:
        raise write_error(error, f"in {directory}") from error


def is_remembered(directory: Path) -> bool:
    """Whether `remember_run` has stored a run manifest there: the run was accepted."""
    return (directory / "run.manifest").exists()


def known_run(directory: Path, run: Digest) -> bytes:
    """The run manifest kept by `remember_run`; empty when there is none or the file is damaged."""
    try:
        raw = (directory / "run.manifest").read_bytes()
    except OSError:
        return b""
    return raw if envelope_digest(raw) == run else b""
