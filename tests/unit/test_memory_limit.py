"""The limit on private memory: it holds for what a process takes, a lower one stays, and files do not count."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from p2prl import memory_limit

MB = 1_000_000

_MEASURED = """
import resource, sys
from p2prl.memory_limit import limit_memory, limit_memory_growth, private_bytes
MB = 1_000_000
def takes(size):
    try:
        held = bytearray(size)
    except MemoryError:
        return False
    return len(held) == size
"""


def run(code: str) -> list[str]:
    """Lines that a new process prints."""
    return subprocess.run(
        [sys.executable, "-c", _MEASURED + code], check=True, capture_output=True, text=True
    ).stdout.split()


def test_a_process_takes_as_much_more_as_it_may() -> None:
    if sys.platform != "linux":  # macOS accepts the limit and does not count maps in it
        return
    assert run("limit_memory_growth(100 * MB); print(takes(80 * MB), takes(120 * MB))") == ["True", "False"]
    assert run("limit_memory_growth(-5); print(takes(20 * MB))") == ["False"], "nothing more"
    assert run("limit_memory(private_bytes() + 100 * MB); print(takes(80 * MB), takes(120 * MB))") == ["True", "False"]


def test_a_lower_limit_stays() -> None:
    code = (
        "most = private_bytes() + 500 * MB\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (most, most))\n"
        "limit_memory(most + MB); print(resource.getrlimit(resource.RLIMIT_DATA) == (most, most))\n"
        "limit_memory(most - MB); print(resource.getrlimit(resource.RLIMIT_DATA) == (most - MB, most))\n"
    )
    assert run(code) == ["True", "True"]


def test_private_memory_grows_by_what_is_held() -> None:
    if sys.platform != "linux":
        return
    before, after = map(int, run("print(private_bytes()); held = bytearray(200 * MB); print(private_bytes())"))
    assert 0 < before < 500 * MB
    assert 195 * MB < after - before < 260 * MB


def test_where_the_kernel_does_not_tell_nothing_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    for status in (tmp_path / "missing", tmp_path / "other"):
        (tmp_path / "other").write_text("Name: python\nVmSize: 5 kB\n")
        monkeypatch.setattr(memory_limit, "_STATUS", status)
        assert memory_limit.private_bytes() == 0
        memory_limit.limit_memory_growth(1)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
