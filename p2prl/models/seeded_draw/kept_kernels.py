"""Compiled kernels of the card's draw, kept in a folder that a confined worker reads and cannot write.

Triton starts a C compiler and an assembler, and a confined worker starts nothing. So a process of its own compiles the
kernels before (`kernel_compilation`), and leaves a note there of what else Triton would ask programs for. Triton loads
what it finds in the folder into the process: had a confined worker written it, its rights would be the next process's.

This imports nothing heavy: a worker calls it before it is confined.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

FOLDER = "kernels"
"""Beside the folders of the workers, so in none of them."""

NOTE = "triton.json"
"""Variables by which Triton needs no program, written when all kernels are there and draw the known tokens."""

FAILURE = "failure.txt"
"""Why the compilation failed the last time."""

NOTED = ("TRITON_LIBCUDA_PATH", "TRITON_MOCK_PTX_VERSION")
"""Folder of the driver's library, and what the assembler says of its version."""

_SET = (*NOTED, "TRITON_CACHE_DIR")

_LONGEST_S = 300.0

_RETRY_S = 3600.0
"""A compilation that failed is tried again after this. It holds up a worker's start by seconds or minutes, and a worker
may start every few minutes; what its owner has repaired should not wait for long either."""

_MOST_KEPT = 4
"""Folders of kernels that are kept, those in use besides: of two kinds of card, before an update and after it."""

_DIGEST_DIGITS = 16

_START = (
    "import json, sys; sys.path[:0] = json.loads(sys.argv[1]); "
    "from p2prl.models.seeded_draw.kernel_compilation import main; main(*sys.argv[2:])"
)

_DRIVER = Path("/proc/driver/nvidia")

_CHOOSES_CARDS = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")

_HINT = "Install a C compiler and Python's headers (Debian and Ubuntu: apt install gcc python3-dev)."


def kernels_for(home: Path, device: str, say: Callable[[str], None]) -> Path | None:
    """The folder of compiled kernels for a CUDA device, which this process uses from now on, its variables set.

    They are compiled first if they are not there, which takes seconds. None without a card, and where they cannot be;
    `say` gets the reason.
    """
    try:
        folder = home.resolve() / FOLDER / _digest(home.resolve(), device)
    except PackageNotFoundError:
        return None  # without Triton the draw itself says so, once it is known that torch finds a card
    _hold(folder)
    if (noted := _noted(folder)) is None:
        fault = _missing_program() or _failed_lately(folder) or _compile(folder, device, say)
        if (noted := _noted(folder)) is None:
            if fault:
                say(f"Each token will wait for the card, a slower way: {fault}")
            return None
    os.environ.update(noted, TRITON_CACHE_DIR=str(folder))
    return folder


def _digest(home: Path, device: str) -> str:
    """What the kernels depend on: versions, the draw's source, cards and drivers, Triton's settings, and the place."""
    source = Path(__file__).parent
    models = sorted({_model(path) for path in _DRIVER.glob("gpus/*/information")})
    depends = [
        sys.version,
        *(version(name) for name in ("torch", "triton")),
        *(path.read_text() for path in (source / "card_draw.py", source / "gumbel_noise.py")),
        *(path.read_text() for path in [_DRIVER / "version"] if path.exists()),
        models,
        "" if len(models) == 1 else [device, *map(os.environ.get, _CHOOSES_CARDS)],
        sorted((name, value) for name, value in os.environ.items() if name.startswith("TRITON_") and name not in _SET),
        str(home),  # Triton's cache holds whole paths
    ]
    return hashlib.sha256(json.dumps(depends).encode()).hexdigest()[:_DIGEST_DIGITS]


def _model(information: Path) -> str:
    lines = information.read_text(errors="replace").splitlines()
    return next((line for line in lines if line.startswith("Model")), "")


def _noted(folder: Path) -> dict[str, str] | None:
    """The note's variables; None while the kernels are not all there."""
    try:
        noted = json.loads((folder / NOTE).read_text())
    except (OSError, ValueError):
        return None
    return {name: str(noted[name]) for name in NOTED}


def _missing_program() -> str:
    """Why Triton could not compile here, before anything heavy is started; empty if nothing is missing."""
    if not os.environ.get("CC") and not shutil.which("gcc") and not shutil.which("clang"):
        return f"Triton needs a C compiler. {_HINT}"
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        return f"Triton needs Python.h, a header of Python. {_HINT}"
    return ""


def _hold(folder: Path) -> None:
    """Keep a folder, if it is there, from `_drop_old` until this process ends, and make it the newest."""
    with suppress(OSError):  # none yet, or a file system without locks, on which none can be dropped either
        fcntl.flock(os.open(folder, os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_SH)
        os.utime(folder)


def _drop_old(kernels: Path) -> None:
    """Remove the folders of kernels but the newest ones and those that workers use."""
    of_kernels = re.compile(f"[0-9a-f]{{{_DIGEST_DIGITS}}}").fullmatch
    with suppress(OSError):
        found = [(path.lstat().st_mtime, path) for path in kernels.iterdir() if of_kernels(path.name)]
        for _, path in sorted(found, reverse=True)[_MOST_KEPT:]:
            with suppress(OSError):
                held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an OSError while somebody holds it
                    (path / NOTE).unlink(missing_ok=True)  # first: with it, all kernels are there
                    shutil.rmtree(path)
                finally:
                    os.close(held)


def _failed_lately(folder: Path) -> str:
    """Why these kernels could not be compiled, while that is not tried again."""
    try:
        age_s = time.time() - (folder / FAILURE).stat().st_mtime
        fault = (folder / FAILURE).read_text(errors="replace")
    except OSError:
        return ""
    if not 0 <= age_s < _RETRY_S:
        return ""
    left = max(1, round((_RETRY_S - age_s) / 60))
    return f"{fault.rstrip('.')}. This is tried again in {left} min, or when you have deleted {folder}"


def _compile(folder: Path, device: str, say: Callable[[str], None]) -> str:
    """Compile into the folder, and drop old ones; why that failed, in one line, noted for `_failed_lately`."""
    say("compiling the draw of tokens for the card, once for this version; this can take a minute")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _hold(folder)
        fault = _run(folder, device)
    except OSError as error:
        return str(error)
    if fault:
        with suppress(OSError):  # a full disk, perhaps the fault itself
            fresh = folder / f"{FAILURE}.{os.getpid()}"
            fresh.write_text(fault)
            fresh.replace(folder / FAILURE)
    _drop_old(folder.parent)
    return fault


def _run(folder: Path, device: str) -> str:
    """Compile in a process of its own; why that failed."""
    path = [str(Path(__file__).resolve().parents[3]), *(entry for entry in sys.path if os.path.isabs(entry))]
    settings = {name: value for name, value in os.environ.items() if name != NOTED[1]}  # a worker's that started this
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _START, json.dumps(path), device, str(folder)],
            env={**settings, "TRITON_CACHE_DIR": str(folder)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LONGEST_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"its compilation took longer than {_LONGEST_S:.0f} s"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        return f"its compilation ended: {last[-300:]}"
    return done.stdout.strip()
