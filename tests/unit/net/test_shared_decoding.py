"""Patches that a simulation decodes once: every machine still has each version, and the way back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from p2prl.net.process.version_rebuild import rebuild
from p2prl.patches.decode import Rebuilt, apply_route
from p2prl.sim import shared_decoding
from p2prl.sim.shared_decoding import SharedDecoding
from tests.unit.net.worker_disk import WORDS, Disk, versions_of


def test_simulated_machines_decode_a_route_once_and_each_has_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = []

    def counted(*streams: Any, **options: Any) -> Iterator[Rebuilt]:
        decoded.append(streams)
        return apply_route(*streams, **options)

    monkeypatch.setattr(shared_decoding, "apply_route", counted)
    disks, shared = [Disk(tmp_path / name, versions_of(WORDS)) for name in ("one", "other")], SharedDecoding()
    for route in ((0,), (0, 1), (1, 2)):
        for disk in disks:
            order = disk.order(*route)
            rebuild(order, None, shared.of(order))
            assert disk.held(route[-1]) == disk.weights(route[-1])
    assert len(decoded) == 3
    for version in (0, 1):
        assert all(disk.held(version) == disk.weights(version) for disk in disks), "the way back is right too"
