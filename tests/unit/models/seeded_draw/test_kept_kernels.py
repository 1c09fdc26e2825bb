"""Kernels of the draw, compiled before a worker is confined: it finds them, starts nothing, and cannot change them.

The kernel of the operating system is the judge: Landlock and seccomp are real here, and so is Triton; the card is not.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from p2prl.confinement import linux
from p2prl.models.seeded_draw import kept_kernels
from tests.unit.models.seeded_draw.idle_card import DEVICE, kernel_folder

pytest.importorskip("triton", reason="Triton has no build for this system")
needs_landlock = pytest.mark.skipif(sys.platform != "linux" or not linux.landlock_version(), reason="needs Landlock")

_FUNCTIONS = (
    *("CtxGetCurrent", "CtxGetLimit", "CtxSetCurrent", "CtxSetLimit", "DeviceGet", "DeviceGetAttribute"),
    *("DevicePrimaryCtxRetain", "DriverGetVersion", "FuncGetAttribute", "FuncSetAttribute", "FuncSetCacheConfig"),
    *(
        "GetErrorString",
        "LaunchKernelEx",
        "ModuleGetFunction",
        "ModuleLoadData",
        "OccupancyMaxActiveClusters",
        "PointerGetAttribute",
    ),
    *("TensorMapEncodeIm2col", "TensorMapEncodeTiled"),
)
"""Of CUDA's driver, those that Triton calls."""

Draws = Callable[[Path], dict[str, Any]]


def idle_card(*arguments: str | Path, library: Path) -> str:
    """What the program printed."""
    settings = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.models.seeded_draw.idle_card", *map(str, arguments)],
        env={**settings, "LD_LIBRARY_PATH": str(library), "TRITON_LIBCUDA_PATH": str(library)},
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a driver whose functions do nothing and succeed."""
    folder = tmp_path_factory.mktemp("driver")
    source = "\n".join(f"int cu{name}(void) {{ return 0; }}" for name in _FUNCTIONS)
    command = ["cc", "-x", "c", "-", "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1")]
    subprocess.run(command, input=source, text=True, check=True)
    return folder


@pytest.fixture(scope="module")
def home(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose kernels are compiled."""
    folder = tmp_path_factory.mktemp("home")
    idle_card("compile", folder, library=library)
    return folder


@needs_landlock
def test_a_confined_worker_draws_with_kernels_that_it_cannot_change(home: Path, library: Path) -> None:
    made = json.loads(idle_card("draw", home, library=library))
    for step in ("files", "calls"):
        assert made[step]["fault"] == "its draw is not the defined one", "nothing computes here, but all was launched"
    assert len(made["files"]["found"]) == 6, "two kernels for each dtype and no more: all were launched at once"
    assert all(made["files"]["found"])
    assert made["refused"] == ["a new file", "a kernel", "no kernel", "the note", "another folder"]


@needs_landlock
def test_without_its_kernels_a_confined_worker_goes_the_slower_way_at_once(home: Path, library: Path) -> None:
    folder = next(path for path in (home / kept_kernels.FOLDER).iterdir() if path.is_dir())
    kept = folder.with_name("kept")
    shutil.copytree(folder, kept)
    try:
        for path in folder.glob("*/_bound*"):
            path.unlink()
        made = json.loads(idle_card("draw", home, library=library))
    finally:
        shutil.rmtree(folder)
        kept.rename(folder)
    assert made["files"]["fault"].startswith("Triton cannot compile the draw: [Errno 13] Permission denied")
    assert made["files"]["took_s"] < 20


def test_a_missing_compiler_is_named_and_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    said: list[str] = []
    assert kept_kernels.kernels_for(tmp_path, DEVICE, said.append) is None
    assert len(said) == 1
    assert "Triton needs a C compiler. Install a C compiler" in said[0]
    assert not list(tmp_path.iterdir())


def test_without_a_card_nothing_is_left_but_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    said: list[str] = []
    assert kept_kernels.kernels_for(tmp_path, DEVICE, said.append) is None
    assert len(said) == 1
    assert said[0].startswith("compiling the draw")
    assert "TRITON_MOCK_PTX_VERSION" not in os.environ


def test_a_compilation_that_fails_is_said_with_its_cause(tmp_path: Path) -> None:
    (tmp_path / kept_kernels.FOLDER).write_text("in the way")
    said: list[str] = []
    assert kept_kernels.kernels_for(tmp_path, DEVICE, said.append) is None
    assert said[-1].startswith("Each token will wait for the card, a slower way: ")
    assert "Not a directory" in said[-1]


def test_kernels_are_those_of_versions_settings_and_place_but_not_of_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = kernel_folder(tmp_path)
    assert kernel_folder(tmp_path / "moved").name != first.name, "Triton's cache holds whole paths"
    for name in (*kept_kernels.NOTED, "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, "set by the worker that started this one")
    assert kernel_folder(tmp_path) == first
    monkeypatch.setenv("TRITON_DEBUG", "1")
    assert kernel_folder(tmp_path) != first
    monkeypatch.delenv("TRITON_DEBUG")
    monkeypatch.setattr(kept_kernels, "version", lambda name: "another")
    assert kernel_folder(tmp_path) != first


def test_kernels_are_those_of_the_kinds_of_card_and_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of several cards is used makes a difference where they are of several kinds."""
    driver = tmp_path / "driver"
    monkeypatch.setattr(kept_kernels, "_DRIVER", driver)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def card(number: int, model: str) -> None:
        folder = driver / "gpus" / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "information").write_text(f"Model: {model}\nIRQ: {number}\n")

    def digest(device: str = "cuda") -> str:
        return kept_kernels._digest(tmp_path, device)

    card(0, "first kind")
    one = digest()
    card(1, "first kind")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert digest() == digest("cuda:1") == one
    card(1, "second kind")
    two = {digest(), digest("cuda:1")}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    two |= {digest(), one}
    assert len(two) == 4
    (driver / "version").write_text("580")
    assert digest() not in two


HELD = "import sys; from pathlib import Path; from p2prl.models.seeded_draw import kept_kernels; "
HELD += "kept_kernels._hold(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"


def test_the_newest_folders_are_kept_and_those_of_running_workers(tmp_path: Path) -> None:
    kernels = tmp_path / kept_kernels.FOLDER
    folders = [kernels / f"{number:016x}" for number in range(8)]
    for age, folder in enumerate(folders):
        (folder / "made").mkdir(parents=True)
        (folder / kept_kernels.NOTE).write_text("{}")
        os.utime(folder, (10**9 - age, 10**9 - age))
    (kernels / "not one of ours").mkdir()
    os.utime(kernels / "not one of ours", (0, 0))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / kept_kernels.NOTE).write_text("{}")
    link = kernels / ("f" * 16)
    link.symlink_to(tmp_path / "elsewhere")
    os.utime(link, (0, 0), follow_symlinks=False)
    worker = subprocess.Popen(
        [sys.executable, "-c", HELD, str(folders[6])], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == "held\n"
    kept_kernels._drop_old(kernels)
    left = {folder.name for folder in folders if folder.exists()}
    assert left == {folders[number].name for number in (0, 1, 2, 6)}, "its worker made that one the newest"
    os.utime(folders[6], (0, 0))
    kept_kernels._drop_old(kernels)
    assert folders[6].is_dir()
    for number in (3, 4, 5):
        folders[number].mkdir()
    kept_kernels._drop_old(kernels)
    assert (folders[6] / kept_kernels.NOTE).exists(), "old, but in use"
    worker.communicate()
    kept_kernels._drop_old(kernels)
    assert not folders[6].exists()
    assert (kernels / "not one of ours").exists()
    assert (tmp_path / "elsewhere" / kept_kernels.NOTE).exists()


FAILS = "import os, sys; print('x', file=open(os.environ['STARTS'], 'a')); sys.exit('No space left on device')"


def test_a_compilation_that_failed_is_not_begun_again_for_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_kernels, "_START", FAILS)
    monkeypatch.setenv("STARTS", str(tmp_path / "starts"))
    old = [tmp_path / kept_kernels.FOLDER / f"{number:016x}" for number in range(5)]
    for folder in old:
        folder.mkdir(parents=True)
        os.utime(folder, (int(folder.name), int(folder.name)))
    said: list[str] = []

    def starts() -> int:
        said.clear()
        assert kept_kernels.kernels_for(tmp_path, DEVICE, said.append) is None
        assert "a slower way: its compilation ended: No space left on device" in said[-1]
        return (tmp_path / "starts").read_text().count("x")

    assert starts() == 1
    assert [folder.exists() for folder in old] == [False, False, True, True, True]
    assert starts() == 1
    assert len(said) == 1, "nothing is compiled"
    folder = kernel_folder(tmp_path)
    assert said[0].endswith(f"This is tried again in 60 min, or when you have deleted {folder}")
    now = (folder / kept_kernels.FAILURE).stat().st_mtime

    def failed(seconds_ago: float) -> None:
        os.utime(folder / kept_kernels.FAILURE, (now, now - seconds_ago))

    failed(3500)
    assert starts() == 1
    assert "again in 2 min" in said[0]
    failed(3601)
    assert starts() == 2
    failed(-1000)  # the clock was set back
    assert starts() == 3
    monkeypatch.setenv("TRITON_DEBUG", "1")
    assert starts() == 4, "other kernels"
    shutil.rmtree(kernel_folder(tmp_path))
    assert starts() == 5
