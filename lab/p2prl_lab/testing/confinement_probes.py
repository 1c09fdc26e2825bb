"""Probes from inside confined processes: what each still can do to the machine of its owner.

The processes are confined by the product's own functions. The scorer is asked through a pool, whose builder this module
is; the others run as programs of their own and print what they found.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2prl.confinement.compute_only import confine_to_computing
from p2prl.confinement.linux import HIDDEN_NAME
from p2prl.confinement.role_confinement import MEMORY_FACTOR, confine_calls, confine_files, confine_network
from p2prl.models.tokenizer.process import MEMORY_BYTES
from p2prl.tasks.sandbox.pool import ScorerPool, TaskScoring
from p2prl.tasks.task import Score

NETWORK_JOBS = ("socket", "fork", "change of a mode", "big allocation")
"""What a network process may do: it opens sockets, and starts a daemon."""

OPEN_TO_WORKERS = ("host name",)
"""What drivers ask for: only the superuser's worker gets another answer (`docs/confinement.md`)."""

PROCESSES = ("worker", "worker's thread", "scorer", "tokenizer", "network")

LAYER_OF = {
    errno.EACCES: "Landlock",
    errno.EPERM: "seccomp",
    errno.ENOSYS: "seccomp",
    errno.ENODATA: "hidden",
    errno.ENOENT: "absent",
    errno.ENOMEM: "limits",
    errno.EFBIG: "limits",
}
"""What refuses with which error; Landlock also answers EPERM for signals and tracing, after seccomp's filter."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one probe."""

    process: str
    probe: str
    refused: bool
    by: str
    """The layer, by the error it gives; the error's name where it is none of theirs."""


def attempts(folder: Path, allocation: int) -> dict[str, Callable[[], object]]:
    """Harmful steps by name. `folder` is another one than the process's own, with a file `key` and sockets on which
    others listen; its name ends in the id of another program of the same user. `allocation` is memory in bytes.
    """
    victim = int(folder.name.rpartition("-")[2])
    return {
        "write outside": lambda: (folder / "marker").write_text("here"),
        "read of the home folder": lambda: (folder / "key").read_text(),
        "list of the home folder": lambda: os.listdir(folder),
        "socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).close(),
        "message to another program": lambda: _send(folder / "listener"),
        "connection to another program": lambda: _connect(str(folder / "agent")),
        "connection to a socket without a file": lambda: _connect(f"\0{folder / 'agent'}"),
        "exec": lambda: subprocess.run(["/bin/true"], check=True),
        "fork": _fork,
        "ptrace": lambda: _ptrace(victim),
        "signal": lambda: os.kill(victim, 0),
        "signal by way of a file": lambda: _own_pipe(victim),
        "priority of another program": lambda: os.setpriority(os.PRIO_PROCESS, victim, 19),
        "processors of another program": lambda: os.sched_setaffinity(victim, os.sched_getaffinity(0)),
        "scheduling of another program": lambda: os.sched_setscheduler(victim, os.SCHED_BATCH, os.sched_param(0)),
        "limits of another program": lambda: resource.prlimit(victim, resource.RLIMIT_CORE, (0, 0)),
        "change of a mode": lambda: (folder / "key").chmod(0o666),
        "big allocation": lambda: mmap.mmap(
            -1, allocation, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
        ),
        "capabilities": _use_capabilities,
        "host name": _host_name,
        "boot id": lambda: Path("/proc/sys/kernel/random/boot_id").read_text(),
        "machine id": lambda: Path("/etc/machine-id").read_text(),
        "address of a network card": lambda: Path("/sys/class/net/lo/address").read_text(),
        "address of a network card by ioctl": _card_address,
    }


def _connect(address: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.connect(address)


def _own_pipe(pid: int) -> None:
    reading, writing = os.pipe()
    try:
        fcntl.fcntl(reading, fcntl.F_SETOWN, pid)
    finally:
        os.close(reading)
        os.close(writing)


def _use_capabilities() -> None:
    """Granted where the superuser's process still holds one, or a program that it starts may get one."""
    library, read_bounding = ctypes.CDLL(None, use_errno=True), 23
    held = ctypes.create_string_buffer(24)
    library.capget(struct.pack("<Ii", 0x20080522, 0), held)  # a filter that refuses it leaves zeros
    if not any(held.raw) and (os.geteuid() != 0 or library.prctl(read_bounding, 0, 0, 0, 0) <= 0):
        raise PermissionError(errno.EPERM, "no capabilities")


def _host_name() -> None:
    if os.uname().nodename == HIDDEN_NAME.decode():
        raise OSError(errno.ENODATA, "hidden")


def _card_address() -> None:
    request, siocgifhwaddr = struct.pack("16s24x", b"lo"), 0x8927
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        fcntl.ioctl(asking, siocgifhwaddr, request)


def _fork() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _send(listener: Path) -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        one.sendto(b"hello", str(listener))


def _ptrace(pid: int) -> None:
    attach, detach = 16, 17
    library = ctypes.CDLL(None, use_errno=True)
    if library.ptrace(attach, pid, None, None) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")
    os.waitpid(pid, 0)
    library.ptrace(detach, pid, None, None)


def outcomes(folder: Path, allocation: int) -> dict[str, int]:
    """Errno of each attempt; 0 where it was granted."""
    found = {}
    for name, attempt in attempts(folder, allocation).items():
        try:
            attempt()
        except MemoryError:
            found[name] = errno.ENOMEM
        except OSError as error:
            found[name] = error.errno or errno.EIO
        else:
            found[name] = 0
    return found


# --- the confined side -------------------------------------------------------------------------------------------


def run_worker(own: str, folder: str) -> None:
    """A role's steps, with a thread that runs before the second; prints the outcomes in both threads."""
    protection = confine_files(Path(own))
    confined = threading.Event()
    found: dict[str, dict[str, int]] = {}
    allocation = (MEMORY_FACTOR + 1) * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def probe_later() -> None:
        confined.wait()
        found["worker's thread"] = outcomes(Path(folder), allocation)

    thread = threading.Thread(target=probe_later)
    thread.start()
    protection = confine_calls(protection)
    (Path(own) / "kept").write_text("own folder")
    found["worker"] = outcomes(Path(folder), allocation)
    confined.set()
    thread.join()
    for outcome in found.values():
        for name in OPEN_TO_WORKERS:
            del outcome[name]
    sys.stdout.write(json.dumps({"layers": str(protection), "found": found}))


def run_tokenizer(own: str, folder: str) -> None:
    """The tokenizer process's confinement."""
    del own
    layers = confine_to_computing(memory_bytes=MEMORY_BYTES)
    found = {"tokenizer": outcomes(Path(folder), 2 * MEMORY_BYTES)}
    sys.stdout.write(json.dumps({"layers": ", ".join(layers), "found": found}))


def run_network(own: str, folder: str) -> None:
    """The network process's confinement: sockets and processes are its job, files and other programs are not."""
    guard = confine_network(Path(own), Path(own), (Path(sys.executable).resolve(),))
    found = outcomes(Path(folder), 1 << 62)
    for job in NETWORK_JOBS:
        del found[job]
    sys.stdout.write(json.dumps({"layers": "" if guard is None else "guard", "found": {"network": found}}))


class _ProbingScorer:
    """Scores nothing: raises what it found."""

    def score(self, row: dict[str, Any], text: str, finished: bool) -> Score:
        del row, finished
        found = outcomes(Path(text), 2_000_000_000)
        raise ValueError(" ".join(map(str, found.values())))


def build_scorer(spec: str, code: Path | None) -> _ProbingScorer:
    """Called by the fork server."""
    del spec, code
    return _ProbingScorer()


def runs_third_party_code(spec: str) -> bool:
    """Called by the fork server: as a researcher's own scorer."""
    del spec
    return True


# --- the asking side ---------------------------------------------------------------------------------------------


def findings() -> Iterator[Finding]:
    """Probe every kind of process, one after the other."""
    with tempfile.TemporaryDirectory() as place, ExitStack() as open_things:
        victim = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        open_things.callback(victim.communicate, b"\n")
        own, folder = Path(place) / "own", Path(place) / f"home-{victim.pid}"
        own.mkdir()
        folder.mkdir()
        (folder / "key").write_text("secret")
        for kind, address in (
            (socket.SOCK_DGRAM, str(folder / "listener")),
            (socket.SOCK_STREAM, str(folder / "agent")),
            (socket.SOCK_STREAM, f"\0{folder / 'agent'}"),
        ):
            listener = open_things.enter_context(socket.socket(socket.AF_UNIX, kind))
            listener.bind(address)
            if kind == socket.SOCK_STREAM:
                listener.listen()
        for name in ("worker", "tokenizer", "network"):
            yield from _of_program(name, own, folder)
        with ScorerPool({"probe": TaskScoring("probe")}, builder=__name__) as pool:
            (scored,) = pool.score("probe", {}, [(str(folder), True)], account=b"probe")
        numbers = scored.failure.rpartition(":")[2].split()
        yield from _rows("scorer", dict(zip(attempts(folder, 0), map(int, numbers), strict=True)))


def _of_program(name: str, own: Path, folder: Path) -> Iterator[Finding]:
    code = f"import sys; from p2prl_lab.testing.confinement_probes import run_{name}; run_{name}(*sys.argv[1:])"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2]), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(own), str(folder)], stdout=subprocess.PIPE, env=environment, check=True
    )
    document = json.loads(done.stdout)
    for process, found in document["found"].items():
        yield from _rows(process, found)
    with suppress(FileNotFoundError):
        (folder / "marker").unlink()


def _rows(process: str, found: dict[str, int]) -> Iterator[Finding]:
    for probe, code in found.items():
        by = LAYER_OF.get(code, errno.errorcode.get(code, "")) if code else ""
        yield Finding(process, probe, code != 0, by)
