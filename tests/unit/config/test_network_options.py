"""Network settings made from a worker's options."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from p2prl.config.network_options import UploadCaps, peer_network
from p2prl.config.worker_folder import WorkerFolder, claim_worker_folder
from p2prl.net.process.network_config import ReachOptions
from p2prl.protocol.digests import Digest
from p2prl.protocol.join_link import JoinLink
from p2prl.protocol.kinds import Role
from p2prl.swarm.policies.retention import VERSIONS_KEPT

LINK = JoinLink("unit", Digest(bytes(32)), ())


@pytest.fixture
def worker_folder(tmp_path: Path) -> Iterator[WorkerFolder]:
    taken = claim_worker_folder(tmp_path)
    yield taken
    taken.release()


def test_nothing_is_downloaded_before_the_worker_accepts_the_run(worker_folder: WorkerFolder) -> None:
    assert all(peer_network(LINK, worker_folder, role, ()).node.awaits_consent for role in VERSIONS_KEPT)


@pytest.mark.parametrize("role", [Role.VOLUNTEER, Role.VALIDATOR, Role.SEEDER])
def test_every_worker_rebuilds_versions_from_patches(worker_folder: WorkerFolder, role: Role) -> None:
    assert peer_network(LINK, worker_folder, role, ()).node.rebuilds


def test_only_a_worker_with_a_base_delays_downloads(worker_folder: WorkerFolder) -> None:
    assert peer_network(LINK, worker_folder, Role.VOLUNTEER, (), has_base=True).node.awaits_base
    assert not peer_network(LINK, worker_folder, Role.VOLUNTEER, ()).node.awaits_base


@pytest.mark.parametrize("role", [Role.VOLUNTEER, Role.VALIDATOR, Role.SEEDER])
def test_upload_caps_are_in_bytes(worker_folder: WorkerFolder, role: Role) -> None:
    capped = peer_network(LINK, worker_folder, role, (), UploadCaps(upload_mbit=8.0, monthly_gb=0.5))
    assert (capped.node.relay.upload_bytes_s, capped.monthly_bytes) == (1_000_000.0, 500_000_000)
    free = peer_network(LINK, worker_folder, role, ())
    assert (free.node.relay.upload_bytes_s, free.monthly_bytes) == (0.0, 0)


def test_join_links_may_name_seeders_and_those_who_ask_for_it(worker_folder: WorkerFolder) -> None:
    listed = {
        (role, is_public): peer_network(
            LINK, worker_folder, role, (), reach=ReachOptions(is_public=is_public)
        ).node.is_listed
        for role in VERSIONS_KEPT
        for is_public in (False, True)
    }
    assert {case for case, is_listed in listed.items() if not is_listed} == {
        (Role.VOLUNTEER, False),
        (Role.VALIDATOR, False),
    }
