"""Disk and memory of a worker: shares that never exceed what its owner allows, refusals before anything is fetched."""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.cli.commands.join_worker import _Screen
from p2prl.cli.commands.owner_controls import plan_limits
from p2prl.cli.commands.worker_start import WorkerRequest, WorkerStart
from p2prl.cli.views.console import LiveView
from p2prl.cli.views.volunteer_view import EventLines
from p2prl.client.spool import SpoolConfig
from p2prl.config import machine_limits
from p2prl.config.machine_limits import (
    FREE_SHARE,
    LEAST_SPOOL_BYTES,
    SMALL_FILES_BYTES,
    MachineLimits,
    check_memory,
    enforce_memory,
    plan_disk,
    sampling_memory,
)
from p2prl.config.owner_limits import remember_limits
from p2prl.config.requirements import PROGRAM_BYTES, Requirements
from p2prl.config.worker_folder import claim_worker_folder
from p2prl.confinement.role_confinement import Protection
from p2prl.controls.energy import EnergyUse
from p2prl.controls.owner_values import Price
from p2prl.errors import ConfigError, MachineError
from p2prl.models.engines.engine_names import ChosenEngine
from p2prl.net.process.network_config import NETWORK_MEMORY_BYTES
from p2prl.protocol.digests import Digest
from p2prl.protocol.join_link import JoinLink
from p2prl.protocol.kinds import Role
from p2prl.quantity_text import size_text
from p2prl.swarm.groups.groups_config import GroupBodyConfig
from p2prl_lab.testing.sample_ledgers import manifest

W = 1_000_000_000
NEEDS = Requirements(
    files_bytes=2_000_000,
    data_bytes=50_000_000,
    weights_bytes=W,
    disk_bytes=52_000_000 + 4 * W,
    memory_bytes=PROGRAM_BYTES + 3 * W,
    engine_bytes=2 * W,
)
LEAST = 52_000_000 + 2 * W + SMALL_FILES_BYTES
"""Of a seeder: two versions, files, data, and a little for the rest."""
NOTHING = MachineLimits()


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def sampling_memory_of(limits: MachineLimits) -> int | None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(machine_limits, "enforce_memory", lambda limits, *, on_cpu: None)
        assert sampling_memory(limits, on_cpu=False) is None
        return sampling_memory(limits, on_cpu=True)


def with_free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, free))


@given(
    st.sampled_from([Role.VOLUNTEER, Role.VALIDATOR, Role.SEEDER]),
    st.integers(0, 40 * W),
    st.integers(0, 40 * W),
    st.booleans(),
)
def test_shares_never_exceed_the_figure_or_the_free_disk(role: Role, free: int, allowed: int, has_base: bool) -> None:
    with pytest.MonkeyPatch.context() as patched:
        with_free(patched, free)
        limits = MachineLimits(disk_gb=allowed / 1e9)
        try:
            plan = plan_disk(NEEDS, role, limits, Path("/nowhere"), has_base=has_base)
        except (ConfigError, MachineError):
            plan = None
        if plan is None:
            assert min(allowed or free, free) < 2 * LEAST + LEAST_SPOOL_BYTES + GroupBodyConfig().disk_bytes
            return
        assert plan.total_bytes <= (min(allowed, free) if allowed else FREE_SHARE * free)
        assert plan.network_bytes + plan.spool_bytes + SMALL_FILES_BYTES == plan.total_bytes
        assert plan.network_bytes >= NEEDS.least_disk_bytes(has_base=has_base)
        assert plan.spool_bytes <= SpoolConfig().max_bytes
        assert (plan.spool_bytes >= LEAST_SPOOL_BYTES) == (role is Role.VOLUNTEER)


def test_without_a_figure_a_run_gets_its_needs_and_one_version_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with_free(monkeypatch, 1000 * W)
    seeder = plan_disk(NEEDS, Role.SEEDER, NOTHING, Path("/nowhere"))
    assert seeder.total_bytes == NEEDS.disk_bytes + W + SMALL_FILES_BYTES
    validator = plan_disk(NEEDS, Role.VALIDATOR, NOTHING, Path("/nowhere"))
    assert validator.total_bytes == seeder.total_bytes + GroupBodyConfig().disk_bytes
    volunteer = plan_disk(NEEDS, Role.VOLUNTEER, NOTHING, Path("/nowhere"))
    assert volunteer.total_bytes == seeder.total_bytes + SpoolConfig().max_bytes


def test_the_smallest_figure_is_the_one_that_the_remedy_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with_free(monkeypatch, 1000 * W)
    exact = plan_disk(NEEDS, Role.SEEDER, MachineLimits(disk_gb=LEAST / 1e9), Path("/nowhere"))
    assert exact.network_bytes == NEEDS.least_disk_bytes()
    with pytest.raises(ConfigError, match=r"needs 2\.1 GB of disk, and --disk-gb allows 2\.1 GB") as caught:
        plan_disk(NEEDS, Role.SEEDER, MachineLimits(disk_gb=(LEAST - 1) / 1e9), Path("/nowhere"))
    assert "2.09 GB or more" in caught.value.remedy
    assert plan_disk(NEEDS, Role.SEEDER, MachineLimits(disk_gb=2.09), Path("/nowhere")).network_bytes >= LEAST - W


def test_a_full_disk_is_refused_and_bytes_held_already_count_as_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enough = -(-LEAST // FREE_SHARE)
    with_free(monkeypatch, int(enough))
    plan_disk(NEEDS, Role.SEEDER, NOTHING, tmp_path / "run")
    with_free(monkeypatch, int(enough) - 10)
    with pytest.raises(MachineError, match="are free") as caught:
        plan_disk(NEEDS, Role.SEEDER, NOTHING, tmp_path / "run")
    assert "--home" in caught.value.remedy
    (tmp_path / "run" / "blobs").mkdir(parents=True)
    (tmp_path / "run" / "blobs" / "a").write_bytes(bytes(10))
    plan_disk(NEEDS, Role.SEEDER, NOTHING, tmp_path / "run")


def test_a_volunteer_is_refused_before_work_starts(tmp_path: Path) -> None:
    worker = claim_worker_folder(tmp_path)
    engine, link = ChosenEngine("transformers", "the only one here"), JoinLink("unit", Digest(bytes(32)), ())

    def introduce(disk_gb: float) -> int:
        limits = plan_limits(tmp_path, ram_gb=0.0, upload_mbit=0.0, monthly_gb=0.0, disk_gb=disk_gb)
        request = WorkerRequest(
            link="", kind="seat", home=tmp_path, limits=limits, listen=None, transport="hivemind", confine=False
        )
        start = WorkerStart(request=request, link=link, worker=worker, base=None, protection=Protection(asked=False))
        screen = _Screen(
            *(LiveView(quiet=True), EventLines(asked=False), start, "cpu", engine),
            mirrors=False,
            energy=lambda: (EnergyUse(), Price()),
        )
        return screen.introduce(manifest())

    assert 0 < introduce(0.2) < 200_000_000
    with pytest.raises(ConfigError, match=r"--disk-gb allows 20\.0 kB"):
        introduce(20_000 / 1e9)
    worker.release()


@pytest.mark.parametrize(("on_cpu", "private"), [(True, PROGRAM_BYTES + 2 * W), (False, PROGRAM_BYTES)])
def test_a_model_that_does_not_fit_the_memory_is_refused(on_cpu: bool, private: int) -> None:
    check_memory(NEEDS, NOTHING, on_cpu=on_cpu, available_bytes=private)
    with pytest.raises(MachineError, match="of memory and"):
        check_memory(NEEDS, NOTHING, on_cpu=on_cpu, available_bytes=private - 1)
    generous = MachineLimits(ram_gb=(private + 2 * NETWORK_MEMORY_BYTES) / 1e9)
    check_memory(NEEDS, generous, on_cpu=on_cpu, available_bytes=1 << 60)
    with pytest.raises(ConfigError, match="--ram-gb allows") as caught:
        check_memory(NEEDS, MachineLimits(ram_gb=private / 1e9), on_cpu=on_cpu, available_bytes=1 << 60)
    assert "GB or more" in caught.value.remedy
    assert f"estimated {size_text(private)}" in str(caught.value), "the figure of the introduction"


@given(st.floats(0.6, 1000.0))
def test_the_networks_share_of_the_memory_is_at_most_a_gibibyte(ram_gb: float) -> None:
    limits = MachineLimits(ram_gb=ram_gb)
    assert 256_000_000 <= limits.network_memory_bytes <= NETWORK_MEMORY_BYTES
    room = sampling_memory_of(limits)
    assert room is not None
    assert room == 1 or room + PROGRAM_BYTES + 2 * limits.network_memory_bytes == limits.ram_bytes


@given(st.floats(1e-6, 1.1), st.booleans())
def test_less_memory_than_the_program_takes_is_refused_before_anything_is_limited(ram_gb: float, on_cpu: bool) -> None:
    with pytest.raises(ConfigError, match=r"any run needs .* of memory, and --ram-gb allows") as caught:
        enforce_memory(MachineLimits(ram_gb=ram_gb), on_cpu=on_cpu)
    assert f"estimated {size_text(PROGRAM_BYTES)}" in str(caught.value), "the figure of the introduction"
    (enough,) = re.findall(r"Give it (\S+) GB", caught.value.remedy)
    enforce_memory(MachineLimits(ram_gb=float(enough)), on_cpu=False)
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY, "this process is not limited"


@pytest.mark.parametrize("option", ["disk_gb", "ram_gb"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 2e6])
def test_impossible_figures_name_their_option(option: str, value: float) -> None:
    with pytest.raises(ConfigError, match="--" + option.replace("_", "-")):
        MachineLimits(**{option: value})  # type: ignore[arg-type]


def test_held_bytes_are_counted_while_folders_come_and_go(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(bytes(5))

    def come_and_go() -> None:
        for _ in range(500):
            (tmp_path / "run" / "blobs").mkdir(parents=True)
            (tmp_path / "run" / "blobs").rmdir()
            (tmp_path / "run").rmdir()

    with ThreadPoolExecutor(1) as pool:
        folders = pool.submit(come_and_go)
        while not folders.done():
            assert machine_limits.held_bytes(tmp_path) == 5
        folders.result()


def test_held_bytes_count_files_and_no_links(tmp_path: Path) -> None:
    assert machine_limits.held_bytes(tmp_path / "nowhere") == 0
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(bytes(7))
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b")
    assert machine_limits.held_bytes(tmp_path) == 7


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels do not count maps in RLIMIT_DATA")
def test_the_kernel_holds_a_process_to_its_memory() -> None:
    probe = (
        "from p2prl.memory_limit import limit_memory_growth, private_bytes\n"
        "limit_memory_growth(100_000_000)\n"
        "held = bytearray(60_000_000)\n"
        "try:\n    more = bytearray(60_000_000)\nexcept MemoryError:\n    print('refused')\n"
    )
    ended = subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True)
    assert ended.stdout == "refused\n"
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY, "this process is not limited"


def test_a_refusal_names_the_place_where_the_owner_set_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_free(monkeypatch, 1000 * W)
    for name, text, seen, remedy in (
        ("command", "1GB", "p2prl limits disk allows 1.0 GB", "p2prl limits disk=2.09GB or more"),
        ("file", "1GB", "disk in config.toml allows 1.0 GB", 'Set disk = "2.09GB" or more there'),
        ("option", "", "--disk-gb allows 1.0 GB", "Give it 2.09 GB or more, or leave --disk-gb out"),
    ):
        home = tmp_path / name
        home.mkdir()
        if name == "command":
            remember_limits(home, {"disk": text})
        elif name == "file":
            (home / "config.toml").write_text(f'[limits]\ndisk = "{text}"\n')
        disk_gb = 0.0 if text else 1.0
        planned = plan_limits(home, ram_gb=0.0, upload_mbit=0.0, monthly_gb=0.0, disk_gb=disk_gb)
        with pytest.raises(ConfigError) as caught:
            plan_disk(NEEDS, Role.SEEDER, planned.machine, Path("/nowhere"))
        assert seen in str(caught.value)
        assert remedy in caught.value.remedy
