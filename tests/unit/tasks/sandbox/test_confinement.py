"""Confinement of a process: what is still open in it, with and without Landlock."""

from __future__ import annotations

import json
import mimetypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from p2prl.confinement import linux
from p2prl.confinement.layers import ALL_LAYERS, LANDLOCK, LIMITS, SECCOMP, readable_paths

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux's")

ROOT = Path(__file__).resolve().parents[4]

PROGRAM = """
import json, os, socket, sys
from p2prl.confinement import linux
from p2prl.tasks.sandbox.confinement import confine_fork_server, confine_worker
if sys.argv[1] == "without":
    linux.landlock_version = lambda: 0
before = json.__file__
held = confine_fork_server()
confine_worker(held, memory_bytes=10**9, cpu_s=0)
def refused(attempt):
    try: attempt()
    except OSError as error: return error.errno
    return 0
print(json.dumps({
    "layers": held.layers,
    "own package": refused(lambda: open(before)),
    "key": refused(lambda: open(sys.argv[2])),
    "write": refused(lambda: open(sys.argv[2] + "x", "w")),
    "socket": refused(socket.socket),
    "fork": refused(os.fork),
    "kill": refused(lambda: os.kill(os.getppid(), 0)),
}))
"""


def confined(which: str, key: Path) -> dict[str, object]:
    key.write_text("secret")
    command = [sys.executable, "-c", PROGRAM, which, str(key)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    result: dict[str, object] = json.loads(done.stdout)
    return result


def test_a_confined_process_reads_its_packages_and_nothing_else(tmp_path: Path) -> None:
    result = confined("with", tmp_path / "key")
    layers = result.pop("layers")
    assert isinstance(layers, list)
    assert LIMITS in layers
    assert set(layers) <= set(ALL_LAYERS)
    if {LANDLOCK, SECCOMP} <= set(layers):
        assert result == {"own package": 0, "key": 13, "write": 1, "socket": 1, "fork": 1, "kill": 1}


def test_without_landlock_it_reads_no_file_at_all(tmp_path: Path) -> None:
    result = confined("without", tmp_path / "key")
    layers = result.pop("layers")
    assert isinstance(layers, list)
    assert LANDLOCK not in layers
    if SECCOMP in layers:
        assert result == {"own package": 13, "key": 13, "write": 13, "socket": 1, "fork": 1, "kill": 1}


def test_no_folder_of_a_project_is_readable() -> None:
    readable = {path.resolve() for path in readable_paths() if path.exists()}
    assert ROOT / "p2prl" in readable
    assert ROOT / "client" in readable
    for private in (ROOT, Path.home(), Path("/"), Path("/etc"), Path("/proc"), Path("/tmp"), Path.cwd()):
        assert private.resolve() not in readable


def test_what_python_opens_to_know_types_of_files_is_readable() -> None:
    assert set(map(Path, mimetypes.knownfiles)) <= set(readable_paths())


def test_rules_of_every_landlock_version_have_a_known_size() -> None:
    version = linux.landlock_version()
    if version:
        ruleset = linux.landlock_ruleset(linux.Access(readable=(Path("/usr"), Path("/nonexistent"))))
        assert not os.get_inheritable(ruleset)
        os.close(ruleset)
