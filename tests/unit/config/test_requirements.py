"""Requirements of a run by its manifest, and a disk without room for it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from p2prl.cli.commands.join_worker import _Screen
from p2prl.cli.views.console import LiveView
from p2prl.config.requirements import Requirements, check_cap, check_room, requirements_of, size_text
from p2prl.config.worker_folder import claim_worker_folder
from p2prl.errors import ConfigError, MachineError
from p2prl.models.engine_registry import ChosenEngine
from p2prl.protocol.digests import Digest
from p2prl.protocol.join_link import JoinLink
from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import DataSet, RunFile, TaskShare, blob_of
from p2prl.testing.sample_ledgers import manifest

NEEDS = Requirements(files_bytes=1_000, data_bytes=0, weights_bytes=100_000, disk_bytes=0, memory_bytes=0)


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_requirements_follow_from_the_manifest() -> None:
    files = tuple(RunFile(name, blob_of(bytes(5_000), 4096)) for name in ("config.json", "tokenizer.json"))
    run = msgspec.structs.replace(manifest(), parameters=1_000_000, dtype="bfloat16", files=files)
    volunteer, validator = requirements_of(run, Role.VOLUNTEER), requirements_of(run, Role.VALIDATOR)
    assert volunteer.download_bytes == 2_010_000
    assert volunteer.disk_bytes == 10_000 + 4 * 2_000_000
    assert validator.disk_bytes > volunteer.disk_bytes
    wide = requirements_of(msgspec.structs.replace(run, dtype="float32"), Role.VOLUNTEER)
    assert wide.weights_bytes == 2 * volunteer.weights_bytes
    assert wide.memory_bytes - volunteer.memory_bytes == 2 * 2_000_000
    computed_wide = requirements_of(msgspec.structs.replace(run, compute_dtype="float32"), Role.VOLUNTEER)
    assert computed_wide.weights_bytes == volunteer.weights_bytes
    assert computed_wide.memory_bytes - volunteer.memory_bytes == 2_000_000


def test_data_counts_as_download_and_on_disk_by_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts, answers, code = (blob_of(bytes(size), 4096) for size in (30_000, 50_000, 700))
    data = DataSet("rows", 3, prompts, answers, "{}", code)
    tasks = (*manifest().tasks, TaskShare("rows", 1.0))
    run = msgspec.structs.replace(manifest(), files=(), parameters=1_000, tasks=tasks, data_sets=(data,))
    volunteer, weights = requirements_of(run, Role.VOLUNTEER), requirements_of(run, Role.VOLUNTEER).weights_bytes
    assert volunteer.data_bytes == 30_000
    assert volunteer.download_bytes == 30_000 + weights
    assert volunteer.disk_bytes == 30_000 + 4 * weights
    assert requirements_of(run, Role.VALIDATOR).data_bytes == 30_000
    assert requirements_of(run, Role.VALIDATOR, runs_code=True).data_bytes == 80_700
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 30_000 + 2 * weights))
    check_room(volunteer, tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 29_999 + 2 * weights))
    with pytest.raises(MachineError):
        check_room(volunteer, tmp_path)


@pytest.mark.parametrize(("disk_gb", "refused"), [(0.0, False), (1.2, False), (1.3, False), (1.199999999, True)])
def test_data_larger_than_the_cap_is_refused(disk_gb: float, refused: bool) -> None:
    needs = replace(NEEDS, data_bytes=1_200_000_000)
    if not refused:
        check_cap(needs, disk_gb)
        return
    with pytest.raises(ConfigError, match=r"data has 1.2 GB, and --disk-gb allows 1.2 GB") as caught:
        check_cap(needs, disk_gb)
    assert "--disk-gb" in caught.value.remedy


def test_a_volunteer_is_refused_before_work_starts(tmp_path: Path) -> None:
    prompts = blob_of(bytes(30_000), 4096)
    run = msgspec.structs.replace(manifest(), data_sets=(DataSet("rows", 3, prompts, prompts, "{}"),))
    worker = claim_worker_folder(tmp_path)
    engine, link = ChosenEngine("transformers", "the only one here"), JoinLink("unit", Digest(bytes(32)), ())

    def introduce(disk_gb: float) -> None:
        _Screen(LiveView(quiet=True), link, worker, "cpu", engine, disk_gb=disk_gb).introduce(run)

    introduce(30_000 / 1e9)
    with pytest.raises(ConfigError, match=r"30\.0 kB, and --disk-gb allows 20\.0 kB"):
        introduce(20_000 / 1e9)
    worker.release()


def test_disk_without_room_for_two_versions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = 201_000
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, free))
    check_room(NEEDS, tmp_path)
    free = 200_999
    with pytest.raises(MachineError, match=r"needs 201 kB of disk .* 201 kB are free") as caught:
        check_room(NEEDS, tmp_path)
    assert "P2PRL_HOME" in caught.value.remedy
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "a").write_bytes(bytes(1))
    check_room(NEEDS, tmp_path)


def test_unreadable_disk_is_not_refused(tmp_path: Path) -> None:
    huge = Requirements(files_bytes=0, data_bytes=0, weights_bytes=1 << 60, disk_bytes=0, memory_bytes=0)
    check_room(huge, tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (999, "999 B"), (1_000, "1.0 kB"), (99_940, "99.9 kB"), (123_456, "123 kB"),
        (999_499, "999 kB"), (999_500, "1.0 MB"), (2_500_000_000, "2.5 GB"), (1_234_000_000_000, "1,234.0 GB"),
    ],
)  # fmt: skip
def test_sizes_read_well(size: int, text: str) -> None:
    assert size_text(size) == text
