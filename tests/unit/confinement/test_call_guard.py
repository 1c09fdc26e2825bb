"""The guard of a network process: what it connects, signals and tells, and how the two end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from p2prl.confinement.call_guard import is_possible

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.skipif(not is_possible(), reason="this system lets nobody guard a process")

START = """
import os, socket, sys, threading, time, ctypes, struct
from pathlib import Path
from p2prl.confinement.role_confinement import confine_network
own, sockets, other = map(Path, sys.argv[1:4])
victim, port = map(int, sys.argv[4:])
guard = confine_network(own, sockets, (Path("/bin/sleep"),))
assert guard is not None
def outcome(name, step):
    try:
        print(name, step())
    except OSError as error:
        print(name, type(error).__name__)
def connect(family, address):
    with socket.socket(family) as caller:
        caller.connect(address)
"""

CONNECTS = """
outcome("own", lambda: connect(socket.AF_UNIX, str(sockets / "listener")))
outcome("own-deeper", lambda: connect(socket.AF_UNIX, str(sockets / "daemon" / "listener")))
outcome("other", lambda: connect(socket.AF_UNIX, str(other / "listener")))
outcome("dotted", lambda: connect(socket.AF_UNIX, f"{sockets}/../{other.name}/listener"))
outcome("link", lambda: connect(socket.AF_UNIX, str(sockets / "link")))
outcome("linked-folder", lambda: connect(socket.AF_UNIX, str(sockets / "folder" / "listener")))
outcome("relative", lambda: connect(socket.AF_UNIX, "listener"))
outcome("abstract", lambda: connect(socket.AF_UNIX, chr(0) + "listener"))
outcome("file", lambda: connect(socket.AF_UNIX, str(sockets / "file")))
outcome("internet", lambda: connect(socket.AF_INET, ("127.0.0.1", port)))
"""

SIGNALS = """
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
outcome("others", lambda: os.kill(victim, 0))
outcome("guard", lambda: os.kill(os.getppid(), 0))
outcome("group", lambda: os.kill(0, 0))
outcome("all", lambda: os.kill(-1, 0))
outcome("measured", lambda: guard.children_bytes() > 1_000_000)
outcome("own-child", lambda: os.kill(child, 9))
outcome("ended", lambda: os.waitpid(child, 0)[1])
outcome("gone", lambda: os.kill(child, 9))
outcome("name", lambda: os.uname().nodename)
outcome("system", lambda: os.uname().sysname)
"""

RACES = """
library = ctypes.CDLL(None, use_errno=True)
def unix(path):
    return struct.pack("H", 1) + os.fsencode(path).ljust(108, bytes(1))
good, bad = unix(sockets / "listener"), unix(other / "listener")
address = ctypes.create_string_buffer(good, len(good))
over = False
def swap():
    while not over:
        ctypes.memmove(address, bad, len(bad))
        ctypes.memmove(address, good, len(good))
threading.Thread(target=swap, daemon=True).start()
connected = 0
for _ in range(300):
    caller = socket.socket(socket.AF_UNIX)
    connected += library.connect(caller.fileno(), address, len(good)) == 0
    caller.close()
over = True
print("connected", connected > 0)
"""


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        yield other
        other.kill()


def listening(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    made.listen(1000)
    made.setblocking(False)
    return made


def guarded(place: Path, code: str, victim: int, port: int = 0) -> subprocess.Popen[str]:
    folders = [place / name for name in ("own", "sockets", "other")]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    program = [sys.executable, "-c", START + code, *map(str, folders), str(victim), str(port)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(program, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, env=environment)


def told(process: subprocess.Popen[str]) -> dict[str, str]:
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return dict(line.split() for line in out.splitlines())


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("g").resolve()  # a short name: a socket's path has 107 bytes at most


def test_it_connects_unix_sockets_in_its_folder_alone(place: Path, victim: subprocess.Popen[bytes]) -> None:
    for folder in ("sockets", "other"):
        (place / folder).mkdir()
    (place / "sockets" / "daemon").mkdir()
    (place / "sockets" / "file").write_text("no socket")
    (place / "sockets" / "link").symlink_to(place / "other" / "listener")
    (place / "sockets" / "folder").symlink_to(place / "other")
    with (
        closing(listening(place / "sockets" / "listener")),
        closing(listening(place / "sockets" / "daemon" / "listener")),
        closing(listening(place / "other" / "listener")) as other,
        closing(socket.socket()) as internet,
    ):
        internet.bind(("127.0.0.1", 0))
        internet.listen()
        found = told(guarded(place, CONNECTS, victim.pid, internet.getsockname()[1]))
        with pytest.raises(BlockingIOError):
            other.accept()
    granted = {name for name, answer in found.items() if answer == "None"}
    assert granted == {"own", "own-deeper", "internet"}
    assert {answer for name, answer in found.items() if name not in granted} == {"PermissionError"}


def test_an_address_that_changes_after_the_check_leads_nowhere_else(
    place: Path, victim: subprocess.Popen[bytes]
) -> None:
    for folder in ("sockets", "other"):
        (place / folder).mkdir()
    with closing(listening(place / "sockets" / "listener")), closing(listening(place / "other" / "listener")) as other:
        assert told(guarded(place, RACES, victim.pid)) == {"connected": "True"}
        with pytest.raises(BlockingIOError):
            other.accept()


def test_it_signals_and_measures_its_own_children_and_hides_the_host_name(
    place: Path, victim: subprocess.Popen[bytes]
) -> None:
    assert told(guarded(place, SIGNALS, victim.pid)) == {
        **dict.fromkeys(("others", "guard", "group", "all"), "PermissionError"),
        "measured": "True",
        "own-child": "None",
        "ended": str(int(signal.SIGKILL)),
        "gone": "ProcessLookupError",
        "name": "localhost",
        "system": os.uname().sysname,
    }


@pytest.mark.parametrize(("code", "status"), [("sys.exit(7)", 7), ("os.abort()", -signal.SIGABRT)])
def test_a_guard_ends_as_its_process_does(code: str, status: int, place: Path, victim: subprocess.Popen[bytes]) -> None:
    process = guarded(place, f"\n{code}\n", victim.pid)
    process.communicate(timeout=60)
    assert process.returncode == status


def test_a_process_ends_with_its_guard(place: Path, victim: subprocess.Popen[bytes]) -> None:
    process = guarded(place, "print(os.getpid(), flush=True)\nsys.stdin.read()\n", victim.pid)
    assert process.stdout is not None
    child = psutil.Process(int(process.stdout.readline()))
    assert child.ppid() == process.pid
    process.kill()
    process.wait(60)
    with closing(process.stdout):
        assert process.stdout.read() == ""  # ends with the child, which holds the other end
    assert process.stdin is not None
    process.stdin.close()
