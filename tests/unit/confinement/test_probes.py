"""Marker probes from inside every confined process: whatever would hurt the owner's machine is refused.

Takes seconds: it starts a pool and three programs, each confined as the product confines it.
"""

from __future__ import annotations

import platform
import sys

import pytest

from p2prl.confinement import linux
from p2prl.confinement.scorer_filter import ARCHITECTURES
from p2prl_lab.testing.confinement_probes import NETWORK_JOBS, OPEN_TO_WORKERS, PROCESSES, Finding, findings

MISSING = [
    layer
    for layer, there in (
        ("Linux", sys.platform == "linux"),
        ("Landlock", sys.platform == "linux" and linux.landlock_version() > 0),
        ("seccomp", platform.machine() in ARCHITECTURES),
    )
    if not there
]

NEEDED = {
    "write outside", "read of the home folder", "list of the home folder", "socket", "message to another program",
    "connection to another program", "connection to a socket without a file", "exec", "fork", "ptrace", "signal",
    "signal by way of a file", "priority of another program", "processors of another program",
    "scheduling of another program", "limits of another program", "change of a mode", "big allocation", "capabilities",
    "host name", "boot id", "machine id", "address of a network card", "address of a network card by ioctl",
}  # fmt: skip

OF_OTHER_PROGRAMS = {name for name in NEEDED if name.endswith("of another program")}


@pytest.fixture(scope="module")
def found() -> list[Finding]:
    if MISSING:
        pytest.skip(f"this system lacks {', '.join(MISSING)}")
    return list(findings())


@pytest.mark.parametrize("process", PROCESSES)
def test_every_probe_is_refused(process: str, found: list[Finding]) -> None:
    rows = [row for row in found if row.process == process]
    assert [row for row in rows if not row.refused] == []
    probes = {row.probe for row in rows}
    jobs = {"network": set(NETWORK_JOBS), "worker": set(OPEN_TO_WORKERS), "worker's thread": set(OPEN_TO_WORKERS)}
    assert probes == NEEDED - jobs.get(process, set())


def test_files_are_refused_by_landlock_and_calls_by_seccomp(found: list[Finding]) -> None:
    for row in found:
        if row.probe in ("read of the home folder", "list of the home folder"):
            assert row.by == "Landlock", row
        if row.probe in ("socket", "fork", "ptrace", "change of a mode", "signal by way of a file"):
            assert row.by == "seccomp", row
        if row.probe in OF_OTHER_PROGRAMS or row.probe == "connection to another program":
            assert row.by == "seccomp", row
        if row.probe == "big allocation":
            assert row.by == "limits", row
