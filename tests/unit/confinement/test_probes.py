"""Marker probes from inside every confined process: whatever would hurt the owner's machine is refused.

Takes seconds: it starts a pool and three programs, each confined as the product confines it.
"""

from __future__ import annotations

import platform
import sys

import pytest

from p2prl.confinement import linux
from p2prl.confinement.seccomp_filter import ARCHITECTURES
from p2prl_lab.testing.confinement_probes import PROCESSES, Finding, findings

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
    "exec", "fork", "ptrace", "signal", "change of a mode", "big allocation",
}  # fmt: skip


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
    network = {"write outside", "read of the home folder", "list of the home folder", "exec", "ptrace", "signal"}
    assert probes == (network if process == "network" else NEEDED)


def test_files_are_refused_by_landlock_and_calls_by_seccomp(found: list[Finding]) -> None:
    for row in found:
        if row.probe in ("read of the home folder", "list of the home folder"):
            assert row.by == "Landlock", row
        if row.probe in ("socket", "fork", "ptrace", "change of a mode"):
            assert row.by == "seccomp", row
        if row.probe == "big allocation":
            assert row.by == "limits", row
