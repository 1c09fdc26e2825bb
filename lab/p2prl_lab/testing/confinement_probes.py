"""Probes from inside confined processes: what each still can do to the machine of its owner.

The processes are confined by the product's own functions. The scorer is asked through a pool, whose builder this module
is; the others run as programs of their own and print what they found.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2prl.confinement.calculator import confine_calculator
from p2prl.confinement.role import MEMORY_FACTOR, confine_calls, confine_files, confine_network
from p2prl.models.tokenizer.process import MEMORY_BYTES
from p2prl.tasks.sandbox.pool import ScorerPool, TaskScoring
from p2prl.tasks.task import Score

PROCESSES = ("worker", "worker's thread", "scorer", "tokenizer", "network")

LAYER_OF = {
    errno.EACCES: "Landlock",
    errno.EPERM: "seccomp",
    errno.ENOSYS: "seccomp",
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
    """Harmful steps by name. `folder` is another one than the process's own, with a file `key`; memory in bytes."""
    parent = os.getppid()
    return {
        "write outside": lambda: (folder / "marker").write_text("here"),
        "read of the home folder": lambda: (folder / "key").read_text(),
        "list of the home folder": lambda: os.listdir(folder),
        "socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).close(),
        "message to another program": lambda: _send(folder / "listener"),
        "exec": lambda: subprocess.run(["/bin/true"], check=True),
        "fork": _fork,
        "ptrace": lambda: _ptrace(parent),
        "signal": lambda: os.kill(parent, 0),
        "change of a mode": lambda: (folder / "key").chmod(0o666),
        "big allocation": lambda: mmap.mmap(
            -1, allocation, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
        ),
    }


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
    sys.stdout.write(json.dumps({"layers": str(protection), "found": found}))


def run_tokenizer(own: str, folder: str) -> None:
    """The tokenizer process's confinement."""
    del own
    layers = confine_calculator(memory_bytes=MEMORY_BYTES)
    found = {"tokenizer": outcomes(Path(folder), 2 * MEMORY_BYTES)}
    sys.stdout.write(json.dumps({"layers": ", ".join(layers), "found": found}))


def run_network(own: str, folder: str) -> None:
    """The network process's confinement: sockets and processes are its job, files and other programs are not."""
    protection = confine_network(Path(own), Path(own), (Path(sys.executable).resolve(),))
    found = outcomes(Path(folder), 1 << 62)
    for job in ("socket", "message to another program", "fork", "change of a mode", "big allocation"):
        del found[job]
    sys.stdout.write(json.dumps({"layers": str(protection), "found": {"network": found}}))


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
    with tempfile.TemporaryDirectory() as place:
        own, folder = Path(place) / "own", Path(place) / "home"
        own.mkdir()
        folder.mkdir()
        (folder / "key").write_text("secret")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        listener.bind(str(folder / "listener"))
        for name in ("worker", "tokenizer", "network"):
            yield from _of_program(name, own, folder)
        with ScorerPool({"probe": TaskScoring("probe")}, builder=__name__) as pool:
            (scored,) = pool.score("probe", {}, [(str(folder), True)], account=b"probe")
        numbers = scored.failure.rpartition(":")[2].split()
        listener.close()
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
